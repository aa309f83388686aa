# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.receiving import Answered, Notebook, asking, creates, named

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.checkpoint import held, receiver
from rollout_router.checkpoint.environments import Environments
from rollout_router.checkpoint.errors import CODES, CheckpointRefusal
from rollout_router.checkpoint.receiver import Receiver

Ask = Callable[..., Awaitable[Answered]]


class Server:
    """A process of an environment server: what it holds goes with it, the file stays."""

    def __init__(self, folder: Path, *, restart_only: bool = False, held_max: int = 8) -> None:
        self.book = Notebook()
        self.environments = Environments(folder / "environments.sqlite")
        self.app = Receiver(
            self.book,
            self.environments,
            state=None if restart_only else self.book,
            creates=creates,
            held_max=held_max,
        )

    async def ask(self, path: str, headers: Any = None, body: bytes = b"", **more: Any) -> Answered:
        return await asking(self.app, path, headers, body=body, **more)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**options: Any) -> Server:
        servers.append(Server(tmp_path, **options))
        return servers[-1]

    yield start
    for one in servers:
        one.environments.close()


async def made(one: Server) -> Server:
    """Its environment e1 did operations 1 and 5, at claim epoch 3."""
    await one.ask("/make", named(1, epoch=3), b"a")
    await one.ask("/step", named(5, epoch=3), b"b")
    return one


REFUSALS = {
    "no operation": ("/step", {}, b"x", "operation_required"),
    "an operation without a fence": (
        "/step",
        {"operation-id": "r1/9", "operation-environment": "e1"},
        b"x",
        "operation_invalid",
    ),
    "an operation without a number": (
        "/step",
        {**named(9), "operation-id": "r1"},
        b"x",
        "operation_invalid",
    ),
    "a lower epoch": ("/step", named(9, epoch=2), b"x", "stale_attempt"),
    "a repeat under a lower epoch": ("/step", named(5, epoch=2), b"b", "stale_attempt"),
    "another store": ("/step", named(9, epoch=9, store="other"), b"x", "stale_attempt"),
    "another rollout": ("/step", named(9, epoch=3, rollout="r2"), b"x", "operation_conflict"),
    "another body": ("/step", named(5, epoch=3), b"c", "operation_conflict"),
    "another path": ("/other", named(5, epoch=3), b"b", "operation_conflict"),
    "a lower sequence": ("/step", named(4, epoch=3), b"x", "stale_operation"),
    "the making, late": ("/make", named(1, epoch=3), b"a", "stale_operation"),
    "making it again": ("/make", named(9, epoch=3), b"x", "environment_exists"),
    "an unknown one": ("/step", named(9, environment="e2"), b"x", "environment_unknown"),
    "a failing one": ("/raise", named(9, epoch=3), b"x", "environment_failed"),
    "one that answers 503": ("/fail", named(9, epoch=3), b"x", "environment_failed"),
    "one that does not end": ("/cut", named(9, epoch=3), b"x", "environment_failed"),
}


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_changes_nothing(
    server: Callable[..., Server], refused: tuple[str, dict[str, str], bytes, str]
) -> None:
    path, headers, body, code = refused

    async def run() -> None:
        one = await made(server())
        before = await one.environments.look("e1")
        answer = await one.ask(path, headers, body)
        assert (answer.status, answer.code) == (CODES[code].status, code)
        assert await one.environments.look("e1") == before
        after = await one.ask("/step", named(10, epoch=3), b"c")
        assert (json.loads(after.body), after.revision) == (["a", "b", "c"], 3)

    asyncio.run(run())


