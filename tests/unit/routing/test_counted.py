# SPDX-License-Identifier: Apache-2.0
"""What a server writes on one connection: heads wait for what follows them, nothing is lost."""

import asyncio
from collections.abc import Callable

import pytest

from rollout_router.routing.counted import Counted

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
LONG = bytes(64 * 1024 + 1)


class Bare:
    """A transport that notes what is done with it; the kernel takes nothing."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(len(one) for one in self.done if isinstance(one, bytes))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def write_eof(self) -> None:
        self.done.append("eof")

    def pause_reading(self) -> None:
        self.done.append("pause")


def made() -> tuple[Bare, Counted]:
    bare = Bare()
    return bare, Counted(bare, asyncio.get_running_loop())


async def test_a_small_answer_is_one_write() -> None:
    bare, counted = made()
    counted.write(HEAD)
    assert bare.done == []
    assert counted.get_write_buffer_size() == len(HEAD)  # who waits for its reader counts it
    counted.write(b"body")
    assert bare.done == [HEAD + b"body"]
    await asyncio.sleep(0)
    assert bare.done == [HEAD + b"body"]
    assert counted.taken_bytes() == 0


async def test_a_long_body_is_not_copied_behind_its_head() -> None:
    bare, counted = made()
    counted.write(HEAD)
    counted.write(LONG)
    assert bare.done == [HEAD, LONG]


async def test_a_head_that_nothing_follows_leaves_in_the_same_turn() -> None:
    bare, counted = made()
    counted.write(HEAD)
    await asyncio.sleep(0)
    assert bare.done == [HEAD]
    counted.write(b"event")
    assert bare.done == [HEAD, b"event"]


async def test_two_heads_in_one_turn_keep_their_order() -> None:
    bare, counted = made()
    counted.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    counted.write(HEAD)
    counted.write(b"body")
    await asyncio.sleep(0)
    sent = b"".join(one for one in bare.done if isinstance(one, bytes))
    assert sent == b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"body"


@pytest.mark.parametrize(
    ("end", "done"),
    [
        (Counted.close, [HEAD, "close"]),
        (Counted.write_eof, [HEAD, "eof"]),
        (Counted.flush, [HEAD]),
        (Counted.abort, ["abort"]),
    ],
)
async def test_r4_what_ends_a_connection_in_order_sends_what_waits_and_an_abort_does_not(
    end: Callable[[Counted], None], done: list[bytes | str]
) -> None:
    bare, counted = made()
    counted.write(HEAD)
    end(counted)
    await asyncio.sleep(0)
    assert bare.done == done


async def test_nothing_is_written_to_a_connection_that_was_lost_meanwhile() -> None:
    bare, counted = made()
    counted.write(HEAD)
    bare.closing = True
    await asyncio.sleep(0)
    assert bare.done == []
    counted.pause_reading()
    assert bare.done == ["pause"]


async def test_what_is_written_whole_goes_at_once_behind_what_waits_and_counts() -> None:
    bare, counted = made()
    counted.write(HEAD)
    counted.write_whole(HEAD + b"body")
    assert bare.done == [HEAD, HEAD + b"body"]
    assert counted.taken_bytes() == 0
    bare.done.clear()  # the kernel took it
    assert counted.taken_bytes() == 2 * len(HEAD) + 4
