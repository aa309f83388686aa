# SPDX-License-Identifier: Apache-2.0
"""What the sending side does with a request and with its answer. Pure: no I/O, time comes in.

S1: a resync leads to one full resend and is never handed on. S4: frames are sent only to an origin
that said ``kept=``, and they stop when it shows that it does not understand them. S5: where making
a frame fails, the full body goes. A base is used only after ``kept=`` named it.

The caller sends what :meth:`Client.prepare` returns, gives the head of the answer to
:meth:`Client.settle`, and obeys: hand it on, send another request in its place, or abort. Both are
synchronous and take a lock only for the state, so that threads and event loops can call them.
"""

import contextlib
import json
import threading
from collections import OrderedDict
from typing import Callable, Dict, List, NamedTuple, Optional, Union

from rollout_router.transport.sandbox.bases import Base, RecentBases, closest
from rollout_router.transport.sandbox.frame import encode_frame, undeflated_bytes
from rollout_router.transport.sandbox.origins import Link, Origin
from rollout_router.transport.sandbox.transitions import (
    FRAMES,
    TRANSITIONS,
    Decision,
    Effect,
    Sent,
    Signal,
)
from rollout_router.transport.sandbox.wire import (
    CONTENT_TYPE,
    EMPTY_SHA256,
    HISTORY_HEADER,
    KEEP,
    KEPT,
    NONE,
    RESYNC,
    Headers,
    header_values,
    history_mark,
    is_delta_type,
    replaced,
    sha256_hex,
    without,
)

__all__ = [
    "BASES_BYTES_MAX",
    "BODY_BYTES_MAX",
    "SHORT_BYTES",
    "TRANSITIONS",
    "Abort",
    "Client",
    "Decision",
    "Deliver",
    "Effect",
    "Link",
    "Outgoing",
    "ResendFull",
    "Sent",
    "Signal",
    "Tally",
    "is_eligible",
    "wants_body",
]

BASES_BYTES_MAX = 64 * 1024 * 1024  # a sandbox has one rollout: four bodies of several megabytes
BODY_BYTES_MAX = 64 * 1024 * 1024  # above it a body is streamed, and never kept or sent as a frame
SHORT_BYTES = 65_536  # an answer that is not handed on is read to its end up to here
_ORIGINS_MAX = 256
_TALLIES_MAX = 4_096


class Outgoing(NamedTuple):
    """One request to send: the headers are whole, Content-Length included."""

    sent: Sent
    headers: Headers
    payload: bytes
    origin: str
    rollout: str
    target: Base  # the body that the harness wrote
    original: Headers  # the headers that it came with
    bytes_plain: int  # of the payload, had it not been compressed
    base: Optional[str] = None  # sha256 hex of what a frame copies from


class Deliver(NamedTuple):
    """Hand the answer on, with these headers: the mark is gone."""

    headers: Headers


class ResendFull(NamedTuple):
    """Drop the answer, nothing of it was for the harness, and send this in its place."""

    outgoing: Outgoing


class Abort(NamedTuple):
    """Drop the answer and abort the harness's connection."""

    reason: str


class Tally(NamedTuple):
    """What one rollout has sent; bytes are of request bodies."""

    calls: int
    bytes_sent: int  # what went over the wire, resends included
    bytes_plain: int  # what would have gone with deflate off: the same requests, not compressed
    bytes_full: int  # what the harness wrote
    resyncs: int


def is_eligible(method: str, headers: Headers) -> bool:
    """Whether a request that names a rollout may be kept or sent as a frame.

    Not one that is encoded, that has no single type, or that speaks about history itself: then
    another client of this kind sits before this one, and the marks are for it.
    """
    types = header_values(headers, "Content-Type")
    return (
        method == "POST"
        and not header_values(headers, "Content-Encoding")
        and not header_values(headers, HISTORY_HEADER)
        and len(types) <= 1
        and not any(map(is_delta_type, types))
    )


def wants_body(outgoing: Outgoing, status: int, headers: Headers) -> bool:
    """Whether :meth:`Client.settle` must see the answer's body, some hundred bytes, to decide."""
    return (
        outgoing.sent in FRAMES
        and status == 400  # noqa: PLR2004 - the status of delta_malformed
        and history_mark(headers) == NONE
    )


