# SPDX-License-Identifier: Apache-2.0
"""How bodies travel: delta and frame, the sandbox side, the hop to an owner."""
