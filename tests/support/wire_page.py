# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/wire.md, as the bytes that they stand for."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGE", "Written", "block", "message", "with_bytes"]

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")

_COMPRESSED = b',"deflate":true}'


class Written(NamedTuple):
    """A request or an answer: its first line, its header lines, its body."""

    start: str
    headers: list[tuple[str, str]]
    body: bytes


def block(name: str) -> bytes:
    """What stands between the fences of that name, without the newline before the last."""
    (found,) = re.findall(rf"^```{name}\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
    assert isinstance(found, str)
    return found.encode()


def message(name: str) -> Written:
    """A whole message; the page leaves the carriage returns of its head out."""
    head, _, body = block(name).partition(b"\n\n")
    start, *lines = head.decode().split("\n")
    names_and_values = [line.split(": ", 1) for line in lines]
    return Written(start, [(name, value) for name, value in names_and_values], with_bytes(body))


def with_bytes(body: bytes) -> bytes:
    """A body with its compressed bytes in place of the hexadecimal digits that show them."""
    line, newline, digits = body.partition(b"\n")
    if not line.endswith(_COMPRESSED):
        return body
    compressed = bytes.fromhex(digits.decode())
    assert digits.decode().split("\n") == textwrap.wrap(compressed.hex(), 112)
    return line + newline + compressed
