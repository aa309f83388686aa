# SPDX-License-Identifier: Apache-2.0
"""The private socket (R1)."""

import asyncio
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.routing import Application

from rollout_router.claims import StoreRefused
from rollout_router.routing.limits import Limits
from rollout_router.routing.private import RETIRED_MAX, PrivateServer
from rollout_router.routing.run_dir import private_directory

REQUEST = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


async def test_the_socket_is_private_and_serves_without_marks_of_its_own(folder: Path) -> None:
    app = Application()
    server = PrivateServer(folder / "n.sock", app)
    await server.start()
    assert stat.S_IMODE((folder / "n.sock").stat().st_mode) == 0o600

    reader, writer = await asyncio.open_unix_connection(folder / "n.sock")
    writer.write(REQUEST)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    writer.close()
    await writer.wait_closed()
    await server.wait_no_forwarder()
    await server.stop()

    assert head.startswith(b"http/1.1 200")
    assert b"server:" not in head
    assert b"date:" not in head
    assert app.calls[0].body == b"{}"
    assert not (folder / "n.sock").exists()


async def _exchange(path: Path, raw: bytes) -> bytes:
    """All that comes on a connection of its own."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(raw)
    answers = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answers


async def test_c3_forwarders_are_never_too_many(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application(), limits=Limits(connections_max=1))
    await server.start()
    idle = [await asyncio.open_unix_connection(server.path) for _ in range(4)]
    for reader, writer in idle:
        writer.write(REQUEST)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    for _, writer in idle:
        writer.close()
    await server.wait_no_forwarder()
    await server.stop()


OTHERS_HEADS = {
    "lines": b"x-a: b\r\n" * 300,
    "a cookie": b"cookie: " + b"c" * 100_000 + b"\r\n",
}


@pytest.mark.parametrize("name", OTHERS_HEADS)
@pytest.mark.parametrize(("limits", "status"), [(None, b"200"), (Limits(), b"431")])
async def test_a_head_that_another_server_let_in_passes_the_hop(
    folder: Path, name: str, limits: Limits | None, status: bytes
) -> None:
    server = PrivateServer(folder / "n.sock", Application(), limits=limits)
    await server.start()
    close = b"connection: close\r\n"
    raw = REQUEST.replace(b"content-length", close + OTHERS_HEADS[name] + b"content-length")
    assert (await _exchange(server.path, raw))[9:12] == status
    await server.stop()


@pytest.mark.parametrize("part", [REQUEST[:9], REQUEST[:-1]])
async def test_a_slow_request_is_refused_by_a_real_clock(folder: Path, part: bytes) -> None:
    limits = Limits(head_s_max=0.05, body_stall_s_max=0.05)
    server = PrivateServer(folder / "n.sock", Application(), limits=limits)
    await server.start()
    answers = await _exchange(server.path, part)
    await server.stop()
    assert answers.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answers


async def test_the_wait_for_forwarders_ends_with_the_last_of_them(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    await server.start()
    writers = []
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(folder / "n.sock")
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(server.wait_no_forwarder())
        writers[0].close()
        await writers[0].wait_closed()
        await asyncio.sleep(0)
        assert not waiting.done()
        writers[1].close()
    await server.stop()


async def test_a_path_that_is_taken_is_refused_and_nothing_is_left_open(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    try:
        with pytest.raises(StoreRefused, match="cannot listen on"):
            PrivateServer(folder / "n.sock", Application())
    finally:
        server.close()
    assert not (folder / "n.sock").exists()


async def test_c3_a_listener_that_accepts_is_closed_in_a_forked_child(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    await server.start()
    number = server._socket.fileno()
    child = os.fork()
    if child == 0:
        os._exit(stat.S_ISSOCK(os.fstat(number).st_mode))
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    await server.stop()

    assert os.waitstatus_to_exitcode(status) == 0
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(FileNotFoundError):
        probe.connect(str(folder / "n.sock"))


async def ask(path: Path) -> bytes:
    """One call on a connection of its own; the status line."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n")
    writer.close()
    await writer.wait_closed()
    return head


async def test_c3_a_removed_socket_file_is_bound_anew_and_open_connections_stay(
    folder: Path,
) -> None:
    run = folder / "run"
    private_directory(run)
    server = PrivateServer(run / "n.sock", Application())
    await server.start()
    reader, writer = await asyncio.open_unix_connection(server.path)
    assert server.is_reachable()

    for _ in range(3):
        shutil.rmtree(run)
        assert not server.is_reachable()
        await server.rebind(asyncio.to_thread)
        assert server.is_reachable()
        assert stat.S_IMODE(server.path.lstat().st_mode) == 0o600
        assert [path.name for path in run.iterdir()] == ["n.sock"]
        assert (await ask(server.path)).startswith(b"HTTP/1.1 200")

    writer.write(REQUEST)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    await server.wait_no_forwarder()
    await server.stop()
    assert list(run.iterdir()) == []


async def test_c3_a_socket_file_in_whose_place_another_stands_is_taken_back(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    await server.start()
    server.path.unlink()
    server.path.touch()

    assert not server.is_reachable()
    await server.rebind(asyncio.to_thread)

    assert (await ask(server.path)).startswith(b"HTTP/1.1 200")
    await server.wait_no_forwarder()
    await server.stop()


async def test_c7_a_path_that_cannot_be_bound_again_is_said_and_left_alone(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    await server.start()
    before = psutil.Process().num_fds()
    server.path.unlink()
    server.path.mkdir()

    for _ in range(RETIRED_MAX):
        with pytest.raises(StoreRefused, match="see what stands there"):
            await server.rebind(asyncio.to_thread)
    most = before + RETIRED_MAX + 1  # of each listener the loop may have a copy
    assert psutil.Process().num_fds() <= most
    for _ in range(RETIRED_MAX):
        with pytest.raises(StoreRefused):
            await server.rebind(asyncio.to_thread)
    assert psutil.Process().num_fds() <= most
    server.path.rmdir()
    await server.rebind(asyncio.to_thread)
    assert (await ask(server.path)).startswith(b"HTTP/1.1 200")
    server.path.unlink()
    server.path.mkdir()
    await server.wait_no_forwarder()
    await server.stop()

    assert server.path.is_dir()  # not ours to remove


async def test_c3_a_server_that_stops_while_it_binds_anew_leaves_nothing(folder: Path) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    await server.start()
    server.path.unlink()
    reached, go = asyncio.Event(), asyncio.Event()

    async def in_thread(work: Callable[[], Any]) -> Any:
        reached.set()
        await go.wait()
        return await asyncio.to_thread(work)

    async with asyncio.TaskGroup() as group:
        binding = group.create_task(server.rebind(in_thread))
        await reached.wait()
        stopping = group.create_task(server.stop())
        late = group.create_task(server.rebind(in_thread))
        go.set()

    assert (binding.result(), late.result()) == (True, False)
    assert stopping.done()
    with pytest.raises(FileNotFoundError):
        await asyncio.open_unix_connection(server.path)
    assert not server.path.with_suffix(".new").exists()


async def test_c7_a_file_that_cannot_be_removed_is_left_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = PrivateServer(folder / "n.sock", Application())
    await server.start()
    server.path.with_suffix(".new").mkdir()

    await server.stop()

    assert "is left behind" in caplog.text
