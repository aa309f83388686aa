# SPDX-License-Identifier: Apache-2.0
"""The heads that a begun hop sends and knows again (R1)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.routing import Client

from rollout_router.asgi import Message, Scope
from rollout_router.claims import Owner
from rollout_router.errors import Refusal
from rollout_router.routing.begun import split
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.forward import Hop, Target
from rollout_router.routing.hop_head import begin_of_head, end_of_head, lines_of_connection
from rollout_router.transport.hop import HopClient
from rollout_router.transport.hop_wire import request_head

HOST = b"Host: gym\r\n"
CHUNKED = (
    b"PUT /sessions/r1/x HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
)
Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def post(body: bytes = b"{}", *lines: bytes, path: bytes = b"/sessions/r1/v1/x") -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"Host: gym", *lines, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


TOKEN = st.text("abcxyz-", min_size=1, max_size=8).map(str.encode)
NAME = st.one_of(
    TOKEN,
    st.sampled_from(
        [b"content-type", b"cookie", b"te", b"expect", b"x-id", b"rollout-history", b"rollout-hop"],
    ),
    st.sampled_from([b"transfer-encoding", b"keep-alive", b"upgrade"]),
)
VALUE = st.binary(max_size=12).map(lambda raw: raw.translate(None, b"\r\n\0"))


@pytest.mark.parametrize(
    "digits", [b"+2", b" 2", b"2 ", b"0x2", b"", b"2_0", b"3", b"1", b"9" * 10, "²".encode()]
)
def test_r1_only_a_length_in_digits_that_is_right_is_taken_for_one(digits: bytes) -> None:
    assert split(post(b"{}")) is not None
    assert split(post(b"{}").replace(b"Length: 2", b"Length: " + digits)) is None


@pytest.mark.parametrize("raw", [b"", b"\r\n\r\n", b"{}", post(b"")[:-4], CHUNKED, post() + b"P"])
def test_r1_what_is_no_whole_request_with_a_length_is_read(raw: bytes) -> None:
    assert split(raw) is None


async def test_an_owners_time_began_when_the_request_was_sent() -> None:
    class Begun:
        began_s = asyncio.get_running_loop().time() - 100

        async def response(self) -> None:
            await asyncio.Event().wait()

    client = Client()
    exchange = Exchange.of("r1", client.scope, client.receive, client.send, deltas=False)
    target = Target(owner=Owner(nonce="owner", inode=1), socket="/nowhere", claim_epoch=7)
    hop = Hop(HopClient(), exchange, identity=b"x", timeout_s=99.0, begun=Begun())  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="99") as refused:
        await hop.to(target)
    assert refused.value.code == "owner_timeout"


@given(
    headers=st.lists(st.tuples(NAME, VALUE), max_size=8),
    connection=st.sampled_from([None, b"keep-alive", b"Close", b"keep-alive, x-id", b"abc"]),
    body_bytes=st.sampled_from([0, 1, 5000]),
    announced=st.booleans(),
)
def test_r1_a_head_made_for_speed_is_the_head_that_is_made_with_care(
    *,
    headers: list[tuple[bytes, bytes]],
    connection: bytes | None,
    body_bytes: int,
    announced: bool,
) -> None:
    if connection is not None:
        headers = [*headers, (b"connection", connection)]
    if announced:
        headers = [*headers, (b"content-length", b"%d" % body_bytes)]
    scope: Scope = {
        "method": "POST",
        "raw_path": b"/sessions/r1/x",
        "query_string": b"a=b",
        "headers": headers,
        "client": ("127.0.0.1", 1234),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(body_bytes)}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope["http_version"] = "1.1"
    exchange = Exchange.of("r1", scope, receive, send, deltas=False)
    target = Target(owner=Owner(nonce="owner", inode=1), socket="/nowhere", claim_epoch=7)

    async def made_with_care() -> bytes:
        await exchange.client.fill(1)
        hop = Hop(HopClient(), exchange, identity=b"x-id", timeout_s=None)
        return request_head(hop._request(target))

    begin = begin_of_head(scope, identity=b"x-id", claim_epoch=7)
    end = end_of_head(lines_of_connection(scope), body_bytes if announced or body_bytes else None)
    if connection in {b"keep-alive, x-id", b"abc"}:
        assert begin is None
    else:
        assert (begin or b"") + end == asyncio.run(made_with_care())
