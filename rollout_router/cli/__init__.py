# SPDX-License-Identifier: Apache-2.0
"""The commands: thin. Only this room prints.

Exit codes: 0 fine, 1 failed, 2 usage, 3 damage found, 4 refused.
"""