class Client:
    """The state of one sending process, for all its origins and rollouts. Safe for threads.

    Args:
        clock: monotonic seconds.
        bases_bytes_max: of all remembered bodies together.
        deflate: whether inserted bytes are compressed where that is shorter.
        on_failure: told when a frame could not be made; the full body goes instead (S5), also
            where telling fails. Must not block.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        bases_bytes_max: int = BASES_BYTES_MAX,
        deflate: bool = True,
        on_failure: Optional[Callable[[Exception], None]] = None,
    ) -> None:
        self._clock = clock
        self._deflate = deflate
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._origins: OrderedDict[str, Origin] = OrderedDict()
        self._bases = RecentBases(bytes_max=bases_bytes_max)
        self._tallies: OrderedDict[str, Tally] = OrderedDict()

    def link(self, origin: str) -> Link:
        """What is known of *origin* now."""
        with self._lock:
            return self._origin(origin).link

    def prepare(self, origin: str, rollout: str, headers: Headers, body: bytes) -> Outgoing:
        """Decide how an eligible request goes out.

        Args:
            origin: scheme, host and port of the other side.
            rollout: the id that the request names.
            headers: end-to-end headers as the harness sent them.
            body: the whole body that the harness wrote.
        """
        with self._lock:
            link = self._origin(origin).link
            bases = self._bases.of(origin, rollout)
        target = Base(sha256_hex(body), body)
        sent = Sent.PLAIN if link is Link.OFF else Sent.FULL
        whole = Outgoing(sent, headers, body, origin, rollout, target, headers, len(body))
        framed = self._framed(whole, Sent.FRAME, bases) if link is Link.ON else None
        outgoing = _outgoing(framed or whole)
        self._count(outgoing, calls=1, bytes_full=len(body))
        return outgoing

    def settle(
        self, outgoing: Outgoing, status: int, headers: Headers, body: bytes = b""
    ) -> Union[Deliver, ResendFull, Abort]:
        """Decide what becomes of an answer, from its head alone where :func:`wants_body` says so.

        Args:
            outgoing: the request that was answered.
            status: of the answer, a final one.
            headers: of the answer.
            body: of the answer, where it is wanted; its beginning is enough.
        """
        signal = _signal(outgoing, status, headers, body)
        decision, effect = TRANSITIONS[outgoing.sent, signal]
        with self._lock:
            link = self._change(outgoing, effect)
        if decision is Decision.DELIVER:
            return Deliver(without(headers, HISTORY_HEADER))
        if decision is Decision.ABORT:
            return Abort(f"{outgoing.sent.value} request answered {status}, {signal.value}")
        body = outgoing.target.body
        packed: Optional[Outgoing] = None
        if decision is Decision.PACK and link is not Link.OFF and outgoing.base != EMPTY_SHA256:
            packed = self._framed(outgoing, Sent.PACKED, [])
        sent = Sent.PLAIN if link is Link.OFF else Sent.RESENT
        whole = outgoing._replace(sent=sent, payload=body, bytes_plain=len(body), base=None)
        again = _outgoing(packed or whole)
        self._count(again, resyncs=signal is Signal.RESYNC)
        return ResendFull(again)

    def tally(self, rollout: str, *, bytes_sent: int, bytes_full: int) -> None:
        """Count one call. :meth:`prepare` does it for its own; what passes through is told here."""
        self._add(rollout, Tally(1, bytes_sent, bytes_sent, bytes_full, 0))

    def statistics(self) -> Dict[str, Tally]:
        """What each rollout has sent so far; of the 4,096 rollouts that called last."""
        with self._lock:
            return dict(self._tallies)

    def _origin(self, name: str) -> Origin:
        origin = self._origins.pop(name, None) or Origin()
        self._origins[name] = origin
        if len(self._origins) > _ORIGINS_MAX:
            oldest, _ = self._origins.popitem(last=False)
            self._bases.forget_origin(oldest)
        origin.pass_time(self._clock())
        return origin

    def _change(self, outgoing: Outgoing, effect: Effect) -> Link:
        origin = self._origin(outgoing.origin)
        if origin.link is Link.OFF:
            return origin.link  # what was under way when it went off changes nothing
        name, rollout = outgoing.origin, outgoing.rollout
        off = effect is Effect.OFF
        if effect in {Effect.LEARN, Effect.PROVE}:
            origin.turn_on()
            self._bases.add(name, rollout, outgoing.target)
        if effect is Effect.PROVE:
            origin.prove(rollout)
        if effect is Effect.FORGET and self._holds(outgoing):
            # An owner that lost one base has mostly lost all: the others would be refused too.
            # Parallel calls learn of the same loss; the first one that comes back counts for all.
            self._bases.forget(name, rollout)
            off = origin.count_resync(rollout)
        if off:
            origin.turn_off(self._clock())
            self._bases.forget_origin(name)
        return origin.link

    def _holds(self, outgoing: Outgoing) -> bool:
        """Whether the frame's base could still be used; the empty one always."""
        held = self._bases.of(outgoing.origin, outgoing.rollout)
        return outgoing.base in {EMPTY_SHA256, *(base.sha for base in held)}

    def _framed(self, outgoing: Outgoing, sent: Sent, bases: List[Base]) -> Optional[Outgoing]:
        """The same request as a frame, on the empty base where there are none; None: in full."""
        types = header_values(outgoing.original, "Content-Type")
        target = outgoing.target
        try:
            base, delta = closest(bases, target.body)
            frame = encode_frame(
                base.sha,
                target.body,
                base.body,
                content_type=types[0] if types else None,
                deflate=self._deflate,
                target_sha=target.sha,
                known=delta,
            )
        except Exception as error:  # noqa: BLE001 - S5: whatever fails here, the full body goes
            if self._on_failure is not None:
                with contextlib.suppress(Exception):  # S5 holds for the telling as well
                    self._on_failure(error)
            return None
        if frame is None:
            return None
        plain = min(undeflated_bytes(frame, len(delta.inserted)), len(target.body))
        return outgoing._replace(sent=sent, payload=frame, base=base.sha, bytes_plain=plain)

    def _count(
        self, outgoing: Outgoing, *, calls: int = 0, bytes_full: int = 0, resyncs: int = 0
    ) -> None:
        sent = len(outgoing.payload), outgoing.bytes_plain
        self._add(outgoing.rollout, Tally(calls, *sent, bytes_full, resyncs))

    def _add(self, rollout: str, more: Tally) -> None:
        with self._lock:
            old = self._tallies.pop(rollout, Tally(0, 0, 0, 0, 0))
            self._tallies[rollout] = Tally(*map(sum, zip(old, more)))
            if len(self._tallies) > _TALLIES_MAX:
                self._tallies.popitem(last=False)


