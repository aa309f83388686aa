# SPDX-License-Identifier: Apache-2.0
"""The hop against owners that follow a script over a raw socket, and against uvicorn."""

import asyncio
import contextlib
import errno
import hashlib
import json
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
import uvloop

from rollout_router.transport import hop
from rollout_router.transport.hop import (
    AnswerRefused,
    ConnectFailed,
    HopClient,
    HopLost,
    HopRequest,
    HopResponse,
)
from rollout_router.transport.hop_connection import BUFFERED_BYTES_MAX, HopConnection

Run = Callable[[Callable[[], Awaitable[None]]], None]
Script = Callable[[socket.socket], None]

ONE_READ_BYTES_MAX = 256 * 1024  # of asyncio and of uvloop
GUARD_S = 30  # a test that hangs ends here; none waits for it
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
EXPECTED = b"expect: 100-continue"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test's coroutine function on each of the two loops."""

    def run(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(GUARD_S):
                await main()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hop") as name:  # tmp_path may be too long for sun_path
        yield Path(name)


class ScriptedOwner:
    """Listens at a path and gives each connection, in order, to the next script. Once each."""

    def __init__(self, path: Path, *scripts: Script) -> None:
        self.path = str(path)
        self.accepted = 0
        self._connections: list[socket.socket] = []
        self._scripts = scripts
        self._failures: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._connections if failed else ():
            with contextlib.suppress(OSError):  # its script may be done with it
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        if self._failures and not failed:
            raise self._failures[0]

    def _accept(self) -> None:
        for script in self._scripts:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # shut down: the remaining scripts were not wanted
                return
            self.accepted += 1
            self._connections.append(connection)
            connection.settimeout(GUARD_S)
            thread = threading.Thread(target=self._follow, args=(script, connection))
            self._threads.append(thread)
            thread.start()

    def _follow(self, script: Script, connection: socket.socket) -> None:
        with connection:
            try:
                script(connection)
            except BaseException as failure:  # noqa: BLE001 - raised again where the test ends
                self._failures.append(failure)


def read_head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            raise EOFError(f"the forwarder closed after {head!r}")
        head += piece
    return head


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError(f"the forwarder closed after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)


def read_to_end(connection: socket.socket) -> bytes:
    """What comes until the forwarder is gone. An abort may look like a reset."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    return data


def answering(*answers: bytes) -> Script:
    """One answer to each bodiless request on a connection, while they come, and then the end."""

    def script(connection: socket.socket) -> None:
        with contextlib.suppress(EOFError):
            for answer in answers:
                read_head(connection)
                connection.sendall(answer)
            read_to_end(connection)

    return script


def cutting(answer: bytes) -> Script:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(answer)

    return script


def request(method: str = "GET", **changes: Any) -> HopRequest:
    given = {"method": method, "target": b"/v1?q=1", "headers": [(b"host", b"owner")]}
    return HopRequest(**(given | changes))


async def body_of(response: HopResponse) -> bytes:
    return b"".join([piece async for piece in response.body()])


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def idle_count(client: HopClient) -> int:
    return sum(len(idle) for idle in client._idle.values())


# Connecting


def test_r2_a_socket_that_is_not_there_or_refuses_is_a_failed_connect(
    run: Run, folder: Path
) -> None:
    async def main() -> None:
        client = HopClient()
        with pytest.raises(ConnectFailed) as missing:
            await client.send(str(folder / "none.sock"), request())
        assert missing.value.errno == errno.ENOENT

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
            bound.bind(str(folder / "bound.sock"))
            with pytest.raises(ConnectFailed) as refusing:
                await client.send(str(folder / "bound.sock"), request())
        assert refusing.value.errno == errno.ECONNREFUSED

        with pytest.raises(ConnectFailed) as long:
            await client.send("/" + "x" * 200, request())
        assert long.value.errno is None
        await client.close()

    run(main)


def test_r2_a_full_backlog_is_a_failed_connect_at_once(run: Run, folder: Path) -> None:
    path = str(folder / "full.sock")

    async def main() -> None:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(path)
            listener.listen(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    waiting.setblocking(False)  # noqa: FBT003 - the name of the call says it
                    waiting.connect(path)
            with pytest.raises(ConnectFailed) as full:
                await HopClient().send(path, request())
        assert full.value.errno == errno.EAGAIN

    run(main)


def test_r2_an_owner_that_closes_before_anything_was_sent_is_a_failed_connect(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()

    class Late(HopConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            assert closed.wait(GUARD_S)

    monkeypatch.setattr(hop, "HopConnection", Late)

    def script(connection: socket.socket) -> None:
        connection.close()
        closed.set()

    async def main() -> None:
        client = HopClient()
        with pytest.raises(ConnectFailed) as failed:
            await client.send(owner.path, request())
        assert failed.value.errno == errno.ECONNRESET
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


# Whole bodies, and what is kept


def test_an_exchange_says_what_was_given_and_the_connection_is_used_again(
    run: Run, folder: Path
) -> None:
    wanted = b"POST /v1?q=1 HTTP/1.1\r\nhost: owner\r\ncontent-length: 5\r\n\r\nhello"
    seen: list[bytes] = []

    def script(connection: socket.socket) -> None:
        for _ in range(3):
            seen.append(read_exactly(connection, len(wanted)))
            connection.sendall(
                b"HTTP/1.1 201 Created\r\nX-One: 1\r\nkeep-alive: timeout=5\r\n"
                b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
            )
        assert read_to_end(connection) == b""

    async def main() -> None:
        client = HopClient()
        for _ in range(3):
            response = await client.send(owner.path, request("POST", body=b"hello"))
            assert response.status == 201
            assert response.headers == [(b"x-one", b"1")]
            assert await body_of(response) == b"ok"
            assert await body_of(response) == b""
            await response.aclose()
        assert idle_count(client) == 1
        await client.close()
        assert idle_count(client) == 0

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)
    assert seen == [wanted] * 3
    assert owner.accepted == 1


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
    ],
)
def test_an_answer_without_a_body_gives_its_connection_back_with_its_head(
    run: Run, folder: Path, method: str, answer: bytes
) -> None:
    async def main() -> None:
        client = HopClient()
        response = await client.send(owner.path, request(method))
        assert idle_count(client) == 1
        assert await body_of(response) == b""
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        await client.close()

    with ScriptedOwner(folder / "s", answering(answer, OK)) as owner:
        run(main)
    assert owner.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
        OK + b"garbage",
    ],
)
def test_r2_a_connection_is_not_used_again_after_anything_odd(
    run: Run, folder: Path, answer: bytes
) -> None:
    async def main() -> None:
        client = HopClient()
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        assert idle_count(client) == 0
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        await client.close()

    with ScriptedOwner(folder / "s", answering(answer), answering(OK)) as owner:
        run(main)
    assert owner.accepted == 2


@pytest.mark.parametrize("stray", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen by the loop", "not yet seen"])
def test_r2_a_connection_that_ended_or_spoke_while_idle_is_replaced(
    run: Run, folder: Path, stray: bytes, *, seen: bool
) -> None:
    read, spoke, leave = threading.Event(), threading.Event(), threading.Event()

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(OK)
        assert read.wait(GUARD_S)
        connection.sendall(stray)
        if not stray:
            connection.shutdown(socket.SHUT_WR)
        spoke.set()
        assert read_to_end(connection) == b""  # not one byte of the second request
        leave.set()

    async def main() -> None:
        client = HopClient()
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        [[connection]] = client._idle.values()
        read.set()
        assert spoke.wait(GUARD_S)  # blocks the loop, which therefore has seen nothing
        if seen:
            await connection.closed.wait()
            assert idle_count(client) == 0
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        await client.close()
        assert leave.wait(GUARD_S)

    with ScriptedOwner(folder / "s", script, answering(OK)) as owner:
        run(main)
    assert owner.accepted == 2


def test_idle_connections_are_last_in_first_out_and_bounded(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop, "IDLE_CONNECTIONS_MAX", 2)

    def named(name: bytes) -> Script:
        return answering(*[b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + name] * 2)

    async def main() -> None:
        client = HopClient()
        responses = [await client.send(owner.path, request()) for _ in range(3)]
        assert [await body_of(response) for response in responses] == [b"a", b"b", b"c"]
        assert idle_count(client) == 2
        assert await body_of(await client.send(owner.path, request())) == b"b"
        await client.close()

    with ScriptedOwner(folder / "s", named(b"a"), named(b"b"), named(b"c")) as owner:
        run(main)
    assert owner.accepted == 3


def test_an_idle_connection_is_closed_by_the_forwarder_when_its_time_is_up(
    run: Run, folder: Path
) -> None:
    gone = threading.Event()

    def script(connection: socket.socket) -> None:
        answering(OK)(connection)
        gone.set()

    async def main() -> None:
        client = HopClient(idle_s=0.01)
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        assert await asyncio.to_thread(gone.wait, GUARD_S)
        assert idle_count(client) == 0
        assert client._retirement is None
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


def test_an_idle_connection_whose_time_is_up_is_not_used_before_the_timer_comes(
    run: Run, folder: Path
) -> None:
    async def main() -> None:
        client = HopClient(idle_s=3600)
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        [[connection]] = client._idle.values()
        connection.idle_since -= 3600
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        await client.close()

    with ScriptedOwner(folder / "s", answering(OK, OK), answering(OK)) as owner:
        run(main)
    assert owner.accepted == 2


def test_a_closed_client_keeps_nothing_and_its_answers_can_be_read_on(
    run: Run, folder: Path
) -> None:
    async def main() -> None:
        client = HopClient()
        response = await client.send(owner.path, request())
        await client.close()
        assert await body_of(response) == b"ok"
        assert idle_count(client) == 0
        with pytest.raises(RuntimeError):
            await client.send(owner.path, request())

    with ScriptedOwner(folder / "s", answering(OK)) as owner:
        run(main)


# What is lost


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-le", GO_ON, b"garbage\r\n"])
def test_r2_a_whole_request_that_gets_no_answer_may_have_run_and_is_not_sent_again(
    run: Run, folder: Path, answer: bytes
) -> None:
    async def main() -> None:
        client = HopClient()
        with pytest.raises(HopLost):
            await client.send(owner.path, request())
        assert idle_count(client) == 0
        await client.close()

    with ScriptedOwner(folder / "s", cutting(answer), answering(OK)) as owner:
        run(main)
    assert owner.accepted == 1


def test_r2_a_reused_connection_that_breaks_after_the_request_is_not_replaced(
    run: Run, folder: Path
) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(OK)
        read_head(connection)

    async def main() -> None:
        client = HopClient()
        assert await body_of(await client.send(owner.path, request())) == b"ok"
        with pytest.raises(HopLost):
            await client.send(owner.path, request())
        await client.close()

    with ScriptedOwner(folder / "s", script, answering(OK)) as owner:
        run(main)
    assert owner.accepted == 1


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nno\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", True),
    ],
)
def test_r4_an_answer_ends_cleanly_only_where_its_framing_says_so(
    run: Run, folder: Path, answer: bytes, *, whole: bool
) -> None:
    async def main() -> None:
        client = HopClient()
        response = await client.send(owner.path, request())
        read = b""
        loss = None
        try:
            async for piece in response.body():
                read += piece
        except HopLost as lost:
            loss = lost
            with pytest.raises(HopLost):
                await anext(response.body())
        assert whole is (loss is None)
        assert read == (b"hello" if b"hello" in answer else b"")
        await client.close()

    with ScriptedOwner(folder / "s", cutting(answer)) as owner:
        run(main)


@pytest.mark.parametrize(
    "answer",
    [b"garbage\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nno\r\n"],
    ids=["head", "body"],
)
def test_r4_what_is_no_answer_is_lost_at_once_and_its_owner_hears_of_it(
    run: Run, folder: Path, answer: bytes
) -> None:
    gone = threading.Event()

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(answer)
        read_to_end(connection)
        gone.set()

    async def main() -> None:
        client = HopClient()
        with pytest.raises(AnswerRefused):
            await body_of(await client.send(owner.path, request()))
        assert await asyncio.to_thread(gone.wait, GUARD_S)
        assert idle_count(client) == 0
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


def test_r4_an_answer_that_only_the_end_of_the_connection_would_end_is_refused(
    run: Run, folder: Path
) -> None:
    async def main() -> None:
        with pytest.raises(AnswerRefused, match="neither a length nor chunks"):
            await HopClient().send(owner.path, request())

    with ScriptedOwner(folder / "s", answering(b"HTTP/1.1 200 OK\r\n\r\nhello")) as owner:
        run(main)


# Giving up


def test_r2_a_cancelled_call_aborts_its_connection(run: Run, folder: Path) -> None:
    asked, gone = threading.Event(), threading.Event()

    def script(connection: socket.socket) -> None:
        read_head(connection)
        asked.set()
        assert read_to_end(connection) == b""
        gone.set()

    async def main() -> None:
        client = HopClient()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.send(owner.path, request()))
            assert await asyncio.to_thread(asked.wait, GUARD_S)
            call.cancel()
        assert call.cancelled()
        assert await asyncio.to_thread(gone.wait, GUARD_S)
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


@pytest.mark.parametrize("how", ["aclose", "cancel", "aclose with the rest unread"])
def test_r2_an_answer_given_up_aborts_its_connection(run: Run, folder: Path, how: str) -> None:
    gone = threading.Event()
    whole = how == "aclose with the rest unread"

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(OK if whole else OK[:-1])
        read_to_end(connection)
        gone.set()

    async def main() -> None:
        client = HopClient()
        response = await client.send(owner.path, request())
        if not whole:
            assert await anext(response.body()) == b"o"
        if how == "cancel":
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(body_of(response))
                await asyncio.sleep(0)
                reading.cancel()
            assert reading.cancelled()
        else:
            await response.aclose()
            await response.aclose()
        assert await asyncio.to_thread(gone.wait, GUARD_S)
        assert idle_count(client) == 0
        if not whole:
            with pytest.raises(HopLost):
                await body_of(response)
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


def test_r4_a_slow_reader_slows_its_owner_and_holds_little(run: Run, folder: Path) -> None:
    size = 64 * 1024 * 1024
    block = bytes(range(256)) * 4096

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // len(block)):
            connection.sendall(block)
        read_to_end(connection)

    async def main() -> None:
        client = HopClient()
        response = await client.send(owner.path, request())
        connection, answer = response._connection, response._answer
        assert connection is not None
        read, pauses, most = hashlib.sha256(), 0, 0
        async for piece in response.body():
            read.update(piece)
            while connection._reading and not answer.complete:
                await connection.progress()  # takes nothing until the socket is left alone
            waiting = answer.buffered_bytes
            for _ in range(3):
                await asyncio.sleep(0)
            assert connection._reading or answer.buffered_bytes == waiting
            pauses += not connection._reading
            most = max(most, answer.buffered_bytes, len(piece))
        assert most <= BUFFERED_BYTES_MAX + ONE_READ_BYTES_MAX
        assert pauses >= size // (BUFFERED_BYTES_MAX + ONE_READ_BYTES_MAX) - 1
        assert read.digest() == hashlib.sha256(block * (size // len(block))).digest()
        assert idle_count(client) == 1
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


# Bodies that are not in memory


def test_r2_a_body_to_come_waits_for_the_owner_and_follows_whole(run: Run, folder: Path) -> None:
    def script(connection: socket.socket) -> None:
        head = read_head(connection)
        assert EXPECTED in head
        assert b"content-length: 9\r\n" in head
        connection.setblocking(False)  # noqa: FBT003 - the name of the call says it
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        connection.settimeout(GUARD_S)
        connection.sendall(GO_ON)
        assert read_exactly(connection, 9) == b"abcdefghi"
        connection.sendall(OK)
        head = read_head(connection)
        assert b"transfer-encoding: chunked\r\n" in head
        connection.sendall(GO_ON)
        chunks = b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        assert read_exactly(connection, len(chunks)) == chunks
        connection.sendall(OK)
        read_to_end(connection)

    async def main() -> None:
        client = HopClient()
        rest = pieces_of(b"def", b"", b"ghi")
        known = request("POST", body=b"abc", rest=rest, content_length=9)
        assert await body_of(await client.send(owner.path, known)) == b"ok"
        unknown = request("POST", body=b"", rest=pieces_of(b"abc", b"", b"defg"))
        assert await body_of(await client.send(owner.path, unknown)) == b"ok"
        assert idle_count(client) == 1
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)
    assert owner.accepted == 1


@pytest.mark.parametrize(
    ("interim", "dispatched"),
    [(b"", False), (b"HTTP/1.1 102 Processing\r\n\r\n", False), (GO_ON, True)],
)
def test_r2_dispatch_begins_with_the_owners_100(
    run: Run, folder: Path, interim: bytes, *, dispatched: bool
) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(interim)
        if dispatched:
            connection.recv(1)

    asked = False

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"some"
        await asyncio.Event().wait()

    async def main() -> None:
        client = HopClient()
        with pytest.raises(HopLost):
            await client.send(owner.path, request("POST", rest=endless()))
        assert asked is dispatched
        await client.close()

    with ScriptedOwner(folder / "s", script, answering(OK)) as owner:
        run(main)
    assert owner.accepted == 1


def test_r2_a_refusal_instead_of_100_is_the_answer_and_no_body_is_sent(
    run: Run, folder: Path
) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 421 Misdirected Request\r\ncontent-length: 2\r\n\r\nno")
        assert read_to_end(connection) == b""

    asked: list[bool] = []

    async def untouched() -> AsyncIterator[bytes]:
        asked.append(True)
        yield b"defg"

    async def main() -> None:
        client = HopClient()
        refused = request("POST", body=b"abc", rest=untouched())
        response = await client.send(owner.path, refused)
        assert response.status == 421
        assert await body_of(response) == b"no"
        assert idle_count(client) == 0
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)
    assert asked == []


@pytest.mark.parametrize("closing", [True, False])
def test_r2_an_answer_in_the_middle_of_a_body_stops_the_body(
    run: Run, folder: Path, *, closing: bool
) -> None:
    stopped: list[bool] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
        finally:
            stopped.append(True)

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(GO_ON)
        read_exactly(connection, 10_000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        if not closing:
            read_to_end(connection)

    async def main() -> None:
        client = HopClient()
        rest = endless()
        response = await client.send(owner.path, request("POST", rest=rest))
        assert response.status == 413
        assert await body_of(response) == b"no"
        assert idle_count(client) == 0
        await rest.aclose()  # type: ignore[attr-defined]
        assert stopped == [True]
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


def test_r2_an_answer_is_heard_although_the_owner_closed_under_a_body(
    run: Run, folder: Path
) -> None:
    answer_now, closed = threading.Event(), threading.Event()

    async def blocking() -> AsyncIterator[bytes]:
        yield b"x"
        answer_now.set()
        assert closed.wait(GUARD_S)  # the loop has heard nothing, and the next write must fail
        yield b"y"
        await asyncio.Event().wait()

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(GO_ON)
        assert answer_now.wait(GUARD_S)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        connection.close()
        closed.set()

    async def main() -> None:
        client = HopClient()
        response = await client.send(owner.path, request("POST", rest=blocking()))
        assert (response.status, await body_of(response)) == (413, b"no")
        assert idle_count(client) == 0
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


@pytest.mark.parametrize(
    ("pieces", "length"), [((b"abc",), 4), ((b"abc", b"de"), 4)], ids=["shorter", "longer"]
)
def test_r2_a_body_of_another_length_than_announced_is_never_whole(
    run: Run, folder: Path, pieces: Sequence[bytes], length: int
) -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(GO_ON)
        assert len(read_to_end(connection)) < length

    async def main() -> None:
        client = HopClient()
        wrong = request("POST", rest=pieces_of(*pieces), content_length=length)
        with pytest.raises(ValueError, match="than announced"):
            await client.send(owner.path, wrong)
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


def test_r2_what_the_rest_raises_is_raised_and_the_owner_gets_no_end(
    run: Run, folder: Path
) -> None:
    class ClientGone(Exception):  # noqa: N818 - the test's own
        pass

    async def breaking() -> AsyncIterator[bytes]:
        yield b"abc"
        raise ClientGone

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(GO_ON)
        assert b"0\r\n\r\n" not in read_to_end(connection)

    async def main() -> None:
        client = HopClient()
        with pytest.raises(ClientGone):
            await client.send(owner.path, request("POST", rest=breaking()))
        assert idle_count(client) == 0
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)


def test_r2_a_slow_owner_slows_the_rest_and_little_is_held(run: Run, folder: Path) -> None:
    block, count, held_bytes_max = b"x" * 65536, 512, 2 * 1024 * 1024
    given, held = 0, 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(count):
            given += len(block)
            yield block

    def script(connection: socket.socket) -> None:
        nonlocal held
        read_head(connection)
        connection.sendall(GO_ON)
        for number in range(count):
            assert read_exactly(connection, len(block)) == block
            held = max(held, given - number * len(block))
        connection.sendall(OK)
        read_to_end(connection)

    async def main() -> None:
        client = HopClient()
        large = request("POST", rest=counted(), content_length=len(block) * count)
        assert await body_of(await client.send(owner.path, large)) == b"ok"
        await client.close()

    with ScriptedOwner(folder / "s", script) as owner:
        run(main)
    assert given == len(block) * count
    assert held < held_bytes_max


def test_a_request_that_cannot_be_sent_makes_no_connection(run: Run, folder: Path) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            await HopClient().send(owner.path, request(headers=[(b"a", b"b\r\nc: d")]))

    with ScriptedOwner(folder / "s", answering(OK)) as owner:
        run(main)
    assert owner.accepted == 0


# uvicorn


class Gym:
    """An application with one behaviour a path."""

    def __init__(self) -> None:
        self.calls = 0
        self.waiting, self.disconnected = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        await getattr(self, scope["path"].strip("/"))(scope, receive, send)

    async def echo(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        answer = json.dumps(
            {
                "method": scope["method"],
                "query": scope["query_string"].decode(),
                "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
                "sha256": hashlib.sha256(body).hexdigest(),
            }
        ).encode()
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": answer})

    async def stream(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(200):
            event = b"data: %d\n\n" % number
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body"})

    async def refuse(self, _scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 421, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    async def nothing(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def cut(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        raise RuntimeError("the answer cannot be finished")

    async def wait(self, _scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        self.waiting.set()
        assert (await receive())["type"] == "http.disconnect"
        self.disconnected.set()


class Owner:
    """A uvicorn server in a thread, on a socket that listens before the server runs."""

    def __init__(self, path: Path, loop: str) -> None:
        self.path = str(path)
        self.gym = Gym()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        config = uvicorn.Config(
            self.gym, http="httptools", loop=loop, lifespan="off", log_config=None, ws="none"
        )
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, args=([self._listener],))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join()
        self._listener.close()


@pytest.fixture(params=["asyncio", "uvloop"], ids=["uvicorn on asyncio", "uvicorn on uvloop"])
def running(request: pytest.FixtureRequest, folder: Path) -> Iterator[Owner]:
    with Owner(folder / "u", request.param) as running:
        yield running


def of_length(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


@pytest.mark.parametrize(
    ("sent", "size"),
    [
        *[("whole", size) for size in (0, 5_000, 3_000_000)],
        *[("rest", size) for size in (0, 5_000, 3_000_000)],
        *[("rest of unknown length", size) for size in (0, 5_000, 3_000_000)],
    ],
)
def test_h1_an_application_behind_uvicorn_sees_the_bytes_that_were_sent(
    run: Run, running: Owner, size: int, sent: str
) -> None:
    body = of_length(size)

    async def main() -> None:
        client = HopClient()
        for _ in range(3):
            given = request("POST", target=b"/echo?q=%2F", body=body)
            if sent != "whole":
                given = request(
                    "POST",
                    target=b"/echo?q=%2F",
                    body=body[:1000],
                    rest=pieces_of(body[1000:2000], body[2000:]),
                    content_length=size if sent == "rest" else None,
                )
            response = await client.send(running.path, given)
            assert response.status == 200
            seen = json.loads(await body_of(response))
            assert seen["sha256"] == hashlib.sha256(body).hexdigest()
            assert (seen["method"], seen["query"]) == ("POST", "q=%2F")
            assert seen["headers"]["host"] == "owner"
        assert idle_count(client) == 1
        assert len(running.server.server_state.connections) == 1
        await client.close()

    run(main)
    assert running.gym.calls == 3


def test_many_calls_at_once_to_uvicorn_each_get_their_own_answer(run: Run, running: Owner) -> None:
    async def main() -> None:
        client = HopClient()

        async def call(number: int) -> None:
            given = request("POST", target=b"/echo?%d" % number, body=of_length(number * 999))
            seen = json.loads(await body_of(await client.send(running.path, given)))
            assert seen["query"] == str(number)
            assert seen["sha256"] == hashlib.sha256(of_length(number * 999)).hexdigest()

        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(call(number))
        assert 0 < idle_count(client) <= 50
        assert len(running.server.server_state.connections) == idle_count(client)
        await client.close()

    run(main)


def test_answers_of_every_shape_from_uvicorn_leave_one_connection(run: Run, running: Owner) -> None:
    async def main() -> None:
        client = HopClient()
        stream = await client.send(running.path, request(target=b"/stream"))
        assert await body_of(stream) == b"".join(b"data: %d\n\n" % n for n in range(200))
        head = await client.send(running.path, request("HEAD", target=b"/stream"))
        assert await body_of(head) == b""
        nothing = await client.send(running.path, request(target=b"/nothing"))
        assert (nothing.status, await body_of(nothing)) == (204, b"")
        refused = await client.send(running.path, request("POST", target=b"/refuse", body=b"abc"))
        assert (refused.status, await body_of(refused)) == (421, b"no")
        assert idle_count(client) == 1
        assert len(running.server.server_state.connections) == 1

        waits = request("POST", target=b"/refuse", rest=pieces_of(b"abc"))
        refused = await client.send(running.path, waits)
        assert (refused.status, await body_of(refused)) == (421, b"no")
        assert idle_count(client) == 0
        await client.close()

    run(main)


def test_r4_an_answer_that_uvicorn_cuts_is_lost_at_its_reader(
    run: Run, running: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "uvicorn.error")  # whatever other servers of this process have set

    async def main() -> None:
        client = HopClient()
        response = await client.send(running.path, request(target=b"/cut"))
        assert await anext(response.body()) == b"some"
        with pytest.raises(HopLost):
            await body_of(response)
        assert idle_count(client) == 0
        await client.close()

    run(main)
    assert "cannot be finished" in caplog.text


def test_r2_a_call_given_up_reaches_an_application_behind_uvicorn(run: Run, running: Owner) -> None:
    async def main() -> None:
        client = HopClient()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.send(running.path, request(target=b"/wait")))
            assert await asyncio.to_thread(running.gym.waiting.wait, GUARD_S)
            call.cancel()
        assert await asyncio.to_thread(running.gym.disconnected.wait, GUARD_S)
        await client.close()

    run(main)
