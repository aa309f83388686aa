# SPDX-License-Identifier: Apache-2.0
"""A tool-using agent and its environment: two servers whose sessions survive each other's death."""
