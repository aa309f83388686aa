# SPDX-License-Identifier: Apache-2.0
"""What one connection may cost a worker, in bytes, number and time (R2, R4)."""

import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.routing import AppCall, Application, answer, never
from support.wire import HIGH_WATER_BYTES, Server, settle

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.errors import ResponseCut
from rollout_router.routing.gone import GONE_KEY
from rollout_router.routing.limits import TURNED_AWAY_MAX, Limits
from rollout_router.routing.public_protocol import public_protocol
from rollout_router.routing.workers_protocol import LINGER_S, WorkersProtocol
from rollout_router.transport.hop import Body

LINE = b"POST /v1/x HTTP/1.1\r\n"
HOST = b"Host: gym\r\n"
WHOLE = LINE + HOST + b"Content-Length: 2\r\n\r\n{}"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"


class _NobodyElse:
    def begin_hop(self, scope: Scope, body: Body, *, head: bytes | None) -> None:
        _ = scope, body, head

    def begin_again(self, head: bytes, lines: bytes, body: Body) -> None:
        _ = head, lines, body


@pytest.fixture(params=["private", "public"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ports keep the same bounds; here nothing is another worker's."""

    def public(on_lost: Callable[[], None], limits: Limits) -> type[WorkersProtocol]:
        return public_protocol(on_lost, limits, _NobodyElse())

    if request.param == "public":
        monkeypatch.setattr(Server, "kind", staticmethod(public))


@asynccontextmanager
async def serving(app: Any, **limits: Any) -> AsyncIterator[Server]:
    server = Server(app, **limits)
    try:
        yield server
    finally:
        await server.close()
        assert not server.state.tasks
        assert all(timer.cancelled for timer in server.loop.timers)


class Reading:
    """An application that reads its request piece by piece, as the test says."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _ = scope, send
        while not self.got or self.got[-1].get("more_body", False):
            self.got.append(await receive())


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def code_of(answers: bytes) -> str:
    """The code of the one answer, which is ours."""
    head, _, body = answers.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    error = json.loads(body)["error"]
    assert (error["rollout_id"], error["claim_epoch"]) == (None, None)
    code: str = error["code"]
    return code


def head_of(size: int) -> bytes:
    """A head of so many bytes, as they are counted: the target, and the lines of the headers."""
    start = LINE + HOST + b"X: "
    return start + b"x" * (size - len(b"/v1/x" + HOST + b"X: \r\n")) + b"\r\n\r\n"


LARGE: dict[str, tuple[bytes, bytes, int, str]] = {
    "bytes": (head_of(2000), head_of(2001), 431, "request_head_too_large"),
    "headers": (
        LINE + HOST * 8 + b"\r\n",
        LINE + HOST * 9 + b"\r\n",
        431,
        "request_head_too_large",
    ),
    "a target": (
        b"GET /" + b"a" * 99 + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 100 + b" HTTP/1.1\r\n\r\n",
        414,
        "request_target_too_long",
    ),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("piece", [1, 7, 100_000])
async def test_a_head_has_a_bound_however_it_comes(name: str, piece: int) -> None:
    fits, too_large, status, code = LARGE[name]
    app = Application()
    bounds = {"head_bytes_max": 2000, "headers_max": 8, "target_bytes_max": 100}
    async with serving(app, **bounds) as server:
        for raw, expected in ((fits, 200), (too_large, status)):
            client = server.connect()
            for at in range(0, len(raw), piece):
                await client.write(raw[at : at + piece])
            assert statuses(client.answers) == [expected]
    assert code_of(client.answers) == code
    assert len(app.calls) == 1


ENDLESS = {
    "a line of a header": (LINE + b"X: ", b"x" * 500),
    "a name": (LINE, b"x" * 500),
    "a target": (b"GET /", b"x" * 500),
    "headers": (LINE, b"X: y\r\n" * 50),
    "empty lines": (b"", b"\r\n" * 250),
    "a chunk extension": (CHUNKED + b"2;", b"x" * 500),
    "a trailer": (CHUNKED + b"0\r\nX: ", b"x" * 500),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 50),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_what_is_no_body_cannot_go_on_for_ever(name: str) -> None:
    start, more = ENDLESS[name]
    async with serving(Reading(), head_bytes_max=2000) as server:
        client = server.connect()
        await client.write(start)
        for _ in range(8):
            await client.write(more)
    assert client.ended
    assert statuses(client.answers) in ([431], [414])


async def test_a_body_of_any_length_and_any_chunks_is_no_framing() -> None:
    app = Application()
    async with serving(app, head_bytes_max=200) as server:
        client = server.connect()
        await client.write(CHUNKED)
        for _ in range(1000):
            await client.write(b"1\r\nx\r\n")
        await client.write(b"0\r\n\r\n")
        assert statuses(client.answers) == [200]
    assert app.calls[0].body == b"x" * 1000


async def test_r2_a_trailer_adds_nothing_to_a_request() -> None:
    app = Application()
    async with serving(app) as server:
        client = server.connect()
        await client.write(CHUNKED + b"0\r\nX-Session-ID: r2\r\nRollout-Hop: 1\r\n\r\n")
    assert app.calls[0].headers == [(b"transfer-encoding", b"chunked")]


SLOW = {
    "nothing": (b"", 75, []),
    "empty lines": (b"\r\n", 75, []),
    "a byte": (b"G", 30, [408]),
    "a head without its end": (WHOLE[:-4], 30, [408]),
}


@pytest.mark.parametrize("name", SLOW)
async def test_a_connection_that_brings_no_request_ends(name: str) -> None:
    raw, limit_s, answered = SLOW[name]
    app = Application()
    async with serving(app) as server:
        client = server.connect()
        await client.write(raw)
        await server.loop.turn(limit_s - 1)
        assert statuses(client.answers) == []
        await client.write(b"\r\n" if not answered else b"")
        await server.loop.turn(1)
        assert client.ended
        await client.write(WHOLE[-4:])  # too late
        await server.loop.turn(LINGER_S)
        assert client.transport.closing
    assert statuses(client.answers) == answered
    assert not answered or code_of(client.answers) == "request_timeout"
    assert app.calls == []


async def test_bytes_that_come_one_by_one_buy_no_time() -> None:
    async with serving(Application()) as server:
        client = server.connect()
        for byte in WHOLE[:29]:
            await client.write(bytes([byte]))
            await server.loop.turn(1)
        assert not client.ended
        await server.loop.turn(1)
        assert statuses(client.answers) == [408]


async def test_a_kept_connection_has_the_same_time_again_and_again() -> None:
    app = Application()
    async with serving(app) as server:
        client = server.connect()
        for _ in range(3):
            await server.loop.turn(74)
            await client.write(WHOLE[:9])
            await server.loop.turn(29)
            await client.write(WHOLE[9:])
        assert len(app.calls) == 3
        await server.loop.turn(75)
        assert client.transport.closing
    assert statuses(client.answers) == [200] * 3


async def test_a_call_takes_as_long_as_it_takes_whatever_else_the_client_sends() -> None:
    app = Application(never)
    async with serving(app) as server:
        client = server.connect()
        await client.write(WHOLE + WHOLE[:9])
        await server.loop.turn(100_000)
        assert not client.ended
        app.script = answer()
        await app.calls[0].send({"type": "http.response.start", "status": 200, "headers": []})
        await app.calls[0].send({"type": "http.response.body"})
        await server.loop.turn(29)
        assert not client.ended
        await server.loop.turn(1)
        assert statuses(client.answers) == [200, 408]


async def test_a_body_without_progress_ends_as_a_client_that_left() -> None:
    app = Reading()
    async with serving(app) as server:
        client = server.connect()
        await client.write(LINE + b"Content-Length: 9\r\n\r\n")
        await server.loop.turn(39)
        await client.write(b"12345")
        await server.loop.turn(20)
        assert not client.ended
        await server.loop.turn(2)
        assert code_of(client.answers) == "request_timeout"
        await client.write(b"6789")
        await server.loop.turn(LINGER_S)
        assert client.transport.closing
    assert app.got[-1]["type"] == "http.disconnect"
    assert statuses(client.answers) == [408]


@pytest.mark.parametrize(("count", "lives"), [(256 * 10, True), (10, False)])
async def test_a_body_must_come_at_a_rate(count: int, lives: bool) -> None:  # noqa: FBT001 - a table
    async with serving(Reading()) as server:
        client = server.connect()
        await client.write(LINE + b"Content-Length: 1000000\r\n\r\n")
        for _ in range(20):
            await server.loop.turn(9)
            await client.write(b"x" * count)
        assert client.ended is not lives


@pytest.mark.parametrize("more", [b"", LINE + b"Content-Length: 9\r\n\r\n"])
async def test_who_waits_for_a_client_to_leave_waits_as_long_as_it_stays(more: bytes) -> None:
    async def watching(call: AppCall) -> None:
        await call.receive()

    async with serving(Application(watching)) as server:
        client = server.connect()
        await client.write(WHOLE + more)
        await server.loop.turn(100_000)
        assert not client.ended
        assert client.protocol.cycle.keep_alive, "nor will it end"


async def test_a_client_whose_body_nobody_reads_is_not_blamed() -> None:
    app = Application(never)

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        _ = receive
        await app.script(AppCall(scope, b"", receive, send))

    async with serving(busy) as server:
        client = server.connect()
        await client.write(LINE + b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000)
        assert client.transport.paused
        await server.loop.turn(100_000)
        assert not client.ended


@pytest.mark.parametrize("stopped_s", [25, 70, 3600])
@pytest.mark.parametrize("raw", [b"", WHOLE, WHOLE[:9], LINE + b"Content-Length: 9\r\n\r\n"])
async def test_a_worker_that_was_stopped_blames_nobody(raw: bytes, stopped_s: float) -> None:
    app = Application()
    async with serving(app) as server:
        client = server.connect()
        await client.write(raw)
        await server.loop.stop_and_go_on(stopped_s)
        assert not client.ended
        await client.write(b"1" if raw.endswith(b"\r\n\r\n") else b"")
        await server.loop.turn(29)
        await client.write(WHOLE[9:] if raw == WHOLE[:9] else WHOLE)
        assert len(app.calls) == 1 + (raw == WHOLE)


@pytest.mark.parametrize("first", ["timer", "bytes"])
async def test_a_stop_amid_a_slow_body_is_not_charged_to_its_client(first: str) -> None:
    async with serving(Reading()) as server:
        client = server.connect()
        await client.write(LINE + b"Content-Length: 9\r\n\r\n1")
        await server.loop.turn(50)
        if first == "timer":
            await server.loop.stop_and_go_on(59)
        else:
            server.loop.stop(59)
        assert not client.ended
        await client.write(b"2")
        await server.loop.turn(6)
        assert not client.ended, "50 of 60 s were its own"
        await server.loop.turn(5)
        assert code_of(client.answers) == "request_timeout"


async def test_what_is_left_of_a_request_that_was_answered_must_come() -> None:
    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(status=413)(AppCall(scope, b"", receive, send))

    async with serving(refusing) as server:
        clients = [server.connect(), server.connect()]
        for client in clients:
            await client.write(LINE + b"Content-Length: 90\r\n\r\n")
        for _ in range(29):
            await server.loop.turn(1)
            await clients[0].write(b"x")
        await clients[1].write(b"x" * 90)
        assert [client.ended for client in clients] == [False, False]
        await server.loop.turn(1)
        assert [client.ended for client in clients] == [True, False]
        await server.loop.turn(74)
        assert clients[1].transport.closing
        assert statuses(clients[0].answers) == [413]


async def test_a_fault_in_what_is_left_of_an_answered_request_closes() -> None:
    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(status=413)(AppCall(scope, b"", receive, send))

    async with serving(refusing) as server:
        client = server.connect()
        await client.write(CHUNKED)
        await client.write(b"z\r\n")
        assert client.transport.closing
    assert statuses(client.answers) == [413]


async def test_r4_a_client_that_never_reads_is_aborted() -> None:
    app = Application(answer(b"x" * HIGH_WATER_BYTES * 2))
    async with serving(app) as server:
        client = server.connect()
        client.transport.reads = False
        await client.write(WHOLE)
        await server.loop.turn(599)
        assert not client.transport.aborted
        client.transport.take(1)
        await server.loop.turn(1)
        assert not client.transport.aborted, "it took a byte"
        await server.loop.turn(600)
        assert client.transport.aborted


async def lingering(call: AppCall) -> None:
    await answer()(call)
    await never(call)


async def cut(call: AppCall) -> None:
    await call.send({"type": "http.response.start", "status": 200, "headers": []})
    raise ResponseCut("the model went away")


@pytest.mark.parametrize("script", [answer(), lingering, cut])
async def test_r4_the_last_bytes_of_an_answer_are_not_kept_for_ever(script: Any) -> None:
    async with serving(Application(script)) as server:
        client = server.connect()
        client.transport.reads = False
        await client.write(WHOLE)
        await server.loop.turn(75)
        assert client.transport.closing
        assert client.transport.waiting, "closed in order, and still waiting to be read"
        await server.loop.turn(525)
        assert client.transport.aborted


async def test_each_answer_has_its_own_time_to_be_read() -> None:
    async with serving(Application(answer(b"x" * 50_000)), idle_s=10_000) as server:
        client = server.connect()
        client.transport.reads = False
        for _ in range(3):
            await client.write(WHOLE)
            await server.loop.turn(500)
            assert not client.transport.aborted
            client.transport.take(len(client.transport.waiting))


BEGIN: Message = {"type": "http.response.start", "status": 200, "headers": []}


def piece(count: int) -> Message:
    return {"type": "http.response.body", "body": b"x" * count, "more_body": True}


@pytest.mark.parametrize("count", [60_000, HIGH_WATER_BYTES * 2])
async def test_r4_what_was_left_of_an_answer_shortens_no_pause_in_the_next(count: int) -> None:
    app = Application(answer(b"x" * 50_000))
    async with serving(app, idle_s=10_000) as server:
        client = server.connect()
        client.transport.reads = False
        await client.write(WHOLE)
        await server.loop.turn(1)
        client.transport.take(len(client.transport.waiting))
        app.script = never
        await server.loop.turn(400)
        await client.write(WHOLE)
        call = app.calls[1]
        await call.send(BEGIN)
        await call.send(piece(count))
        await server.loop.turn(599)
        assert not client.transport.aborted
        await server.loop.turn(600)
        assert client.transport.aborted


async def test_r4_a_pause_of_writing_has_the_whole_time() -> None:
    app = Application(answer(b"x" * 50_000))
    async with serving(app, idle_s=10_000) as server:
        client = server.connect()
        client.transport.reads = False
        await client.write(WHOLE)
        app.script = never
        await server.loop.turn(400)
        await client.write(WHOLE)
        await app.calls[1].send(BEGIN)
        client.transport.take(40_000)
        await app.calls[1].send(piece(HIGH_WATER_BYTES))
        await server.loop.turn(599)
        assert not client.transport.aborted
        await server.loop.turn(1)
        assert client.transport.aborted


async def test_r4_a_stream_that_nobody_reads_is_aborted_and_its_call_ends() -> None:
    async def endless(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        while (await call.receive())["type"] == "http.request":
            pass
        call.cancelled.set()

    app = Application(endless)
    async with serving(app) as server:
        client = server.connect()
        client.transport.reads = False
        await client.write(WHOLE)
        for _ in range(3):
            await app.calls[0].send(piece(100_000))
            await server.loop.turn(599)
            assert not client.transport.aborted
            client.transport.take(len(client.transport.waiting))
        await app.calls[0].send(piece(100_000))
        await server.loop.turn(600)
        assert client.transport.aborted
        await client.leave()
        assert app.calls[0].cancelled.is_set()


async def test_pipelined_requests_have_a_bound_and_those_within_it_are_answered() -> None:
    app = Application(never)
    async with serving(app, pipelined_max=3) as server:
        client = server.connect()
        await client.write(WHOLE * 10_000)
        assert len(client.protocol.pipeline) == 3
        app.script = answer()
        await app.calls[0].send({"type": "http.response.start", "status": 200, "headers": []})
        await app.calls[0].send({"type": "http.response.body"})
        await settle()
        assert client.transport.closing
    assert statuses(client.answers) == [200] * 4
    assert len(app.calls) == 4


async def test_r4_a_fault_is_never_written_into_an_answer_under_way() -> None:
    app = Application(never)
    async with serving(app) as server:
        client = server.connect()
        await client.write(WHOLE)
        call = app.calls[0]
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        await client.write(b"NOISE\r\n\r\n" + WHOLE)
        await call.send({"type": "http.response.body", "body": b"fine"})
        await settle()
        assert client.transport.closing
    assert client.answers.endswith(b"4\r\nfine\r\n0\r\n\r\n")
    assert statuses(client.answers) == [200]
    assert len(app.calls) == 1


@pytest.mark.parametrize("waiting", [0, 2])
@pytest.mark.parametrize("begun", [True, False])
async def test_r4_a_fault_in_a_pipelined_body_leaves_earlier_answers_whole(
    waiting: int,
    begun: bool,  # noqa: FBT001 - a table
) -> None:
    app = Application(never)
    async with serving(app) as server:
        client = server.connect()
        await client.write(WHOLE)
        call = app.calls[0]
        if begun:
            await call.send(BEGIN)
        await client.write(WHOLE * waiting + CHUNKED + b"z\r\n" + WHOLE)
        app.script = answer(b"fine")
        if not begun:
            await call.send(BEGIN)
        await call.send({"type": "http.response.body", "body": b"fine"})
        await settle()
        assert client.transport.closing
        assert not client.transport.aborted
    assert statuses(client.answers) == [200] * (1 + waiting)
    assert client.answers.endswith(b"4\r\nfine\r\n0\r\n\r\n")
    assert len(app.calls) == 1 + waiting


AHEAD = {
    "a request": WHOLE,
    "some requests": WHOLE * 9,
    "a fault in a head": WHOLE + b"NOISE\r\n\r\n",
    "a fault in a body": WHOLE + CHUNKED + b"z\r\n",
    "nothing but a fault in a body": CHUNKED + b"z\r\n",
    "too many requests": WHOLE * 100,
}


@pytest.mark.parametrize("name", AHEAD)
async def test_r4_a_client_that_leaves_is_noticed_whatever_it_sent_ahead(name: str) -> None:
    async def watching(call: AppCall) -> None:
        assert (await call.receive())["type"] == "http.disconnect"
        call.cancelled.set()

    app = Application(watching)
    async with serving(app) as server:
        client = server.connect()
        await client.write(WHOLE)
        await client.write(AHEAD[name])
        assert not client.transport.paused, "a paused connection does not say that it ended"
        await client.leave()
        assert app.calls[0].cancelled.is_set()
    assert len(app.calls) == 1


async def test_r4_a_client_that_leaves_is_told_to_who_waits_for_nothing_of_it() -> None:
    told: list[str] = []
    app = Application(never)
    body = bytes(2 * HIGH_WATER_BYTES)
    async with serving(app) as server:
        client = server.connect()
        await client.write(LINE + HOST + b"Content-Length: %d\r\n\r\n" % len(body))
        await client.write(body)  # the application has it, and asks for no more
        assert app.calls[0].body == body
        assert not client.transport.paused, "a paused connection does not say that it ended"
        app.calls[0].scope[GONE_KEY].listen(lambda: told.append("gone"))
        await client.leave()
    assert told == ["gone"]


async def test_r2_a_client_that_leaves_before_its_application_runs_is_said_to_have_left() -> None:
    told: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        _ = receive, send
        scope[GONE_KEY].listen(lambda: told.append(True))

    async with serving(app) as server:
        client = server.connect()
        client.protocol.data_received(WHOLE)
        client.protocol.connection_lost(None)
        await settle()
    assert told == [True]


async def test_r4_a_client_that_leaves_amid_its_second_answer_of_three_is_noticed() -> None:
    left: list[Message] = []

    async def watching(call: AppCall) -> None:
        left.append(await call.receive())

    app = Application(never)
    async with serving(app) as server:
        client = server.connect()
        await client.write(WHOLE * 3)
        app.script = watching
        await app.calls[0].send(BEGIN)
        await app.calls[0].send({"type": "http.response.body"})
        await settle()
        assert (len(app.calls), left) == (2, [])
        await client.leave()
    assert left == [{"type": "http.disconnect"}]
    assert len(app.calls) == 2


async def test_what_is_read_ahead_has_a_bound() -> None:
    app = Application()
    async with serving(app) as server:
        client = server.connect()
        await client.write(LINE + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
        app.script = never
        await client.write(WHOLE)
        for _ in range(8):
            assert not client.transport.paused
            await client.write(LINE + b"Content-Length: 8200\r\n\r\n" + b"x" * 8200)
        assert client.transport.paused


async def test_a_fault_is_answered_once() -> None:
    async with serving(Application(), head_bytes_max=100) as server:
        client = server.connect()
        await client.write(LINE)
        await client.write(b"X" * 200 + b" :\r\n")
    assert code_of(client.answers) == "bad_request"


@pytest.mark.parametrize("begun", [True, False])
async def test_r4_a_fault_in_a_body_ends_its_call(begun: bool) -> None:  # noqa: FBT001 - a table
    app = Reading()
    got_disconnect: list[Message] = []

    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await app(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        got_disconnect.extend(app.got)

    async with serving(early) as server:
        client = server.connect()
        await client.write(CHUNKED)
        await client.write(b"%x\r\n%b\r\nz\r\n" % (100_000, b"x" * 100_000))
        assert client.transport.aborted is begun
        assert begun or not client.transport.paused, "what is on its way is read"
        if begun:
            await client.leave()
    assert app.got[-1]["type"] == "http.disconnect"
    assert statuses(client.answers) == ([200] if begun else [400])
    assert begun or code_of(client.answers) == "bad_request"


async def test_an_upgrade_that_is_not_done_is_answered_and_ends_its_connection() -> None:
    app = Application()
    upgrade = LINE + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with serving(app) as server:
        client = server.connect()
        await client.write(upgrade)
        await client.write(WHOLE)
        assert client.transport.closing
    assert statuses(client.answers) == [200]
    assert len(app.calls) == 1


@pytest.mark.parametrize(
    ("raw", "status", "begun"),
    [
        (b"NOISE\r\n\r\n", 400, False),
        (CHUNKED + b"z\r\n", 400, True),
        (WHOLE[:9], 408, False),
        (WHOLE[:-1], 408, True),
        (CHUNKED + b"2;" + b"x" * 70_000, 431, True),
    ],
)
async def test_r2_nothing_happened_is_said_only_where_it_is_true(
    raw: bytes,
    status: int,
    begun: bool,  # noqa: FBT001 - a table
) -> None:
    async with serving(Reading()) as server:
        client = server.connect()
        await client.write(raw[:60])
        await client.write(raw[60:])
        await server.loop.turn(60)
    assert statuses(client.answers) == [status]
    assert (b"may have begun" in client.answers) is begun
    assert (b"Nothing of it happened" in client.answers) is not begun


async def test_a_missing_websocket_library_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")
    upgrade = LINE + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with serving(Application()) as server:
        for _ in range(3):
            await server.connect().write(upgrade)
    assert caplog.text.count("No supported WebSocket library") == 1


async def test_those_that_are_told_take_no_room() -> None:
    async with serving(Application(), connections_max=1) as server:
        first = server.connect()
        told = [server.connect() for _ in range(9)]
        for client in told:
            await client.write(WHOLE)
        await first.leave()
        client = server.connect()
        await client.write(WHOLE)
        assert statuses(client.answers) == [200]
        assert not any(client.transport.closing for client in told)
        for client in told:
            await client.leave()
        client = server.connect()
        await client.write(WHOLE)
        assert statuses(client.answers) == [503]


async def test_who_is_turned_away_can_read_why_while_it_writes() -> None:
    async with serving(Application(), connections_max=1) as server:
        _, client = server.connect(), server.connect()
        await client.write(LINE + HOST + b"Content-Length: 1000000\r\n\r\n")
        assert statuses(client.answers) == [503]
        assert not client.transport.closing
        for _ in range(10):
            await client.write(b"x" * 100_000)
        assert not client.transport.paused
        await server.loop.turn(LINGER_S)
    assert [client.transport.closing, code_of(client.answers)] == [True, "overloaded"]


async def test_connections_have_a_bound_and_those_beyond_it_are_told() -> None:
    app = Application()
    async with serving(app, connections_max=2) as server:
        clients = [server.connect() for _ in range(2 + TURNED_AWAY_MAX)]
        for client in clients[:3]:
            await client.write(WHOLE)
        assert server.connect().transport.aborted
        assert [statuses(client.answers) for client in clients[:3]] == [[200], [200], [503]]
        assert b"\r\nretry-after: 1\r\n" in clients[2].answers
        assert code_of(clients[2].answers) == "overloaded"
        await server.loop.turn(30)
        assert [client.ended for client in clients[1:4]] == [False, True, True]
        await clients[0].leave()
        await clients[2].leave()
        assert server.lost == 2
    assert len(app.calls) == 2
