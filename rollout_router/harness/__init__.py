# SPDX-License-Identifier: Apache-2.0
"""Real agent harnesses at the sandbox side, and the run that shows that they notice nothing.

A harness is one module behind the small port in ``port.py``. Nothing here is imported by a server.
"""
