# SPDX-License-Identifier: Apache-2.0
"""The client's side of an exchange (R4)."""

import asyncio
from dataclasses import replace

import pytest
from support.routing import Client as Driven

from rollout_router.claims import Claim, Owner
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.routing import client as module
from rollout_router.routing.client import Client, ClientGone
from rollout_router.routing.gone import GONE_KEY, Gone

CLAIM = Claim(
    kind="rollout",
    rollout_id="r1",
    claim_epoch=7,
    state="owned",
    owner=Owner(nonce="me", inode=1),
    previous=None,
    at="2026-01-01T00:00:00Z",
)
START = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]}


def client_of(driven: Driven) -> Client:
    return Client(driven.scope, driven.receive, driven.send)


def part(body: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_a_body_in_pieces_is_joined() -> None:
    driven = Driven(None)
    for piece in (b"ab", b"", b"cd"):
        driven.write(piece, more=True)
    driven.write(b"")
    client = client_of(driven)

    assert await client.read_body(bytes_max=4, claim=CLAIM) == b"abcd"
    assert client.body_is_whole
    assert await client.read_body(bytes_max=4, claim=CLAIM) == b"abcd"


async def test_a_body_over_the_limit_is_refused_with_the_limit_and_not_read_on() -> None:
    driven = Driven(None)
    driven.write(b"abc", more=True)
    driven.write(b"de", more=True)
    client = client_of(driven)

    with pytest.raises(Refusal, match="longer than 4 bytes") as refused:
        await client.read_body(bytes_max=4, claim=replace(CLAIM, claim_epoch=9))

    assert refused.value.status == 413
    assert refused.value.claim_epoch == 9
    assert driven.reads == 2
    assert not client.body_is_whole


async def test_a_body_is_filled_as_far_as_it_is_needed_and_the_rest_streamed() -> None:
    driven = Driven(None)
    for piece in (b"ab", b"cd", b"ef"):
        driven.write(piece, more=True)
    driven.write(b"")
    client = client_of(driven)

    await client.fill(3)
    assert driven.reads == 2
    assert client.buffered() == b"abcd"
    assert not client.body_is_whole
    assert [piece async for piece in client.rest()] == [b"ef"]
    assert not client.body_is_whole  # what was streamed is not in memory


async def test_what_is_read_ahead_is_streamed_once_and_by_one_reader_at_a_time() -> None:
    driven = Driven(None)
    driven.write(b"ab", more=True)
    client, streamed = client_of(driven), []

    async def stream() -> None:
        streamed.extend([piece async for piece in client.rest()])

    await client.fill(1)
    assert client.buffered() == b"ab"
    async with asyncio.TaskGroup() as group:
        group.create_task(client.read_ahead(lambda: None))
        driven.write(b"cd", more=True)
        await asyncio.sleep(0)
        assert driven.reads == 3  # it has "cd", and waits for more
        group.create_task(stream())
        await asyncio.sleep(0)
        assert driven.reads == 3
        driven.write(b"ef", more=True)
        driven.write(b"gh")

    assert b"".join(streamed) == b"cdefgh"


async def test_what_was_read_ahead_is_part_of_the_body_where_it_is_routed_again() -> None:
    driven = Driven(None)
    driven.write(b"ab", more=True)
    driven.write(b"cd")
    client = client_of(driven)
    await client.fill(1)
    assert client.buffered() == b"ab"

    await client.read_ahead(lambda: None)

    assert client.body_is_whole
    assert client.buffered() == b"abcd"


async def test_no_more_than_its_bound_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_AHEAD_BYTES_MAX", 3)
    driven = Driven(None)
    for piece in (b"ab", b"cd", b"ef", b"gh"):
        driven.write(piece, more=True)
    client = client_of(driven)
    await client.fill(1)

    await client.read_ahead(lambda: None)

    assert client.buffered() == b"abcdef"
    assert driven.reads == 3


async def test_a_client_that_leaves_before_its_body_is_complete_is_gone() -> None:
    driven = Driven(None)
    driven.write(b"ab", more=True)
    driven.leave()
    client = client_of(driven)

    with pytest.raises(ClientGone):
        await client.read_body(bytes_max=10, claim=CLAIM)
    assert client.gone.is_set()


async def test_a_client_that_leaves_while_it_waits_is_told_once() -> None:
    driven = Driven(b"ab")
    client = client_of(driven)
    told: list[str] = []

    async with asyncio.TaskGroup() as group:
        group.create_task(client.watch(lambda: told.append("gone")))
        await asyncio.sleep(0)
        assert driven.reads == 0  # whoever reads the body is the one that reads
        await client.fill(1)
        await driven.reading.wait()
        driven.leave()

    assert told == ["gone"]
    assert client.gone.is_set()


async def test_a_client_whose_server_tells_is_watched_without_a_task() -> None:
    driven = Driven(b"ab")
    driven.scope[GONE_KEY] = gone = Gone()
    client = client_of(driven)
    told: list[str] = []

    stop = client.watching(lambda: told.append("gone"))
    assert callable(stop)
    gone.tell()
    assert told == ["gone"]
    assert client.gone.is_set()
    stop()
    await client.fill(1)
    await client.answer(200, [], b"fine")
    client.watching(lambda: told.append("late"))  # it has its answer: it may leave
    assert told == ["gone"]
    assert driven.reads == 1


async def test_a_client_that_has_its_whole_answer_may_leave() -> None:
    driven = Driven(b"ab")
    client = client_of(driven)
    told: list[str] = []

    async with asyncio.TaskGroup() as group:
        await client.fill(1)
        group.create_task(client.watch(lambda: told.append("gone")))
        await client.answer(200, [], b"fine")

    assert told == []
    assert client.complete
    assert client.gone.is_set()  # an application that waits for the end learns of it


async def test_an_answer_passes_as_it_comes() -> None:
    driven = Driven()
    client = client_of(driven)

    await client.send(dict(START))
    assert (client.started, client.complete) == (True, False)
    await client.send(part(b"a"))
    assert [message["type"] for message in driven.sent] == [START["type"], "http.response.body"]
    await client.send({"type": "http.response.body"})
    assert client.complete


async def test_r4_an_http_1_0_answer_is_buffered_and_announced_with_its_length() -> None:
    driven = Driven(http_version="1.0")
    client = client_of(driven)

    await client.send({**START, "headers": [*START["headers"], (b"Transfer-Encoding", b"chunked")]})  # type: ignore[misc] # a list
    await client.send(part(b"ab"))
    assert driven.sent == []
    assert not client.started
    await client.send(part(b"cd", more=False))

    assert driven.sent == [
        {**START, "headers": [(b"x-a", b"b"), (b"content-length", b"4")]},
        part(b"abcd", more=False),
    ]
    assert client.complete


async def test_r4_an_http_1_0_answer_keeps_the_length_that_the_application_gave() -> None:
    driven = Driven(http_version="1.0")
    client = client_of(driven)

    await client.answer(200, [(b"Content-Length", b"4")], b"abcd")

    assert driven.value(b"content-length") == b"4"


@pytest.mark.parametrize(("method", "status"), [("POST", 204), ("GET", 304), ("HEAD", 200)])
async def test_an_http_1_0_answer_without_a_body_is_given_no_length(
    method: str, status: int
) -> None:
    driven = Driven(http_version="1.0", method=method)
    client = client_of(driven)

    await client.answer(status, [], b"")

    assert (driven.status, driven.sent[0]["headers"]) == (status, [])


async def test_r4_an_http_1_0_answer_that_was_given_up_leaves_nothing_in_the_next_one() -> None:
    driven = Driven(http_version="1.0")
    client = client_of(driven)

    await client.send(dict(START))
    await client.send(part(b"half of an answer"))
    await client.answer(502, [(b"content-length", b"4")], b"lost")

    assert driven.status == 502
    assert driven.content == b"lost"


async def test_r4_an_http_1_0_answer_beyond_the_bound_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BUFFERED_ANSWER_BYTES_MAX", 4)
    driven = Driven(http_version="1.0")
    client = client_of(driven)

    await client.send(dict(START))
    await client.send(part(b"abcd"))
    with pytest.raises(ResponseCut):
        await client.send(part(b"e", more=False))

    assert driven.sent == []
