# SPDX-License-Identifier: Apache-2.0
"""One connection of a harness: read a request, have it answered by the gateway, hand the answer on.

S1, S4, S5: what goes out, and what becomes of the answer, is the client's decision (client.py).
S3: nothing is sent again here on its own account. R4: an answer that was cut aborts the harness's
connection. When the harness goes away, the connection to the gateway is closed at once.
"""

import contextlib
import itertools
import socket
from typing import Callable, Iterator, List, NamedTuple, Optional, Tuple

from rollout_router.transport.sandbox.answers import linger, reset_when_closed, say
from rollout_router.transport.sandbox.client import (
    BODY_BYTES_MAX,
    SHORT_BYTES,
    Abort,
    Client,
    Deliver,
    is_eligible,
    wants_body,
)
from rollout_router.transport.sandbox.exchange import Exchange, GatewayUnreachable
from rollout_router.transport.sandbox.http1 import (
    BadMessage,
    Body,
    Framing,
    Request,
    Response,
    end_to_end,
    parse_request,
    request_framing,
    written_head,
)
from rollout_router.transport.sandbox.pool import HarnessGone, Pool
from rollout_router.transport.sandbox.stages import (
    DELTA,
    LOCAL_HOP,
    OTHER,
    WAIT,
    Laps,
    Timings,
    lap,
)
from rollout_router.transport.sandbox.streams import Cut, Reader, pieces
from rollout_router.transport.sandbox.wire import (
    Headers,
    header_values,
    is_rollout_id,
    passed_on,
    path_rollout,
    replaced,
    without,
)

__all__ = ["Options", "Relay"]

_ONE_WRITE_BYTES = 65_536  # a body up to here goes out with its head


class Options(NamedTuple):
    """How requests are read."""

    rollout_header: str
    rollout: Optional[str] = None  # named in the header where a request names none itself
    deltas: bool = True
    body_bytes_max: int = BODY_BYTES_MAX
    timings: Optional[Timings] = None  # where each call's stages are noted


