# SPDX-License-Identifier: Apache-2.0
"""What goes into a sandbox: the standard library of Python 3.8 alone, and nothing else of ours."""
