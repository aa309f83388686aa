# SPDX-License-Identifier: Apache-2.0
"""What is measured of scale is what it is named after. No test looks at a time or at memory."""

import asyncio
import dataclasses
import json
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollout_router.bench import scale
from rollout_router.bench.callers import callers, header, many_descriptors, wire
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.scale import IdleCosts, ScaleCosts, run_scale
from rollout_router.bench.streams import StreamCosts


@pytest.mark.long  # four gateways: 7 s of processor time
def test_calls_idle_rollouts_and_streams_are_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "_ROUNDS", 1)
    monkeypatch.setattr(scale, "_FIRST_ROLLOUTS", 1)
    said: list[str] = []

    costs = run_scale(folder, workers=[1], rollouts=20, streams=6, say=said.append)

    assert [(each.workers, each.kind, each.forwarded) for each in costs.calls] == [
        (1, "own", 0),
        (1, "mixed", 0),
    ]
    assert all(each.time.reference is each.cpu.reference is None for each in costs.calls)
    assert costs.idle.rollouts == 20
    assert costs.streams.streams == 6
    assert costs.streams.over_hop == 3
    assert [target.bound for target in costs.targets()] == [2_048, 102_400]
    assert [len(table.rows) for table in costs.tables()] == [2, 2]
    assert list(costs.measured()) == [
        f"scale {what} 1 {kind}" for kind in ("own", "mixed") for what in ("calls", "cpu")
    ]
    assert json.loads(json.dumps(dataclasses.asdict(costs)))["streams"]["over_hop"] == 3
    assert len(said) == 3
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("idle_bytes", "stream_bytes", "met"),
    [
        (5_000 + 2_048, 102_400, [True, True]),
        (5_000 + 2_049, 102_400, [False, True]),
        (5_000, 102_401, [True, False]),
    ],
)
def test_a_rollout_costs_what_is_beyond_its_base_and_a_stream_all(
    idle_bytes: int, stream_bytes: int, met: list[bool]
) -> None:
    costs = ScaleCosts(
        cpus=2,
        calls=[],
        idle=IdleCosts(
            rollouts=10, base_bytes=5_000, resident_bytes=10 * idle_bytes, creations_per_s=1
        ),
        streams=StreamCosts(streams=4, over_hop=2, resident_bytes=4 * stream_bytes),
    )
    assert [target.met for target in costs.targets()] == met


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that says this on each connection and closes it; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.join()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "was answered .*503"),
        (b"HTTP/1.1 200 OK\r\n\r\nhal", "broke before its answer was whole"),
        (b"", "broke before its answer was whole"),
    ],
)
def test_an_answer_that_is_not_the_expected_one_ends_the_benchmark(
    answer: bytes, complaint: str
) -> None:
    async def call(url: str) -> None:
        async with callers(url, 1) as (caller,):
            await caller.ask(wire("r", b"{}"), b"half")

    with answering(answer) as url, pytest.raises(BenchFailed, match=complaint):
        asyncio.run(call(url))


def test_a_connection_that_cannot_be_made_ends_the_benchmark() -> None:
    async def connect() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        async with callers(f"http://127.0.0.1:{port}", 1):
            pass

    with pytest.raises(BenchFailed, match=r"connection 0 to .* cannot be made"):
        asyncio.run(connect())


def test_a_header_is_found_whatever_its_case_and_a_missing_one_is_no_result() -> None:
    answer = b"HTTP/1.1 200 OK\r\nRollout-Worker: w1\r\nx: y\r\n\r\n"
    assert header(answer, b"rollout-worker") == b"w1"
    with pytest.raises(BenchFailed, match="has no b'rollout-claim-epoch'"):
        header(answer, b"rollout-claim-epoch")


def test_descriptors_are_allowed_for_a_while() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with many_descriptors():
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard == before[1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
