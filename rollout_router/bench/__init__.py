# SPDX-License-Identifier: Apache-2.0
"""What a turn costs, stage by stage, as ratios against references measured in the same run."""
