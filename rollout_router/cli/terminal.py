# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: names and contents of files come from whoever could write them.

So none of it reaches a terminal, which acts on some bytes, as it is.
"""

from rollout_router.printable import printable

__all__ = ["printable", "printable_lines"]


def printable_lines(text: str) -> str:
    """*text* line by line as :func:`printable`, for what a process printed or logged."""
    return "\n".join(map(printable, text.splitlines()))
