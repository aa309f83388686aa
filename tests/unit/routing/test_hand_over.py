# SPDX-License-Identifier: Apache-2.0
"""When a connection is offered to another worker, and how it gets there or not (R1, R2, C7)."""

import asyncio
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rollout_router.claims import StoreRefused
from rollout_router.routing import hand_over
from rollout_router.routing.hand_over import (
    HOPS_IN_A_ROW,
    TRIES_MAX,
    HandOver,
    Row,
    hand_over_path,
)

Taken = asyncio.Queue[tuple[socket.socket, int]]
Made = Callable[[str], tuple[HandOver, Taken]]


def hops(row: Row, count: int, rollout_id: str = "r", owner: str = "w") -> bool:
    for _ in range(count):
        row.hop(owner, rollout_id)
    return row.due


def test_a_connection_is_due_after_hops_in_a_row_for_one_rollout_of_one_owner() -> None:
    row = Row()
    assert not hops(row, HOPS_IN_A_ROW - 1)
    assert not hops(row, HOPS_IN_A_ROW - 1, "another")
    assert not hops(row, HOPS_IN_A_ROW - 1, "another", "elsewhere")
    row.clear()
    assert not hops(row, HOPS_IN_A_ROW - 1, "another", "elsewhere")
    assert hops(row, 1, "another", "elsewhere")


def test_each_try_doubles_the_row_and_the_tries_travel() -> None:
    row, needed = Row(), HOPS_IN_A_ROW
    for tries in range(1, 6):
        assert hops(row, needed)
        row.tried()
        assert (row.tries, row.due) == (tries, False)
        row, needed = Row(row.tries), 2 * needed
        assert not hops(row, needed - 1)
        row.clear()
    assert Row(255).tries == TRIES_MAX


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def worker(folder: Path, stack: ExitStack) -> Made:
    """A worker's end, not started, and what it took."""

    def made(name: str) -> tuple[HandOver, Taken]:
        taken: Taken = asyncio.Queue()

        def take(connection: socket.socket, tries: int) -> None:
            taken.put_nowait((stack.enter_context(connection), tries))

        end = HandOver(folder / f"{name}.sock", take)
        stack.callback(end._outbox.close)
        stack.callback(end._inbox.close)
        return end, taken

    return made


def pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """The ends of a connection: the client's, and the one that moves."""
    client, server = socket.socketpair()
    client.settimeout(5)
    return stack.enter_context(client), stack.enter_context(server)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_r2_a_connection_moves_with_what_nobody_read_and_leaves_no_descriptor(
    folder: Path, worker: Made
) -> None:
    (giver, _), (taker, taken) = worker("a"), worker("b")
    taker.start()
    before = open_files()
    for number in range(200):
        with ExitStack() as stack:
            client, server = pair(stack)
            client.sendall(b"%d" % number)
            assert giver.give(server.fileno(), str(folder / "b.sock"), number % 7)
            server.close()
            moved, tries = await taken.get()
            with moved:
                assert (moved.recv(9), tries) == (b"%d" % number, number % 7)
                assert (moved.get_inheritable(), moved.getblocking()) == (False, False)
                moved.sendall(b"answer")
            assert (client.recv(9), client.recv(9)) == (b"answer", b"")
    assert open_files() == before
    taker.stop()
    giver.stop()
    assert os.listdir(folder) == []  # noqa: PTH208 - names


async def test_r1_the_socket_is_its_users_alone_and_bound_once(folder: Path, worker: Made) -> None:
    worker("a")
    assert stat.S_IMODE((folder / "a.conn").stat().st_mode) == 0o600
    before = open_files()
    with pytest.raises(StoreRefused, match=r"a\.conn"):
        worker("a")
    assert open_files() == before
    longest = "/" + "n" * 101 + ".sock"
    assert len(hand_over_path(longest)) == len(longest)


