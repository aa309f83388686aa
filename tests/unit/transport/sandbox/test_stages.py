# SPDX-License-Identifier: Apache-2.0
"""The line of a call, and a file that cannot be written."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.stages import DELTA, LOCAL_HOP, OTHER, WAIT, Laps, Timings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unit.transport.sandbox.conftest import FakeGateway, Handler, Harness, Received

    from rollout_router.transport.sandbox.shim import Shim

BODY = b'{"messages":["' + b"the first turn " * 40 + b'"]}'
NAMES = ["local_hop_ms", "delta_ms", "other_ms", "wait_ms"]


def test_every_moment_belongs_to_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.5, 1.75, 2.0, 4.0, 4.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    laps = Laps()
    for stage in (LOCAL_HOP, DELTA, OTHER, WAIT, LOCAL_HOP):
        laps.end(stage)

    assert laps.spent_s == {LOCAL_HOP: 1.0, DELTA: 0.25, OTHER: 0.25, WAIT: 2.0}
    assert laps.total_s() == 3.5


def test_s5_a_file_that_fails_is_reported_once_until_it_works_again(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "later" / "timings"
    timings = Timings(str(path), report=said.append)
    for _ in range(2):
        timings.write(Laps(), [])
    assert len(said) == 1
    assert said[0].startswith(f"timings could not be written to {path}: ")

    path.parent.mkdir()
    timings.write(Laps(), [("server-timing", "a;dur=1"), ("Server-Timing", "b")])
    assert json.loads(path.read_text())["server_timing"] == "a;dur=1, b"
    path.unlink()
    os.mkfifo(path)  # without a reader: to open it would wait

    timings.write(Laps(), [])
    assert len(said) == 2
    Timings("\0", report=said.append).write(Laps(), [])
    assert len(said) == 3


def _calls(shim: Shim, harness: Harness, *bodies: bytes) -> None:
    for body in bodies:
        assert type(harness)(shim.port).post(body)[1]["Server-Timing"] == "gate;dur=1.5"
    shim.stop()


@pytest.fixture
def timed_gateway(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    """Each of its answers has a Server-Timing of its own."""
    handler: Any = gateway.RequestHandlerClass
    end_headers = handler.end_headers

    def end(self: Handler) -> None:
        self.send_header("Server-Timing", "gate;dur=1.5")
        end_headers(self)

    monkeypatch.setattr(handler, "end_headers", end)
    return gateway


def test_a_call_leaves_a_line_with_its_stages(
    start_shim: Callable[..., Shim], harness: Harness, timed_gateway: FakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "timings"

    def lose(handler: Handler, _: Received) -> None:
        handler.answer(409, Rollout_History=wire.RESYNC)

    shim = start_shim(timings_file=str(file))
    one = type(harness)(shim.port)
    one.post(BODY)
    one.post(BODY + b"2")
    timed_gateway.scripts.append(lose)
    one.post(BODY + b"3")
    one.post(BODY, "/v1/x")
    _calls(shim, harness)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    full, sent = len(BODY), [len(received.raw) for received in timed_gateway.received]
    assert [
        (line["rollout"], line["sent"], line["bytes_full"], line["bytes_sent"])
        for line in sorted(lines, key=lambda line: line["rollout"] is None)  # each after its answer
    ] == [
        ("r1", "full", full, full),
        ("r1", "frame", full + 1, sent[1]),
        ("r1", "packed", full + 1, sent[2] + sent[3]),
        (None, "passed", full, full),
    ]
    digests = [line["sha256"] for line in lines]
    assert digests[0] == wire.sha256_hex(BODY)
    assert digests[2] == wire.sha256_hex(BODY + b"3")  # as it was written, however it went
    assert digests[3] is None
    for line in lines:
        assert list(line)[5:] == [*NAMES, "total_ms", "server_timing"]
        assert line["server_timing"] == "gate;dur=1.5"
        assert sum(line[name] for name in NAMES) == pytest.approx(line["total_ms"], abs=0.005)
        assert line["wait_ms"] > 0
    assert lines[3]["delta_ms"] == 0


def test_s5_timings_that_cannot_be_written_cost_no_call(
    start_shim: Callable[..., Shim], harness: Harness, timed_gateway: FakeGateway, tmp_path: Path
) -> None:
    shim = start_shim(timings_file=str(tmp_path / "missing" / "timings"))

    _calls(shim, harness, BODY, BODY)

    assert len(timed_gateway.bodies) == 2


def test_nothing_is_measured_where_no_file_was_asked_for(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Laps, "__init__", None)

    assert harness.post(BODY)[0] == 200