def _outgoing(outgoing: Outgoing) -> Outgoing:
    """Complete the headers for what is sent."""
    headers = replaced(outgoing.original, "Content-Length", str(len(outgoing.payload)))
    if outgoing.sent in FRAMES:
        headers = replaced(headers, "Content-Type", CONTENT_TYPE)
    elif outgoing.sent is not Sent.PLAIN:
        headers.append((HISTORY_HEADER, KEEP))
    return outgoing._replace(headers=headers)


def _signal(outgoing: Outgoing, status: int, headers: Headers, body: bytes) -> Signal:
    mark = history_mark(headers)
    if mark == KEPT + outgoing.target.sha:
        return Signal.KEPT
    if mark == RESYNC and status == 409:  # noqa: PLR2004 - the status of gym_history_resync
        return Signal.RESYNC
    if mark == NONE:
        malformed = wants_body(outgoing, status, headers) and _code(body) == "delta_malformed"
        return Signal.MALFORMED if malformed else Signal.NONE
    if 200 <= status < 300:  # noqa: PLR2004 - success
        return Signal.OK
    return Signal.REFUSED if status in {400, 404, 415, 422} else Signal.OTHER


def _code(body: bytes) -> Optional[str]:
    """The error code of an answer in the OpenAI form; None of anything else."""
    try:
        code = json.loads(body.decode("utf-8"))["error"]["code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return code if isinstance(code, str) else None
