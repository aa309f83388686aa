# SPDX-License-Identifier: Apache-2.0
"""Connections to the gateway, and the wait that notices when the harness goes away.

S2: a connection belongs to one exchange from :meth:`Pool.acquire` to :meth:`Pool.release`; parallel
exchanges have connections of their own. S4: idle ones are retired before the server would, by
whoever calls :meth:`Pool.retire` when one is due.
Proxy variables of the environment are not looked at.
"""

import re
import select
import socket
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional

__all__ = [
    "IDLE_S",
    "Connection",
    "Gateway",
    "HarnessGone",
    "Pool",
    "SendFailed",
    "Watch",
    "parse_gateway",
]

IDLE_S = (
    4.0  # uvicorn and node close idle connections after 5 s, the gateway of this project after 75
)
_CONNECT_S = 10.0
_IDLE_MAX = 32
_RDHUP = getattr(select, "POLLRDHUP", 0)  # Linux: sees the peer's end behind unread bytes
_GATEWAY = re.compile(
    r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[!-~]*)?"
)
_PORTS = {"http": 80, "https": 443}


class Gateway(NamedTuple):
    """Where requests go."""

    tls: bool
    host: str
    port: int
    authority: str  # what the Host header says
    prefix: str  # comes before every request path; without a slash at its end

    @property
    def origin(self) -> str:
        """Scheme and authority: what the client's state hangs on."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"


class HarnessGone(Exception):  # noqa: N818 - names what happened
    """Nobody waits for the answer any more."""


def parse_gateway(url: str) -> Gateway:
    """Read a gateway URL: http or https, host, optional port, optional path prefix.

    Raises:
        ValueError: it is not one, or has a query, a fragment or credentials.
    """
    match = _GATEWAY.fullmatch(url)
    if match is None or "?" in url or "#" in url:
        raise ValueError(f"not a gateway URL (http://host:port/prefix): {url!r}")
    scheme, host, port, prefix = match.groups()
    number = int(port) if port else _PORTS[scheme]
    if not 0 < number < 65_536:  # noqa: PLR2004 - the range of ports
        raise ValueError(f"not a port: {number}")
    authority = host if number == _PORTS[scheme] else f"{host}:{number}"
    return Gateway(
        scheme == "https", host.strip("[]"), number, authority, (prefix or "").rstrip("/")
    )


class Watch:
    """Waits for the gateway's socket, and meanwhile for the end of the harness's.

    Args:
        harness: None where nobody is watched.
    """

    def __init__(self, harness: Optional[socket.socket]) -> None:
        self._harness = harness
        self._mask = select.POLLIN | _RDHUP

    def wait(self, sock: socket.socket, events: int) -> int:
        """Block until *sock* has one of *events*; gives the events that it has.

        Raises:
            HarnessGone: the harness closed its connection.
        """
        poll = select.poll()
        poll.register(sock, events)
        if self._harness is not None:
            poll.register(self._harness, self._mask)
        while True:
            for number, found in poll.poll():
                if number == sock.fileno():
                    return found
                self._look(poll, found)

    def _look(self, poll: select.poll, found: int) -> None:
        harness = self._harness
        if harness is None or found & (_RDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL):
            raise HarnessGone("the harness closed its connection")
        if not harness.recv(1, socket.MSG_PEEK):
            raise HarnessGone("the harness closed its connection")
        self._mask = _RDHUP  # its next request has come: only its end is of interest now
        poll.modify(harness, self._mask)


class Connection:
    """One connection to the gateway, used by one exchange at a time (S2)."""

    def __init__(self, sock: socket.socket, *, tls: bool) -> None:
        self._sock = sock
        self._tls = tls
        self.idle_since_s = 0.0

    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come unasked."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | _RDHUP)
        return not poll.poll(0)

    def recv(self, bytes_max: int, watch: Watch) -> bytes:
        """What has come, ``b""`` at the end of the stream; blocks until there is something."""
        if not (self._tls and self._sock.pending()):  # type: ignore[attr-defined]  # ssl.SSLSocket
            watch.wait(self._sock, select.POLLIN)
        return self._sock.recv(bytes_max)

    def send(self, buffers: List[bytes], watch: Watch) -> bool:
        """Send until all is gone (True), or until the gateway answers early (False).

        Raises:
            SendFailed: the connection is closed; says how much had gone out.
            HarnessGone: the harness closed its connection.
        """
        if self._tls:
            self._sock.sendall(b"".join(buffers))
            return True
        views: List[Any] = [memoryview(buffer) for buffer in buffers if buffer]
        done = 0
        while views:
            try:
                sent = self._sock.sendmsg(views, [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise SendFailed(error, bytes_sent=done) from error
            done += sent
            views = _after(views, sent)
            if views and watch.wait(self._sock, select.POLLOUT | select.POLLIN) & select.POLLIN:
                return False
        return True

    def close(self) -> None:
        """Close; both sides see it at once."""
        self._sock.close()


class SendFailed(OSError):  # noqa: N818 - names what happened
    """A send failed after so many bytes had gone out."""

    def __init__(self, cause: OSError, *, bytes_sent: int) -> None:
        super().__init__(cause.errno, str(cause))
        self.bytes_sent = bytes_sent


class Pool:
    """Idle connections to one gateway, the most recently used first.

    Args:
        gateway: where to connect to.
        idle_s: how long an idle connection may be used again.
        on_idle: told when a connection becomes the only idle one: :meth:`retire` has a new date.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        idle_s: float = IDLE_S,
        on_idle: Optional[Callable[[], None]] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gateway = gateway
        self._idle_s = idle_s
        self._on_idle = on_idle
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: List[Connection] = []
        self._tls: Any = None

    def acquire(self) -> Optional[Connection]:
        """An idle connection that is still open, or None: then :meth:`connect`."""
        while True:
            self.retire()
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or connection.is_quiet():
                return connection
            connection.close()

    def connect(self) -> Connection:
        """A fresh connection.

        Raises:
            OSError: the gateway cannot be reached.
        """
        gateway = self.gateway
        sock = socket.create_connection((gateway.host, gateway.port), timeout=_CONNECT_S)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if gateway.tls:
                sock = self._context().wrap_socket(
                    sock, server_hostname=gateway.host, suppress_ragged_eofs=False
                )
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return Connection(sock, tls=gateway.tls)

    def release(self, connection: Connection) -> None:
        """Give back a connection whose response is consumed."""
        with self._lock:
            connection.idle_since_s = self._clock()
            self._idle.append(connection)
            first = len(self._idle) == 1
            surplus = self._idle.pop(0) if len(self._idle) > _IDLE_MAX else None
        if surplus is not None:
            surplus.close()
        if first and self._on_idle is not None:  # those that follow are due after it
            self._on_idle()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def retire(self) -> Optional[float]:
        """Close what has been idle for too long; seconds until the next is due, None if none is."""
        now_s = self._clock()
        with self._lock:
            # Released in this order, so the first is the oldest.
            old = [held for held in self._idle if held.idle_since_s + self._idle_s <= now_s]
            self._idle = self._idle[len(old) :]
            due_s = self._idle[0].idle_since_s + self._idle_s if self._idle else None
        for connection in old:
            connection.close()
        return None if due_s is None else due_s - now_s

    def _context(self) -> Any:
        with self._lock:
            if self._tls is None:
                import ssl  # noqa: PLC0415 - costs 10 ms of start-up, and most gateways speak http

                self._tls = ssl.create_default_context()
                self._tls.set_alpn_protocols(["http/1.1"])
            return self._tls


def _after(views: List[Any], sent: int) -> List[Any]:
    """What is left of *views* when so many bytes are gone."""
    left = []
    for view in views:
        if sent >= len(view):
            sent -= len(view)
        else:
            left.append(view[sent:])
            sent = 0
    return left
