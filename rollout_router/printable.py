# SPDX-License-Identifier: Apache-2.0
"""Text that does nothing to whoever shows it: a terminal acts on some bytes, a log on line ends."""

__all__ = ["printable"]


def printable(value: object) -> str:
    """*value* as one line that does nothing to a terminal and that every encoding has."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text.encode("utf-8", "backslashreplace").decode()
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
