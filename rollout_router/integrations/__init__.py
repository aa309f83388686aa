# SPDX-License-Identifier: Apache-2.0
"""The router in servers that others made; each module knows one of them and imports none."""