class Relay:
    """Serves one connection, request after request, on the thread that calls :meth:`run`.

    Args:
        sock: the accepted connection; closed when :meth:`run` returns.
        pool: connections to the gateway.
        client: the state of the sending side, shared by all connections.
        options: how requests are read.
        report: told, in a sentence, what an operator should know.
    """

    def __init__(
        self,
        sock: socket.socket,
        pool: Pool,
        client: Client,
        *,
        options: Options,
        report: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._pool = pool
        self._client = client
        self._options = options
        self._report = report
        self._reader = Reader(sock.recv, peer="the harness")
        self._laps: Optional[Laps] = None  # of the request in hand, where it is timed

    def run(self, *, overloaded: bool = False) -> None:
        """Serve until the harness or an abort ends the connection."""
        cut = ""
        try:
            if overloaded:
                self._refuse(503, "overloaded", "Too many connections: close some.")
                return
            while self._serve_one():
                pass
        except Cut as error:
            cut = str(error)
        except (HarnessGone, OSError):
            pass  # the harness closed its connection, or what it was waiting for is gone with it
        finally:
            self._sock.close()
        if cut:
            self._report(cut)

    def _serve_one(self) -> bool:
        """One request; whether another may follow."""
        method = ""
        try:
            head = self._reader.head()
            if head is None:
                return False
            self._laps = Laps() if self._options.timings else None
            request = parse_request(head)
            method = request.method
            framing = request_framing(request)
            return self._answer(request, framing)
        except BadMessage as error:
            message = f"This is not HTTP/1.1: {error}."
            return self._refuse(error.status, "bad_request", message, method=method)

    def _answer(self, request: Request, framing: Framing) -> bool:
        upgrades = header_values(request.headers, "Upgrade")
        if any("websocket" in upgrade.lower() for upgrade in upgrades):
            message = "No websockets here: send plain HTTP requests."
            return self._refuse(426, "upgrade_unsupported", message, method=request.method)
        expects = header_values(request.headers, "Expect")
        if expects and framing.body is not Body.EMPTY and request.minor == 1:
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        rollout, headers = self._outbound(request, framing)
        body = pieces(self._reader, framing)
        start = b""
        if (
            rollout is not None
            and self._options.deltas
            and framing.body is not Body.EMPTY
            and framing.length <= self._options.body_bytes_max
            and is_eligible(request.method, request.headers)
        ):
            start, whole = _collected(body, self._options.body_bytes_max)
            if whole:
                return self._call(request, headers, rollout, start)
        rest = itertools.chain([start] if start else [], body)
        return self._pass(request, framing, headers, rollout=rollout, body=rest)

    def _outbound(self, request: Request, framing: Framing) -> Tuple[Optional[str], Headers]:
        """The rollout that the request names, and the headers that go to the gateway."""
        gateway = self._pool.gateway
        headers = without(end_to_end(request.headers), "Expect")
        headers = replaced(headers, "Host", gateway.authority)
        if framing.body is Body.LENGTH:  # also where Connection named it: the length must travel on
            headers = replaced(headers, "Content-Length", str(framing.length))
        rollout = path_rollout(request.target) or path_rollout(gateway.prefix + request.target)
        if rollout is not None:
            return rollout, headers
        named = header_values(headers, self._options.rollout_header)
        if not named and self._options.rollout is not None:
            named = [self._options.rollout]
            headers.append((self._options.rollout_header, named[0]))
        return (named[0] if len(named) == 1 and is_rollout_id(named[0]) else None), headers

    def _call(self, request: Request, headers: Headers, rollout: str, body: bytes) -> bool:
        """A complete body with an identity: kept, or sent as a frame."""
        lap(self._laps, LOCAL_HOP)
        outgoing = self._client.prepare(self._pool.gateway.origin, rollout, headers, body)
        lap(self._laps, DELTA)
        bytes_sent = 0
        while True:
            bytes_sent += len(outgoing.payload)
            exchange = Exchange(self._pool, request.method, self._sock)
            try:
                head = self._written(request, outgoing.headers)
                lap(self._laps, OTHER)
                exchange.begin([head, outgoing.payload])
                answer = exchange.read_head()
                looked: Optional[_Looked] = None
                if wants_body(outgoing, answer.status, answer.headers):
                    looked = _looked_at(exchange)
                lap(self._laps, WAIT)
                seen = looked.start if looked is not None and looked.whole else b""
                step = self._client.settle(outgoing, answer.status, answer.headers, seen)
                lap(self._laps, DELTA)
                if isinstance(step, Deliver):
                    self._note(
                        rollout,
                        outgoing.sent.value,
                        sha=outgoing.target.sha,
                        bytes_full=len(body),
                        bytes_sent=bytes_sent,
                    )
                    answer = answer._replace(headers=step.headers)
                    return self._deliver(request, answer, exchange, looked=looked)
                if isinstance(step, Abort):
                    raise Cut(f"rollout {rollout}: {step.reason}; the connection is aborted")
                outgoing = step.outgoing
                if looked is None and exchange.framing.body is Body.LENGTH:
                    with contextlib.suppress(Cut):  # read only so that the connection lives on
                        _looked_at(exchange)
                lap(self._laps, WAIT)
            except GatewayUnreachable as error:
                return self._unreachable(request, error, last=not request.keeps_alive)
            finally:
                exchange.close()

    def _pass(
        self,
        request: Request,
        framing: Framing,
        headers: Headers,
        *,
        rollout: Optional[str],
        body: Iterator[bytes],
    ) -> bool:
        """Everything else: as it came, piece by piece."""
        if framing.body is Body.CHUNKED:
            headers = [*headers, ("Transfer-Encoding", "chunked")]
        buffers = [self._written(request, headers)]
        if framing.body is Body.LENGTH and framing.length <= _ONE_WRITE_BYTES:
            buffers += body
        size = sum(map(len, buffers[1:]))
        lap(self._laps, LOCAL_HOP)
        exchange = Exchange(self._pool, request.method, self._sock)
        try:
            exchange.begin(buffers)
            for piece in body:
                if exchange.answered_early:
                    break
                size += len(piece)
                exchange.write(_framed(piece, chunked=framing.body is Body.CHUNKED))
            if framing.body is Body.CHUNKED:
                exchange.write([b"0\r\n\r\n"])
            if rollout is not None and request.method == "POST":
                self._client.tally(rollout, bytes_sent=size, bytes_full=size)
            answer = exchange.read_head()
            lap(self._laps, WAIT)
            unmarked = passed_on(request.headers, answer.status, answer.headers)
            if unmarked is None:
                raise Cut("the gateway asked for a body that it has; the connection is aborted")
            answer = answer._replace(headers=unmarked)
            self._note(rollout, "passed", sha=None, bytes_full=size, bytes_sent=size)
            if not exchange.answered_early:
                return self._deliver(request, answer, exchange)
            self._deliver(request, answer, exchange, last=True)
            exchange.close()
            linger(self._sock)
            return False
        except GatewayUnreachable as error:
            unread = framing.body is not Body.EMPTY and len(buffers) == 1
            last = not request.keeps_alive or unread
            return self._unreachable(request, error, last=last)
        finally:
            exchange.close()

    def _deliver(
        self,
        request: Request,
        answer: Response,
        exchange: Exchange,
        *,
        looked: Optional["_Looked"] = None,
        last: bool = False,
    ) -> bool:
        """Hand an answer on as it arrives; whether another request may follow.

        *looked* is its body where that was looked at already.
        """
        kind = exchange.framing.body
        unsized = kind in {Body.CHUNKED, Body.CLOSE}
        chunked = unsized and request.minor == 1
        headers = end_to_end(answer.headers)
        if kind is Body.LENGTH:
            headers = replaced(headers, "Content-Length", str(exchange.framing.length))
        elif chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        goes_on = request.keeps_alive and not last and (chunked or not unsized)
        if not goes_on:
            headers.append(("Connection", "close"))
        head = written_head(f"HTTP/1.1 {answer.status} {answer.reason}", headers)
        body = exchange.body() if looked is None else looked.pieces()
        try:
            if kind is Body.LENGTH and (exchange.buffered or (looked and looked.start)):
                head += next(body, b"")  # one packet instead of two
            lap(self._laps, OTHER)
            self._sock.sendall(head)
            lap(self._laps, LOCAL_HOP)
            for piece in body:
                self._sock.sendall(b"".join(_framed(piece, chunked=chunked)))
            if chunked:
                self._sock.sendall(b"0\r\n\r\n")
        except BaseException:
            # Closing says it where the last chunk, or a part of the length, is missing.
            if unsized and not chunked:
                reset_when_closed(self._sock)
            raise
        finally:
            if self._laps is not None and self._options.timings is not None:
                self._options.timings.write(self._laps, answer.headers)
        return goes_on

    def _note(
        self,
        rollout: Optional[str],
        sent: str,
        *,
        sha: Optional[str],
        bytes_full: int,
        bytes_sent: int,
    ) -> None:
        """What stands in the line of a call that is timed."""
        if self._laps is not None:
            self._laps.line = {
                "rollout": rollout,
                "sent": sent,
                "sha256": sha,
                "bytes_full": bytes_full,
                "bytes_sent": bytes_sent,
            }

    def _written(self, request: Request, headers: Headers) -> bytes:
        target = self._pool.gateway.prefix + request.target
        return written_head(f"{request.method} {target} HTTP/1.1", headers)

    def _unreachable(self, request: Request, error: GatewayUnreachable, *, last: bool) -> bool:
        gateway = self._pool.gateway
        message = f"The gateway at {gateway.origin} cannot be reached: {error}. Nothing was sent."
        try:
            say(self._sock, 502, "gateway_unreachable", message, method=request.method, last=last)
        finally:
            self._report(message)
        if last:
            linger(self._sock)
        return not last

    def _refuse(self, status: int, code: str, message: str, *, method: str = "") -> bool:
        """Answer for ourselves and end the connection; always False, for the caller to return."""
        say(self._sock, status, code, message, method=method, last=True)
        linger(self._sock)
        return False


def _framed(piece: bytes, *, chunked: bool) -> List[bytes]:
    return [b"%x\r\n" % len(piece), piece, b"\r\n"] if chunked else [piece]


def _collected(body: Iterator[bytes], bytes_max: int) -> Tuple[bytes, bool]:
    """The body, or its beginning once there is too much; and whether it is all of it."""
    start = bytearray()  # not the pieces: tiny ones would cost many times their bytes
    for piece in body:
        start += piece
        if len(start) > bytes_max:
            return bytes(start), False
    return bytes(start), True


class _Looked(NamedTuple):
    """A body whose beginning was read."""

    start: bytes
    rest: Iterator[bytes]
    whole: bool  # nothing is left

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        return itertools.chain([self.start] if self.start else [], self.rest)


def _looked_at(exchange: Exchange) -> _Looked:
    """The body where it is short; of one that is long as much as it took to see that.

    Raises:
        Cut, HarnessGone: as :meth:`Exchange.body`.
    """
    body, held, size = exchange.body(), [], 0
    if exchange.framing.body is not Body.LENGTH or exchange.framing.length <= SHORT_BYTES:
        for piece in body:
            held.append(piece)
            size += len(piece)
            if size > SHORT_BYTES:
                break
        else:
            return _Looked(b"".join(held), iter(()), whole=True)
    return _Looked(b"".join(held), body, whole=False)
