# SPDX-License-Identifier: Apache-2.0
"""Conversations of any course, over a sending side and a server of one page: the laws hold.

The server keeps a few bases, loses some, and refuses what it likes. It is written from
docs/wire.md, and knows nothing of the client.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.client import (
    Abort,
    Client,
    Deliver,
    Link,
    Outgoing,
    ResendFull,
    Sent,
)
from rollout_router.transport.sandbox.delta import apply, encode
from rollout_router.transport.sandbox.frame import parse_frame, rebuild

ORIGIN = "http://gateway"
OPENING = b'{"messages":[{"role":"system","content":"' + b"be brief, and exact; " * 30 + b'"}]}'
everyday = settings(deadline=None, max_examples=30)
thorough = settings(deadline=None, max_examples=2_000)


class Edit(NamedTuple):
    """What happens to a body between two calls; places count modulo its length."""

    kind: str
    at: int
    size: int
    to: int
    text: bytes

    def of(self, body: bytes) -> bytes:
        at = self.at % (len(body) + 1)
        part, rest = body[at : at + self.size], body[:at] + body[at + self.size :]
        to = self.to % (len(rest) + 1)
        return {
            "insert": body[:at] + self.text + body[at:],
            "delete": rest,
            "replace": body[:at] + self.text + body[at + self.size :],
            "move": rest[:to] + part + rest[to:],
            "duplicate": body[:to] + part + body[to:],
        }[self.kind]


def edits() -> st.SearchStrategy[Edit]:
    place = st.integers(0, 3_000)
    item = st.integers(0, 99).map(
        lambda n: b'{"role":"tool","content":"%b"},' % (b"line %d " % n * n)
    )
    kinds = st.sampled_from(["insert", "delete", "replace", "move", "duplicate"])
    return st.builds(Edit, kinds, place, st.integers(0, 900), place, item | st.binary(max_size=40))


def check_chain(chain: list[Edit]) -> None:
    body = OPENING
    for edit in chain:
        base, body = body, edit.of(body)
        assert apply(base, *encode(base, body)) == body


@everyday
@given(chain=st.lists(edits(), max_size=12))
def test_d1_holds_along_any_chain_of_edits(chain: list[Edit]) -> None:
    check_chain(chain)


@pytest.mark.long
@thorough
@given(chain=st.lists(edits(), max_size=40))
def test_d1_holds_along_any_long_chain_of_edits(chain: list[Edit]) -> None:
    check_chain(chain)


class Answer(NamedTuple):
    status: int
    mark: str | None = None
    body: bytes = b""

    @property
    def headers(self) -> wire.Headers:
        return [] if self.mark is None else [(wire.HISTORY_HEADER, self.mark)]


MALFORMED = Answer(400, wire.NONE, b'{"error":{"code":"delta_malformed"}}')
REFUSALS = {
    **{str(status): Answer(status) for status in (400, 404, 409, 410, 415, 422, 500, 503)},
    "none": Answer(503, wire.NONE),
    "resync": Answer(409, wire.RESYNC),  # whatever came: a server that breaks the rules
    "malformed": MALFORMED,
}
MOODS = ["well"] * 12 + ["forgets", "loses one", "off"] + list(REFUSALS)


@dataclass
class Server:
    """Keeps three bodies of a rollout; what ran is in ``ran``."""

    bases: dict[str, OrderedDict[str, bytes]] = field(default_factory=dict)
    ran: list[bytes] = field(default_factory=list)

    def answer(self, outgoing: Outgoing, mood: str) -> Answer:
        headers, payload = outgoing.headers, outgoing.payload
        assert wire.header_values(headers, "Content-Length") == [str(len(payload))]
        framed = any(map(wire.is_delta_type, wire.header_values(headers, "Content-Type")))
        held = self.bases.setdefault(outgoing.rollout, OrderedDict())
        if mood == "forgets":
            held.clear()
        if mood == "loses one" and held:
            held.popitem()
        if mood in REFUSALS:
            return REFUSALS[mood]
        if mood == "off" and framed:
            return Answer(415)
        body = payload
        if framed:
            frame = parse_frame(payload, length_max=1 << 20)
            if frame.base not in {wire.EMPTY_SHA256, *held}:
                return Answer(409, wire.RESYNC)
            body = rebuild(frame, held.get(frame.base, b""))
        self.ran.append(body)
        if mood == "off" or not (framed or wire.header_values(headers, wire.HISTORY_HEADER)):
            return Answer(200)
        sha = wire.sha256_hex(body)
        held[sha] = body
        held.move_to_end(sha)
        if len(held) > 3:
            held.popitem(last=False)
        return Answer(200, wire.KEPT + sha)


@dataclass
class Call:
    """One request of a harness that is under way, and what went out for it."""

    body: bytes
    outgoing: Outgoing
    sent: list[Sent]
    answers: list[Answer] = field(default_factory=list)


class Play:
    """Conversations side by side; each event lets one go on by one step."""

    def __init__(self, *, deflate: bool) -> None:
        self.now_s = 0.0
        self.failures: list[Exception] = []
        self.client = Client(
            clock=lambda: self.now_s, deflate=deflate, on_failure=self.failures.append
        )
        self.server = Server()
        self.bodies = [OPENING + b"%d" % number for number in range(4)]
        self.calls: dict[int, Call] = {}

    def step(self, number: int, edit: Edit, mood: str) -> None:
        call = self.calls.get(number)
        if call is None:
            self._begin(number, edit)
        else:
            self._go_on(number, call, mood)

    def _begin(self, number: int, edit: Edit) -> None:
        body = self.bodies[number] = edit.of(self.bodies[number])
        link = self.client.link(ORIGIN)
        rollout = f"r{number // 3}"  # three share one
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        outgoing = self.client.prepare(ORIGIN, rollout, headers, body)
        assert (
            outgoing.sent
            in {
                Link.UNKNOWN: {Sent.FULL},
                Link.ON: {Sent.FULL, Sent.FRAME},
                Link.OFF: {Sent.PLAIN},
            }[link]
        )
        self._check(outgoing, body)
        self.calls[number] = Call(body, outgoing, [outgoing.sent])

    def _go_on(self, number: int, call: Call, mood: str) -> None:
        ran = len(self.server.ran)
        answer = self.server.answer(call.outgoing, mood)
        assert self.server.ran[ran:] in ([], [call.body])
        call.answers.append(answer)
        step = self.client.settle(call.outgoing, answer.status, answer.headers, answer.body)
        if isinstance(step, ResendFull):
            assert len(self.server.ran) == ran, "S3: what ran is not sent again"
            call.outgoing = step.outgoing
            call.sent.append(step.outgoing.sent)
            self._check(step.outgoing, call.body)
            assert step.outgoing.sent in {Sent.PACKED, Sent.RESENT, Sent.PLAIN}
            assert len(call.sent) <= 3
            return
        del self.calls[number]
        resyncs = sum(answer.mark == wire.RESYNC for answer in call.answers)
        if isinstance(step, Deliver):
            assert resyncs <= 1, "S1: one full resend"
            assert answer.mark != wire.RESYNC, "S1: a resync is not handed on"
            assert not wire.header_values(step.headers, wire.HISTORY_HEADER)
        else:
            assert isinstance(step, Abort)
            assert self.client.link(ORIGIN) is Link.OFF

    def finish(self) -> None:
        """The server is well from now on: every conversation comes to its answer, and deltas on."""
        while self.calls:
            number, call = next(iter(self.calls.items()))
            self._go_on(number, call, "well")
        nothing = Edit("insert", 0, 0, 0, b"")
        for number in [*range(4)] * 3:
            self.now_s += 0 if number else 600
            ran = len(self.server.ran)
            self._begin(number, nothing)
            while number in self.calls:
                self._go_on(number, self.calls[number], "well")
            assert self.server.ran[ran:] == [self.bodies[number]]
        assert self.client.link(ORIGIN) is Link.ON

    @staticmethod
    def _check(outgoing: Outgoing, body: bytes) -> None:
        if outgoing.sent in {Sent.FRAME, Sent.PACKED}:
            assert len(outgoing.payload) < len(body), "D3"
            assert outgoing.bytes_plain <= len(body)
        else:
            assert outgoing.payload == body


def play(events: list[tuple[int, Edit, str, float]], *, deflate: bool) -> None:
    conversations = Play(deflate=deflate)
    for number, edit, mood, seconds in events:
        conversations.now_s += seconds
        conversations.step(number, edit, mood)
    conversations.finish()
    assert conversations.failures == []


def courses(events_max: int) -> st.SearchStrategy[list[tuple[int, Edit, str, float]]]:
    event = st.tuples(
        st.integers(0, 3), edits(), st.sampled_from(MOODS), st.sampled_from([0.0] * 5 + [30.0])
    )
    return st.lists(event, max_size=events_max)


@everyday
@given(events=courses(24), deflate=st.booleans())
def test_h1_d3_s1_s3_hold_in_any_course_of_conversations(
    events: list[tuple[int, Edit, str, float]], *, deflate: bool
) -> None:
    play(events, deflate=deflate)


@pytest.mark.long
@thorough
@given(events=courses(120), deflate=st.booleans())
def test_h1_d3_s1_s3_hold_in_any_long_course_of_conversations(
    events: list[tuple[int, Edit, str, float]], *, deflate: bool
) -> None:
    play(events, deflate=deflate)
