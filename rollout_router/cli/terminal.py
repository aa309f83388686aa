# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: names and contents of files come from whoever could write them.

So none of it reaches a terminal, which acts on some bytes, as it is.
"""

__all__ = ["printable", "printable_lines"]


def printable(value: object) -> str:
    """*value* as text that does nothing to a terminal and that every encoding has."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text.encode("utf-8", "backslashreplace").decode()
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def printable_lines(text: str) -> str:
    """*text* line by line as :func:`printable`, for what a process printed or logged."""
    return "\n".join(map(printable, text.splitlines()))
