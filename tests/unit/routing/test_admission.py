# SPDX-License-Identifier: Apache-2.0
"""The gate as a worker sees it (R6)."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from support.routing import PATIENCE_S, Application, Rig

from rollout_router.claims import Gate, read_gate, write_gate
from rollout_router.routing import admission as module
from rollout_router.routing.admission import Admission


def test_r6_a_worker_that_starts_behind_a_closed_gate_starts_closed(tmp_path: Path) -> None:
    write_gate(tmp_path, Gate(open=False, by="ada", why="upkeep"))

    assert Admission(tmp_path).gate == Gate(open=False, by="ada", why="upkeep")


def test_r6_the_gate_is_seen_when_it_is_read_again(tmp_path: Path) -> None:
    admission = Admission(tmp_path)
    seen = [admission.gate.open]

    write_gate(tmp_path, Gate(open=False, by="ada", why="upkeep"))
    seen.append(admission.gate.open)
    admission.refresh()
    seen.append(admission.gate.open)
    (tmp_path / "gate").unlink()
    admission.refresh()
    seen.append(admission.gate.open)

    assert seen == [True, True, False, True]


def test_r6_a_gate_that_cannot_be_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "gate").write_bytes(b"open")

    assert not Admission(tmp_path).gate.open


async def test_r6_a_worker_reads_the_gate_once_others_can_find_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one who closes the gate in between would miss it, and it would not see the gate."""
    found: list[int] = []

    def read(state_dir: Path) -> Gate:
        found.append(len(list((rig.state_dir / "owners").iterdir())))
        return read_gate(state_dir)

    monkeypatch.setattr(module, "read_gate", read)
    await rig.start(Application())

    assert found[0] == 1


def test_r6_what_was_read_of_the_gate_first_is_not_kept_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = Admission(tmp_path)
    reading, go_on = threading.Event(), threading.Event()

    def slow(state_dir: Path) -> Gate:
        gate = read_gate(state_dir)
        if gate.open:
            reading.set()
            go_on.wait(PATIENCE_S)
        return gate

    monkeypatch.setattr(module, "read_gate", slow)
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(admission.refresh)
        assert reading.wait(PATIENCE_S)
        write_gate(tmp_path, Gate(open=False, by="ada", why="a checkpoint"))
        late = threads.submit(admission.refresh)
        assert not wait([late], timeout=0.05).done, "it must not overtake what was read before"
        go_on.set()
        early.result()
        late.result()
    assert not admission.gate.open