def test_a_query_is_part_of_a_request(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = await made(server())
        again = await one.ask("/step", named(5, epoch=3), b"b", query=b"x=1")
        assert again.code == "operation_conflict"

    asyncio.run(run())


def test_f1_a_repeat_gets_the_reply_byte_for_byte_from_any_process(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one, two = server(), server()
        await one.ask("/make", named(1), b"a")
        first = await one.ask("/step", named(2), b"b")
        assert first.headers == [
            (b"content-type", b"application/json"),
            (b"x-two", b"1"),
            (b"x-two", b"\xe9"),
            (b"content-length", b"10"),
            (b"operation-revision", b"2"),
        ]
        for process in (one, two):
            assert await process.ask("/step", named(2, epoch=4), b"b") == first
        assert (one.book.applied, two.book.applied) == ([("e1", "a"), ("e1", "b")], [])
        # The repeat raised the fence, for all of them.
        assert (await one.ask("/step", named(3, epoch=3), b"c")).code == "stale_attempt"

    asyncio.run(run())


def test_an_operation_that_was_answered_with_a_4xx_is_done(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = await made(server())
        first = await one.ask("/refuse", named(6, epoch=3), b"c")
        assert (first.status, first.revision) == (422, 3)
        assert await one.ask("/refuse", named(6, epoch=3), b"c") == first
        assert one.book.pages["e1"] == ["a", "b", "c"]

    asyncio.run(run())


def test_reads_are_passed_on(server: Callable[..., Server]) -> None:
    async def run() -> None:
        answer = await (await made(server())).ask("/read", method="GET")
        assert (answer.status, answer.body) == (200, b"null")

    asyncio.run(run())


def test_what_an_application_raises_at_a_read_is_its_servers(tmp_path: Path) -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise CheckpointRefusal("gap", "of its own")

    environments = Environments(tmp_path / "environments.sqlite")
    one = Receiver(app, environments, state=None, creates=creates)
    with pytest.raises(CheckpointRefusal, match="of its own"):
        asyncio.run(asking(one, "/read", method="GET"))


def test_a_process_brings_back_what_another_recorded(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one, two = await made(server()), server()
        for sequence, process in enumerate((two, one, one, two), 6):
            answer = await process.ask("/step", named(sequence, epoch=3), b"c")
        assert (json.loads(answer.body), answer.revision) == (["a", "b", *"cccc"], 6)

    asyncio.run(run())


def test_of_two_processes_that_apply_at_once_one_records(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one, two = await made(server()), server()
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(one.ask("/wait", named(6, epoch=3), b"c"))
            await one.book.working.wait()
            assert (await two.ask("/step", named(6, epoch=4), b"d")).revision == 3
            one.book.go_on.set()
        assert slow.result().code == "environment_unavailable"
        assert (b"retry-after", b"1") in slow.result().headers
        assert "e1" not in one.book.pages
        answer = await one.ask("/step", named(7, epoch=4), b"e")
        assert (json.loads(answer.body), answer.revision) == (["a", "b", "d", "e"], 4)

    asyncio.run(run())


def test_of_two_processes_that_make_one_environment_one_records(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        one, two = server(), server()
        record = one.environments.record

        async def overtaken(*changes: Any) -> Any:
            assert (await two.ask("/make", named(1), b"a")).status == 200
            return await record(*changes)

        with monkeypatch.context() as slow:
            slow.setattr(one.environments, "record", overtaken)
            assert (await one.ask("/make", named(1), b"a")).code == "environment_unavailable"
        assert (await one.ask("/make", named(1), b"a")).revision == 1

    asyncio.run(run())


def test_operations_of_one_environment_wait_for_one_another(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = await made(server())
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(one.ask("/wait", named(6, epoch=3), b"c"))
            await one.book.working.wait()
            again = group.create_task(one.ask("/wait", named(6, epoch=3), b"c"))
            other = await one.ask("/make", named(1, environment="e2"), b"a")
            assert other.status == 200
            assert not again.done()
            one.book.go_on.set()
        assert again.result() == slow.result()
        assert one.book.applied.count(("e1", "c")) == 1
        assert one.app._held._locks == {}

    asyncio.run(run())


def test_a_client_that_leaves_ends_nothing(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = await made(server())
        async with asyncio.TaskGroup() as group:
            left = group.create_task(one.ask("/wait", named(6, epoch=3), b"c"))
            await one.book.working.wait()
            left.cancel()
            await asyncio.wait([left])
            assert left.cancelled()
            one.book.go_on.set()
        answer = await one.ask("/wait", named(6, epoch=3), b"c")
        assert (answer.revision, one.book.applied.count(("e1", "c"))) == (3, 1)

    asyncio.run(run())


def test_a_client_that_leaves_before_its_body_is_whole_changed_nothing(
    server: Callable[..., Server],
) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b"c", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def run() -> None:
        one = await made(server())
        headers = [(k.encode(), v.encode()) for k, v in named(6, epoch=3).items()]
        scope = {"type": "http", "method": "POST", "path": "/step", "headers": headers}
        await one.app({**scope, "query_string": b""}, receive, send)
        assert (await one.ask("/step", named(6, epoch=3), b"d")).revision == 3

    asyncio.run(run())


def test_a_server_that_ends_in_an_operation_recorded_none_of_it(
    server: Callable[..., Server],
) -> None:
    one = server()
    left = []

    async def run() -> None:
        await made(one)
        asked = one.ask("/wait", named(6, epoch=3), b"c")
        left.append(asyncio.get_running_loop().create_task(asked))
        await one.book.working.wait()

    asyncio.run(run())  # its end cancels what is left
    assert left[0].cancelled()
    assert one.book.forgotten == ["e1"]

    async def go_on() -> None:
        answer = await server().ask("/step", named(6, epoch=3), b"d")
        assert (json.loads(answer.body), answer.revision) == (["a", "b", "d"], 3)

    asyncio.run(go_on())


def test_a_lifespan_ends_when_the_operations_in_hand_have(tmp_path: Path) -> None:
    book = Notebook()
    log: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await book(scope, receive, send)
            log.append("operation")
            return
        assert (await receive())["type"] == "lifespan.startup"
        assert (await receive())["type"] == "lifespan.shutdown"
        log.append("shutdown")

    async def run() -> None:
        environments = Environments(tmp_path / "environments.sqlite")
        one = Receiver(app, environments, state=book, creates=creates)
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait({"type": "lifespan.startup"})
        await asking(one, "/make", named(1), body=b"a")
        async with asyncio.TaskGroup() as group:
            group.create_task(one({"type": "lifespan"}, messages.get, messages.put))
            left = group.create_task(asking(one, "/wait", named(2), body=b"b"))
            await book.working.wait()
            left.cancel()
            messages.put_nowait({"type": "lifespan.shutdown"})
            while messages.qsize():  # noqa: ASYNC110 - until the message was taken
                await asyncio.sleep(0)
            book.go_on.set()
        assert log == ["operation", "operation", "shutdown"]
        environments.close()

    asyncio.run(run())


def test_what_was_not_used_for_long_is_dropped_and_brought_back(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one = server(held_max=2)
        for environment in ("e1", "e2", "e3"):
            await one.ask("/make", named(1, environment=environment), b"a")
        assert sorted(one.book.pages) == ["e2", "e3"]
        assert (await one.ask("/step", named(2), b"b")).body == b'["a", "b"]'
        assert sorted(one.book.pages) == ["e1", "e3"]

    asyncio.run(run())


def test_an_environment_in_use_is_never_dropped(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = server(held_max=0)
        await one.ask("/make", named(1), b"a")
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(one.ask("/wait", named(2), b"b"))
            await one.book.working.wait()
            await one.ask("/make", named(1, environment="e2"), b"a")
            assert "e1" in one.book.pages
            one.book.go_on.set()
        assert slow.result().body == b'["a", "b"]'

    asyncio.run(run())


def test_an_environment_that_ended_keeps_its_last_reply_alone(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one = await made(server())
        first = await one.ask("/end", named(6, epoch=3), b"c")
        assert await one.ask("/end", named(6, epoch=3), b"c") == first
        assert (await one.ask("/step", named(7, epoch=3), b"d")).code == "environment_lost"

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/raise", "/fail", "/cut"])
def test_an_environment_whose_making_failed_may_be_made(
    server: Callable[..., Server], path: str
) -> None:
    async def run() -> None:
        one = server()
        one.app._creates = lambda _: True
        one.book.pages["e1"] = []
        assert (await one.ask(path, named(1), b"a")).code == "environment_failed"
        assert await one.environments.look("e1") is None
        assert one.book.pages == {}
        assert (await one.ask("/make", named(1), b"a")).body == b'["a"]'

    asyncio.run(run())


class TestRestartOnly:
    def test_a_process_goes_on_with_what_it_holds(self, server: Callable[..., Server]) -> None:
        async def run() -> None:
            one = await made(server(restart_only=True, held_max=0))
            await one.ask("/make", named(1, environment="e2"), b"a")
            assert (await one.ask("/step", named(6, epoch=3), b"c")).body == b'["a", "b", "c"]'

        asyncio.run(run())

    def test_a_new_process_repeats_the_last_reply_and_lost_the_environment(
        self, server: Callable[..., Server]
    ) -> None:
        async def run() -> None:
            await made(server(restart_only=True))
            two = server(restart_only=True)
            assert (await two.ask("/step", named(5, epoch=3), b"b")).body == b'["a", "b"]'
            assert (await two.ask("/step", named(6, epoch=3), b"c")).code == "environment_lost"
            assert two.book.applied == []

        asyncio.run(run())

    @pytest.mark.parametrize("path", ["/raise", "/fail", "/cut"])
    def test_one_that_failed_is_lost_for_good(
        self, server: Callable[..., Server], path: str
    ) -> None:
        async def run() -> None:
            one = await made(server(restart_only=True))
            assert (await one.ask(path, named(6, epoch=3), b"c")).code == "environment_failed"
            for process in (one, server(restart_only=True)):
                for sequence in (5, 6, 7):
                    answer = await process.ask("/step", named(sequence, epoch=3), b"b")
                    assert (answer.status, answer.code) == (410, "environment_lost")

        asyncio.run(run())

    def test_one_whose_record_was_refused_is_lost_although_that_cannot_be_recorded(
        self, server: Callable[..., Server]
    ) -> None:
        async def run() -> None:
            one = await made(server(restart_only=True))
            one.environments.close()
            for code in ("environment_unavailable", "environment_lost"):
                assert (await one.ask("/step", named(6, epoch=3), b"c")).code == code

        asyncio.run(run())


def test_what_cannot_be_recorded_is_not_answered_and_not_kept(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise CheckpointRefusal("environment_unavailable", "the disk is full")

    async def run() -> None:
        one = await made(server())
        with monkeypatch.context() as full:
            full.setattr(one.environments, "record", refuse)
            answer = await one.ask("/step", named(6, epoch=3), b"c")
            assert answer.code == "environment_unavailable"
        assert (await one.ask("/step", named(6, epoch=3), b"c")).body == b'["a", "b", "c"]'

    asyncio.run(run())


@pytest.mark.parametrize(
    ("module", "bound", "status", "code"),
    [
        (receiver, "REQUEST_BYTES_MAX", 413, "body_too_large"),
        (receiver, "REPLY_BYTES_MAX", 500, "environment_failed"),
        (held, "STATE_BYTES_MAX", 500, "environment_failed"),
        (receiver, "OPERATIONS_MAX", 503, "environment_unavailable"),
    ],
)
def test_a_bound_refuses_and_changes_nothing(
    server: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: Any,
    bound: str,
    status: int,
    code: str,
) -> None:
    async def run() -> None:
        one = await made(server())
        with monkeypatch.context() as low:
            low.setattr(module, bound, 0 if bound == "OPERATIONS_MAX" else 3)
            answer = await one.ask("/step", named(6, epoch=3), b"four")
            assert (answer.status, answer.code) == (status, code)
        assert (await one.ask("/step", named(6, epoch=3), b"c")).body == b'["a", "b", "c"]'

    asyncio.run(run())


def test_a_websocket_is_refused(server: Callable[..., Server]) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(server().app({"type": "websocket", "path": "/"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_copy_that_cannot_be_dropped_is_replaced(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise RuntimeError("it stays")

    async def run() -> None:
        one = await made(server())
        monkeypatch.setattr(one.book, "forget", refuse)
        assert (await one.ask("/fail", named(6, epoch=3), b"c")).code == "environment_failed"
        assert (await one.ask("/step", named(6, epoch=3), b"d")).body == b'["a", "b", "d"]'

    asyncio.run(run())


PARKED = b'{"error": {"code": "checkpoint_parked"}}'


@pytest.mark.parametrize("restart_only", [False, True])
@pytest.mark.parametrize(
    "busy",
    [
        (429, [], b"slowly"),
        (503, [(b"retry-after", b"1")], b"later"),
        (409, [(b"content-type", b"application/json")], PARKED),
    ],
    ids=["429", "503", "parked"],
)
def test_what_the_application_refuses_before_anything_happened_is_passed_on_and_not_kept(
    server: Callable[..., Server], busy: tuple[int, Any, bytes], *, restart_only: bool
) -> None:
    async def run() -> None:
        one = await made(server(restart_only=restart_only))
        one.book.busy = busy
        for _ in range(2):
            answer = await one.ask("/step", named(6, epoch=3), b"c")
            assert (answer.status, answer.body) == (busy[0], busy[2])
            assert set(busy[1]) <= set(answer.headers)
        one.book.busy = None
        answer = await one.ask("/step", named(6, epoch=3), b"c")
        assert (answer.status, answer.revision) == (200, 3)

    asyncio.run(run())


def test_bodies_on_their_way_count_too(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        one = await made(server())
        monkeypatch.setattr(receiver, "OPERATIONS_MAX", 1)
        stuck = asyncio.Event()

        async def receive() -> Message:
            stuck.set()
            message: Message = await asyncio.get_running_loop().create_future()
            return message

        headers = [(k.encode(), v.encode()) for k, v in named(6, epoch=3).items()]
        scope = {"type": "http", "method": "POST", "path": "/step", "query_string": b""}
        async with asyncio.TaskGroup() as tasks:
            slow = tasks.create_task(one.app({**scope, "headers": headers}, receive, _nowhere))
            await stuck.wait()
            refused = await one.ask("/step", named(7, epoch=3), b"c")
            assert refused.code == "environment_unavailable"
            slow.cancel()
        assert (await one.ask("/step", named(6, epoch=3), b"c")).status == 200

    asyncio.run(run())


async def _nowhere(message: Message) -> None:
    raise AssertionError(f"nobody answers: {message}")