async def test_c3_a_forked_child_keeps_nothing_of_it(
    folder: Path, stack: ExitStack, worker: Made
) -> None:
    (giver, _), (taker, taken) = worker("a"), worker("b")
    taker.start()
    _, server = pair(stack)
    assert giver.give(server.fileno(), str(folder / "b.sock"), 1)
    moved, _ = await taken.get()
    held = (giver._inbox, giver._outbox, moved)
    child = os.fork()
    if child == 0:
        kept = any(stat.S_ISSOCK(os.fstat(one.fileno()).st_mode) for one in held)
        os._exit(kept)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    assert status == 0
    taker.stop()


def nobody_there(folder: Path, taker: HandOver) -> None:
    taker._inbox.close()
    assert (folder / "b.conn").exists()


def leaving(_: Path, taker: HandOver) -> None:
    taker._inbox.shutdown(socket.SHUT_RD)


def older(folder: Path, _: HandOver) -> None:
    (folder / "b.conn").unlink()


@pytest.mark.parametrize("how", [nobody_there, leaving, older])
async def test_r2_what_is_not_taken_stays(
    folder: Path,
    stack: ExitStack,
    worker: Made,
    how: Callable[[Path, HandOver], None],
) -> None:
    (giver, _), (taker, _) = worker("a"), worker("b")
    how(folder, taker)
    client, server = pair(stack)
    assert not giver.give(server.fileno(), str(folder / "b.sock"), 1)
    server.sendall(b"answer")
    assert client.recv(9) == b"answer"


async def test_r2_what_waits_is_taken_by_who_leaves_and_ends_with_who_dies(
    folder: Path, worker: Made
) -> None:
    giver, _ = worker("a")
    for dies in (False, True):
        with ExitStack() as stack:
            taker, taken = worker("b")
            clients = []
            while True:  # until the kernel takes no more
                client, server = pair(stack)
                if not giver.give(server.fileno(), str(folder / "b.sock"), 1):
                    break
                server.close()
                clients.append(client)
            assert len(clients) > 1
            if dies:
                taker._inbox.close()
                assert [client.recv(1) for client in clients] == [b""] * len(clients)
                assert taken.empty()
            else:
                taker.start()
                taker.stop()
                taker.stop()
                assert taken.qsize() == len(clients)
                assert not taker.give(client.fileno(), str(folder / "a.sock"), 1)
                assert not (folder / "b.conn").exists()


async def test_r2_nothing_is_given_to_who_takes_its_last(
    folder: Path, stack: ExitStack, worker: Made
) -> None:
    giver, _ = worker("a")
    _, server = pair(stack)
    to = str(folder / "b.sock")
    refused: list[bool] = []

    def take(connection: socket.socket, _: int) -> None:
        connection.close()
        if not refused:
            refused.append(not giver.give(server.fileno(), to, 1))

    taker = HandOver(folder / "b.sock", take)
    assert giver.give(server.fileno(), to, 1)
    taker.start()
    taker.stop()
    assert refused == [True]


async def test_c7_without_a_descriptor_a_connection_waits_and_is_not_lost(
    folder: Path,
    stack: ExitStack,
    worker: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hand_over, "NO_DESCRIPTOR_S", 0.0)
    (giver, _), (taker, taken) = worker("a"), worker("b")
    client, server = pair(stack)
    assert giver.give(server.fileno(), str(folder / "b.sock"), 1)
    server.close()
    taker.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        taker._take_what_waits()
        assert taken.empty()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    moved, _ = await taken.get()
    moved.sendall(b"answer")
    assert client.recv(9) == b"answer"
    taker.stop()


async def test_a_message_without_a_connection_is_nothing(
    folder: Path, stack: ExitStack, worker: Made
) -> None:
    (giver, _), (taker, taken) = worker("a"), worker("b")
    giver._outbox.sendto(b"\1", str(folder / "b.conn"))
    _, server = pair(stack)
    assert giver.give(server.fileno(), str(folder / "b.sock"), 1)
    taker.start()
    taker.stop()
    assert taken.get_nowait()[1] == 1
    assert taken.empty()
