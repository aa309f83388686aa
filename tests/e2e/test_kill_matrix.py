# SPDX-License-Identifier: Apache-2.0
"""A worker is killed at each point of a forwarded call: the whole matrix (R2, R4, C3, F2).

What a client can know, whatever was killed and when:

* A whole answer: the application ran once, and the record was there before the last byte.
* 503 or 409: nothing ran. It may send again.
* 502 or 504: it may have run, and nobody will send it again. A record is there only where the call
  had come to its end, or was cancelled.
* A connection that ended before a byte came: as 502, told by nobody.
* A connection that ended within an answer: the application ran, and this turn has no end. No answer
  looks whole that is not.

What it cannot know: in the last three, whether the application ran to its end; and of two workers
which one died. It need not: the next call, on a fresh connection, is answered in every cell; under
a higher claim epoch and without earlier bases where the owner died, else as if nothing had been.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.conversations import FRAME_HEADERS, body_of, conversation, digest, frame
from support.gateway import connections, kept, open_files, stopped, wait_until
from support.pinned import NOTHING, PART, Pair, Service, request, served

from rollout_router.routing.forward import HELD_BODY_BYTES_MAX

SMALL = body_of(conversation(2))
LONG = body_of(conversation(2), pad="x" * (2 * HELD_BODY_BYTES_MAX))
SENT_BYTES = HELD_BODY_BYTES_MAX + 100_000  # of a long one: more than its forwarder holds

EVENTS = {"content-type": "text/event-stream"}
DELTA = 'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
STOP = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
CHUNKS = {"content-type": "text/plain"}
SIZED = {"content-type": "text/plain", "content-length": "10"}
JSON = {"content-type": "application/json"}  # leaves when it is recorded, and not before


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served() as service:
        yield service


class Scene(Pair):
    """A pair, and a client that calls by way of the forwarder."""

    def __init__(self, service: Service, rollout_id: str) -> None:
        super().__init__(service, rollout_id)
        self.client, self.body = self.pin(self.forwarder), SMALL

    def send(self, first: int = 0, last: int | None = None) -> None:
        """Bytes *first* to *last* of the body; the head before the first."""
        whole = request(self.id, self.body)
        head_bytes = len(whole) - len(self.body)
        self.client.send(
            whole[head_bytes + first if first else 0 : None if last is None else head_bytes + last]
        )

    def wait_connected(self) -> None:
        wait_until(lambda: connections(self.socket) > 0, "the forwarder has connected")

    @contextmanager
    def sink_locked(self) -> Iterator[Callable[[], None]]:
        """The sink of this rollout is locked; gives a wait until the owner is at the lock."""
        fence = self.gateway.capture_dir / ".fence" / f"{self.id}.epoch"
        with fence.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield lambda: wait_until(
                lambda: str(fence) in open_files(self.owner), "the owner is at the sink"
            )

    def records(self) -> list[dict[str, Any]]:
        """The records of the call."""
        if not (self.gateway.capture_dir / f"{self.id}.jsonl").exists():
            return []
        sha256 = digest(self.body)
        return [r for r in self.gateway.records(self.id) if r["request_sha256"] == sha256]


Point = Callable[[Scene], AbstractContextManager[None]]


@contextmanager
def before_connect(scene: Scene) -> Iterator[None]:
    yield
    scene.send()


@contextmanager
def before_connect_kept(scene: Scene) -> Iterator[None]:
    """The forwarder has a connection to its owner, of an earlier call."""
    scene.client.ask(request(scene.id, b"{}"))
    assert connections(scene.socket) == 1
    yield
    scene.send()


@contextmanager
def after_connect(scene: Scene) -> Iterator[None]:
    """The whole request was written to a stopped owner, which has not accepted."""
    with stopped(scene.owner):
        scene.send()
        scene.wait_connected()
        scene.to_forwarder.pass_through()
        yield


@contextmanager
def half_a_small_body(scene: Scene) -> Iterator[None]:
    scene.send(last=100)
    scene.to_forwarder.pass_through()
    yield
    scene.send(first=100)


@contextmanager
def before_100(scene: Scene) -> Iterator[None]:
    """A long body waits for a stopped owner to ask for it."""
    scene.body = LONG
    with stopped(scene.owner):
        scene.send(last=SENT_BYTES)
        scene.wait_connected()
        scene.to_forwarder.pass_through()
        yield
    scene.send(first=SENT_BYTES)


@contextmanager
def after_100(scene: Scene) -> Iterator[None]:
    scene.body = LONG
    scene.send(last=SENT_BYTES)
    scene.wait_connected()
    scene.to_owner.pass_through()
    scene.to_forwarder.pass_through()
    yield


@contextmanager
def after_the_body(scene: Scene) -> Iterator[None]:
    """The owner has the body and raises its sink; the application has not begun."""
    with scene.sink_locked() as wait:
        scene.send()
        wait()
        yield
        if scene.owner not in scene.dead:
            scene.to_owner.pass_through()  # it sees the end of its forwarder before it goes on


@contextmanager
def before_the_first_byte(scene: Scene) -> Iterator[None]:
    scene.control.hold(scene.id)
    scene.send()
    call = scene.control.next_call(scene.id)
    yield
    call.wait_gone()


def within(headers: dict[str, str], part: str, seen: str) -> Point:
    """The application has sent *part*, and the client has *seen* what may leave of it."""

    @contextmanager
    def point(scene: Scene) -> Iterator[None]:
        scene.control.hold(scene.id)
        scene.send()
        call = scene.control.next_call(scene.id)
        call.begin(headers=headers)
        call.send(part)
        assert scene.client.read(len(seen)) == seen.encode()
        yield
        call.wait_gone()

    return point


def at_the_record(headers: dict[str, str], part: str, end: str, seen: str) -> Point:
    """The application has ended its answer, and its record is being written."""

    @contextmanager
    def point(scene: Scene) -> Iterator[None]:
        scene.control.hold(scene.id)
        scene.send()
        call = scene.control.next_call(scene.id)
        with scene.sink_locked() as wait:
            call.begin(headers=headers)
            call.send(part)
            call.send(end)
            call.end()
            if seen:
                assert scene.client.read(len(seen)) == seen.encode()
            wait()
            yield

    return point


def after_the_last(headers: dict[str, str], *parts: str) -> Point:
    @contextmanager
    def point(scene: Scene) -> Iterator[None]:
        scene.control.hold(scene.id)
        scene.send()
        call = scene.control.next_call(scene.id)
        call.begin(headers=headers)
        for part in parts:
            call.send(part)
        call.end()
        whole = "".join(parts).encode()
        assert scene.client.read(len(whole) + 1) == whole  # and the end, which follows by itself
        yield

    return point


within_events = within(EVENTS, DELTA, DELTA)
within_chunks = within(CHUNKS, "abcde", "abcd")
within_length = within(SIZED, "abcde", "abcd")
last_event = at_the_record(EVENTS, DELTA, STOP, DELTA)
last_byte = at_the_record(SIZED, "abcde", "fghij", "abcdefghi")
whole_json = at_the_record(JSON, "{", "}", "")
all_events = after_the_last(EVENTS, DELTA, STOP)
all_bytes = after_the_last(SIZED, "abcde", "fghij")

WHOLE, LOST = "200", "502 owner_lost_in_flight"
NONE, DONE, CANCELLED, ANY = {None}, {"completed"}, {"cancelled"}, {None, "cancelled"}
KEPT, RESYNC, EITHER = {200}, {409}, {200, 409}


@dataclass(frozen=True)
class Cell:
    """One kill, and all that follows from it."""

    killed: str
    when: str
    point: Point
    client_sees: str
    app_ran: set[int]
    record: set[str | None] | set[str] | set[None]  # its outcome
    next_delta: set[int]  # status of a delta on the body of this call, over a fresh connection


CELLS = [
    # killed, when,                      point, client sees, app ran, record, next delta
    Cell("owner", "before connect", before_connect, WHOLE, {1}, DONE, KEPT),
    Cell("owner", "before connect, kept", before_connect_kept, WHOLE, {1}, DONE, KEPT),
    Cell("owner", "after connect", after_connect, LOST, {0}, NONE, RESYNC),
    Cell("owner", "within a small body", half_a_small_body, WHOLE, {1}, DONE, KEPT),
    Cell("owner", "within a long body, unasked", before_100, WHOLE, {1}, DONE, KEPT),
    Cell("owner", "within a long body, asked", after_100, LOST, {0}, NONE, RESYNC),
    Cell("owner", "after the body", after_the_body, LOST, {0}, NONE, RESYNC),
    Cell("owner", "before the first byte", before_the_first_byte, LOST, {1}, NONE, RESYNC),
    Cell("owner", "within events", within_events, PART, {1}, NONE, RESYNC),
    Cell("owner", "within chunks", within_chunks, PART, {1}, NONE, RESYNC),
    Cell("owner", "within a length", within_length, PART, {1}, NONE, RESYNC),
    Cell("owner", "before the last event", last_event, PART, {1}, NONE, RESYNC),
    Cell("owner", "before the last byte", last_byte, PART, {1}, NONE, RESYNC),
    Cell("owner", "before all of a JSON", whole_json, LOST, {1}, NONE, RESYNC),
    Cell("owner", "after the last event", all_events, WHOLE, {1}, DONE, RESYNC),
    Cell("owner", "after the last byte", all_bytes, WHOLE, {1}, DONE, RESYNC),
    Cell("forwarder", "before connect", before_connect, NOTHING, {0}, NONE, RESYNC),
    # The owner finds the request and the end of its connection at once.
    Cell("forwarder", "after connect", after_connect, NOTHING, {0, 1}, ANY, EITHER),
    Cell("forwarder", "within a small body", half_a_small_body, NOTHING, {0}, NONE, RESYNC),
    Cell("forwarder", "within a long body, unasked", before_100, NOTHING, {0}, NONE, RESYNC),
    Cell("forwarder", "within a long body, asked", after_100, NOTHING, {0}, NONE, RESYNC),
    Cell("forwarder", "after the body", after_the_body, NOTHING, {0}, NONE, KEPT),
    Cell(
        "forwarder", "before the first byte", before_the_first_byte, NOTHING, {1}, CANCELLED, KEPT
    ),
    Cell("forwarder", "within events", within_events, PART, {1}, CANCELLED, KEPT),
    Cell("forwarder", "within a length", within_length, PART, {1}, CANCELLED, KEPT),
    Cell("forwarder", "before the last event", last_event, PART, {1}, DONE, KEPT),
    Cell("forwarder", "before all of a JSON", whole_json, NOTHING, {1}, DONE, KEPT),
    Cell("forwarder", "after the last event", all_events, WHOLE, {1}, DONE, KEPT),
    Cell("forwarder", "after the last byte", all_bytes, WHOLE, {1}, DONE, KEPT),
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.killed} {cell.when}")
def test_r2_r4_f2_of_a_forwarded_call_whose_worker_is_killed(service: Service, cell: Cell) -> None:
    with closing(Scene(service, f"r{CELLS.index(cell)}")) as scene:
        victim = scene.owner if cell.killed == "owner" else scene.forwarder
        with cell.point(scene):
            scene.kill(victim)
        assert scene.client.outcome() == cell.client_sees
        if cell.client_sees == WHOLE:
            assert [record["response"].encode() for record in scene.records()] == [
                scene.client.seen
            ]
        if cell.killed == "forwarder":
            scene.to_owner.pass_through()
        ran = scene.ran(scene.body)
        assert ran in cell.app_ran
        scene.control.unhold(scene.id)
        assert_the_next_call_is_answered(scene, cell)
        assert scene.ran(scene.body) == ran
        if None not in cell.record:  # of a cancelled call it may come beside the call that follows
            wait_until(lambda: bool(scene.records()), "the call is recorded")
        outcomes = [record["outcome"] for record in scene.records()] or [None]
        assert outcomes in [[outcome] for outcome in cell.record]


def assert_the_next_call_is_answered(scene: Scene, cell: Cell) -> None:
    """On a fresh connection; where a delta cannot be rebuilt, by the resend of its whole body."""
    target = scene.body + b" "
    delta = frame(scene.body, target)
    answer = scene.gateway.post(scene.id, delta, keep=False, headers=FRAME_HEADERS)
    assert answer.status_code in cell.next_delta
    if answer.status_code == 409:
        assert answer.headers["rollout-history"] == "resync"
        answer = scene.gateway.post(scene.id, target)
    assert (answer.status_code, kept(answer)) == (200, digest(target))
    epoch = int(answer.headers["rollout-claim-epoch"])
    assert epoch > scene.epoch if cell.killed == "owner" else epoch == scene.epoch
