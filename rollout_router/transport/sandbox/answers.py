# SPDX-License-Identifier: Apache-2.0
"""What the shim says to a harness itself, and how it ends a connection so that this arrives."""

import json
import socket
import struct

from rollout_router.transport.sandbox.http1 import written_head

__all__ = ["linger", "reset_when_closed", "say"]

_LINGER_S = 1.0
_LINGER_BYTES_MAX = 64 * 1024 * 1024  # of a body that is refused, however long it claims to be
_RECV_BYTES = 65_536
_REASONS = {
    400: "Bad Request",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


def say(
    sock: socket.socket, status: int, code: str, message: str, *, method: str, last: bool
) -> None:
    """Answer with an error in the OpenAI form; to a HEAD, with its head.

    Args:
        sock: the harness's.
        status: one of those that the shim has.
        code: public, see docs/errors.md.
        message: what happened, and what to do.
        method: of the request.
        last: whether the connection ends with it.
    """
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004 - 5xx
    error = {
        "message": message,
        "type": kind,
        "code": code,
        "param": None,
        "rollout_id": None,
        "claim_epoch": None,
    }
    body = json.dumps({"error": error}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if status == 426:  # noqa: PLR2004 - must name what would be accepted
        headers += [("Upgrade", "HTTP/1.1"), ("Connection", "upgrade, close")]
    elif last:
        headers.append(("Connection", "close"))
    head = written_head(f"HTTP/1.1 {status} {_REASONS[status]}", headers)
    sock.sendall(head if method == "HEAD" else head + body)


def linger(sock: socket.socket) -> None:
    """Read what the harness still sends, within bounds: closing on it would lose our answer."""
    sock.shutdown(socket.SHUT_WR)
    sock.settimeout(_LINGER_S)
    left = _LINGER_BYTES_MAX
    while left > 0:
        data = sock.recv(_RECV_BYTES)
        if not data:
            return
        left -= len(data)


def reset_when_closed(sock: socket.socket) -> None:
    """Make the end of the connection, which is the end of the answer, no clean one (R4)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
