# SPDX-License-Identifier: Apache-2.0
"""The least that a sandbox side could do: take in a body on a bare socket, and hash it once.

``python -m … PARENT`` says ``{"url": …}``, and ends with SIGTERM or with the process PARENT.
"""

import hashlib
import json
import signal
import socket
import sys
from typing import Final

from rollout_router.transport.sandbox.parent import terminate_with

__all__ = ["READY"]

READY: Final = '{"url"'
_HEAD_BYTES_MAX: Final = 65_536
_LENGTH: Final = b"content-length: "
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n"


def _serve(listener: socket.socket) -> None:
    """One connection after another; whoever sends something else is cut off."""
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (head := connection.recv(_HEAD_BYTES_MAX)) and (read := _read(connection, head)):
                connection.sendall(_ANSWER + read[:11])


def _read(connection: socket.socket, received: bytes) -> bytes:
    """Take in one request; the digest of its body, in hexadecimal digits."""
    head, _, begun = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(_LENGTH)[2].split(b"\r\n")[0])
    body = bytearray(length)
    body[: len(begun)] = begun
    view, at = memoryview(body), len(begun)
    while at < length:
        count = connection.recv_into(view[at:])
        if not count:
            return b""
        at += count
    return hashlib.sha256(body).hexdigest().encode()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    terminate_with(int(sys.argv[1]))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{bound.getsockname()[1]}"}) + "\n")
        sys.stdout.flush()
        _serve(bound)
