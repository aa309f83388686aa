# SPDX-License-Identifier: Apache-2.0
"""The JSON documents about a store: the same whether a command prints or the admin address sends.

Each function makes one document of a store, blocks as its disk does, and prints nothing. Keys are
stable; keys may be added.
"""

from typing import Final

__all__ = ["SCHEMA"]

SCHEMA: Final = 1
"""The version of every document."""
