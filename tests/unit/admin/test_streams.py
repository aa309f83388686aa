# SPDX-License-Identifier: Apache-2.0
"""Server-Sent Events: at once, whenever anything changed, up to a bound, and never in the way."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rollout_router.admin import streams
from rollout_router.admin.access import AdminRefusal
from rollout_router.admin.streams import Streams

SCOPE: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.3"}}  # as uvicorn says


class Client:
    """Reads one stream."""

    def __init__(self, streams: Streams, view: Callable[[], bytes]) -> None:
        self.response = streams.response(view)
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()
        self.left = asyncio.Event()
        self.head: dict[str, Any] = {}

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = message
        elif message["body"]:
            await self.parts.put(message["body"])

    async def run(self) -> None:
        await self.response(SCOPE, self.receive, self.send)


def test_a_view_is_sent_at_once_and_then_whenever_anything_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "PAUSE_S", 0.001)

    async def act() -> None:
        made = Streams()
        views = iter([b"one", b"two", b"three"])
        client = Client(made, lambda: next(views))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(client.run())
            assert await client.parts.get() == b"one"
            made.tell()
            made.tell()
            assert await client.parts.get() == b"two"
            assert client.parts.empty()
            made.stop()
            await task
        headers = dict(client.head["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert client.parts.empty()

    asyncio.run(act())


def test_a_quiet_stream_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PAUSE_S", 0.001)
    monkeypatch.setattr(streams, "SILENT_S", 0.001)

    async def act() -> None:
        made = Streams()
        client = Client(made, lambda: b"view")
        async with asyncio.TaskGroup() as group:
            group.create_task(client.run())
            said = [await client.parts.get() for _ in range(3)]
            made.stop()
        assert said == [b"view", b": nothing changed\n\n", b": nothing changed\n\n"]

    asyncio.run(act())


def test_one_stream_too_many_is_refused_until_another_is_closed() -> None:
    async def act() -> None:
        made = Streams(streams_max=1)
        client = Client(made, lambda: b"view")
        with pytest.raises(AdminRefusal) as refused:
            made.response(lambda: b"view")
        assert refused.value.code == "overloaded"
        async with asyncio.TaskGroup() as group:
            group.create_task(client.run())
            await client.parts.get()
            client.left.set()
        assert (made._open, made._woken) == (0, set())
        made.response(lambda: b"view")

    asyncio.run(act())


def test_many_streams_that_make_much_work_pause_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "PAUSE_S", 0.5)
    waited: list[float] = []

    async def within(event: asyncio.Event, seconds: float) -> bool:
        waited.append(seconds)
        return event.is_set() or seconds == streams.SILENT_S

    monkeypatch.setattr(streams, "_within", within)

    async def act() -> None:
        made = Streams()
        loop = asyncio.get_running_loop()
        now = [0.0]
        monkeypatch.setattr(loop, "time", lambda: now[0])

        def view() -> bytes:
            now[0] += 1.0
            return b"view"

        made._open = 4
        follow = made._follow(view)
        await anext(follow)
        await anext(follow)
        await follow.aclose()  # type: ignore[attr-defined] # it is a generator

    asyncio.run(act())
    assert waited[0] == 2 * 4 * 1.0
