# SPDX-License-Identifier: Apache-2.0
"""A load asks as often as it was told to and takes no wrong answer. No test looks at a time."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rollout_router.bench import forward, forward_workers, load
from rollout_router.bench.app import ANSWER, EVENTS
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.load import Group, Load, LoadProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoadProcess, int, int]]:
    """A load, and the port and process of a plain worker."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("plain")
        processes = forward._Processes(folder, stack)
        process = LoadProcess()
        stack.callback(process.close)
        port, pid = processes._started("plain", forward_workers.PLAIN, str(folder / "p.sock"))
        yield process, port, pid


def loaded(port: int, pid: int | None, path: str, **changes: float) -> Load:
    group = Group(address=["127.0.0.1", port], pid=pid, connections=3, paths=[path])
    bounds = {"seconds": 60, "requests_max": 7, "body_bytes": 10, **changes}
    return Load(groups=[group], cpu_pids=[] if pid is None else [pid], **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/stream"])
def test_a_load_ends_at_its_count_and_every_answer_is_checked(
    running: tuple[LoadProcess, int, int], path: str
) -> None:
    loading, port, pid = running
    for _ in range(2):  # the second on kept connections
        outcome = loading.run(loaded(port, pid, path))
        assert outcome.requests == 7
        assert 0 < outcome.median_ms <= outcome.p99_ms
        assert outcome.cpu_s[0] > 0


def test_a_load_ends_at_its_time_but_not_before_each_connection_was_answered(
    running: tuple[LoadProcess, int, int],
) -> None:
    loading, port, _ = running
    outcome = loading.run(loaded(port, None, "/v1/stream", seconds=0.0, requests_max=10_000))
    assert 3 <= outcome.requests < 10_000


def test_a_load_that_goes_wrong_is_told_and_the_next_one_runs(
    running: tuple[LoadProcess, int, int],
) -> None:
    loading, port, pid = running
    with pytest.raises(BenchFailed, match="ConnectionRefused"):
        loading.run(loaded(1, None, "/v1/responses"))
    with pytest.raises(BenchFailed, match="NoSuchProcess"):
        loading.run(loaded(port, 2**22 + 1, "/v1/responses"))  # above every pid
    with pytest.raises(BenchFailed, match="answered"):
        loading.run(loaded(port, pid, "/a b"))
    assert loading.run(loaded(port, pid, "/v1/responses")).requests == 7


class Leaves(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@pytest.mark.parametrize(
    ("server", "complaint"),
    [(asyncio.Protocol, "requests without an answer after 0 s: 1"), (Leaves, "connection broke")],
)
def test_an_answer_that_does_not_come_ends_the_load(
    monkeypatch: pytest.MonkeyPatch, server: type[asyncio.Protocol], complaint: str
) -> None:
    if server is not Leaves:
        monkeypatch.setattr(load, "_WAIT_S", 0.01)

    async def measure() -> None:
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            await load._measured(loaded(port, None, "/v1/responses"), load._Connections())

    with pytest.raises(BenchFailed, match=complaint):
        asyncio.run(measure())


CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"
JOINED = b"%x\r\n%b\r\n0\r\n\r\n" % (sum(map(len, EVENTS)), b"".join(EVENTS))
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "streams", "right"),
    [
        (HEAD + ANSWER, False, True),
        (HEAD + b" " + ANSWER, False, False),
        (HEAD + CHUNKED, True, True),
        (HEAD + JOINED, True, True),
        (HEAD + CHUNKED[6:], True, False),
        (HEAD + CHUNKED.replace(b"[DONE]", b"[DIED]"), True, False),
        (HEAD + b"1\r\nx\r\n" + CHUNKED, True, False),
        (HEAD + CHUNKED[:-5], True, False),
    ],
)
def test_an_answer_is_right_by_its_length_and_its_end(
    answer: bytes, *, streams: bool, right: bool
) -> None:
    assert load._is_right(answer, streams=streams) is right
