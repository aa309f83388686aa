# SPDX-License-Identifier: Apache-2.0
"""A server's end of one connection: counts what is written, and sends a head with what follows.

uvicorn writes the head of an answer and its body apart, and the loop gives each to the kernel at
once: a small answer would be two writes here and two reads at its peer, over a hop twice of each.
So a head waits for what is written in the same turn of the loop, and leaves at the end of it.
"""

from asyncio import AbstractEventLoop
from typing import Any, Final

__all__ = ["Counted"]

_BEGINS: Final = b"HTTP/1."
_JOINED_BYTES_MAX: Final = 64 * 1024
"""Up to here copying a body behind its head is cheaper than writing twice."""


class Counted:
    """A transport; what it does not know is asked of the *bare* one."""

    def __init__(self, bare: Any, loop: AbstractEventLoop) -> None:
        self.bare = bare
        self.is_closing = bare.is_closing  # looked up once: asked several times a request
        self._loop = loop
        self._write = bare.write
        self._unsent_bytes = bare.get_write_buffer_size
        self._written_bytes = 0
        self._head = b""  # that waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)

    def write(self, data: bytes) -> None:
        """Send *data* now, or at the end of this turn where it begins as a head does."""
        self._written_bytes += len(data)
        if self._head:
            if len(data) <= _JOINED_BYTES_MAX:
                data = self._head + data
                self._head = b""
            self.flush()
        elif data.startswith(_BEGINS):
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._write(data)

    def write_whole(self, data: bytes) -> None:
        """Send *data* now, whatever it begins with."""
        self._written_bytes += len(data)
        self.flush()
        self._write(data)

    def flush(self) -> None:
        """Send what waits."""
        head, self._head = self._head, b""
        if head and not self.is_closing():
            self._write(head)

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        return int(self._unsent_bytes()) + len(self._head)

    def taken_bytes(self) -> int:
        """So much of what was written the client's side has taken."""
        return self._written_bytes - self.get_write_buffer_size()

    def close(self) -> None:
        """Close when all is sent."""
        self.flush()
        self.bare.close()

    def write_eof(self) -> None:
        """Say the end when all is sent."""
        self.flush()
        self.bare.write_eof()

    def abort(self) -> None:
        """Close now; what waits is lost."""
        self._head = b""
        self.bare.abort()
