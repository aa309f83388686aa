# SPDX-License-Identifier: Apache-2.0
"""Counts of processes that were killed: kept, and counted once."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.metrics import samples

from rollout_router import metrics_files
from rollout_router.metrics_files import FOLDER, fold, make_folder, scrape

COUNTING = """
import os, signal, sys
from rollout_router import metrics
metrics.REQUESTS["public", "2xx"].inc(int(sys.argv[1]))
metrics.HOP_SECONDS.observe(0.002)
metrics.CLAIMS.set(3)
metrics.ADMISSION_CLOSED.set(int(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_after(folder: Path, count: int, *, closed: int = 0) -> int:
    """The pid of a process that counted, and was killed at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", COUNTING, str(count), str(closed)],
        env={**os.environ, FOLDER: str(folder)},
    )
    assert process.wait() < 0
    return process.pid


def test_what_killed_processes_counted_stays_and_counts_once(tmp_path: Path) -> None:
    folder, held = make_folder(tmp_path)
    requests = ("rollout_router_requests_total", ("outcome", "2xx"), ("port", "public"))
    hops = ("rollout_router_hop_seconds_count",)

    pids = [killed_after(folder, count) for count in (1, 2)]
    before = samples(scrape(folder))
    assert (before[requests], before[hops]) == (3, 2)
    assert before[("rollout_router_claims_held",)] == 6  # until somebody says that they are dead

    for pid in pids:
        fold(folder, pid)
        fold(folder, pid)  # nothing is left to be added again
        after = samples(scrape(folder))
        assert (after[requests], after[hops]) == (3, 2)
    assert ("rollout_router_claims_held",) not in after
    assert not [file for file in folder.iterdir() if file.stem.endswith(tuple(map(str, pids)))]

    killed_after(folder, 4)
    assert samples(scrape(folder))[requests] == 7
    os.close(held)


def test_c7_what_cannot_be_added_up_whole_is_not_added_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, held = make_folder(tmp_path)
    pid = killed_after(folder, 3)
    before = samples(scrape(folder))

    def full(descriptor: int, offset: int, length: int) -> None:
        if "histogram" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, "no room")
        os.ftruncate(descriptor, offset + length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="no room"):
            fold(folder, pid)
    assert samples(scrape(folder)) == before
    fold(folder, pid)
    after = samples(scrape(folder))
    assert after == {name: before[name] for name in after}
    os.close(held)


def test_one_closed_gate_closes_the_gauge(tmp_path: Path) -> None:
    folder, held = make_folder(tmp_path)
    for closed in (0, 1, 0):
        killed_after(folder, 1, closed=closed)

    assert samples(scrape(folder))[("rollout_router_admission_closed",)] == 1
    os.close(held)


def test_a_file_that_was_only_made_is_nothing(tmp_path: Path) -> None:
    folder, held = make_folder(tmp_path)
    (folder / "counter_77.db").touch()

    assert samples(scrape(folder)) == {}
    fold(folder, 77)
    assert not (folder / "counter_77.db").exists()
    os.close(held)


def test_a_folder_that_another_service_cleared_before_it_was_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.mkdtemp
    cleared: list[str] = []

    def made_and_cleared(**options: Any) -> str:
        name: str = made(**options)
        if not cleared:
            cleared.append(name)
            Path(name).rmdir()
        return name

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_cleared)
    folder, held = make_folder(tmp_path)

    assert folder.exists()
    assert str(folder) not in cleared
    os.close(held)


def test_the_next_service_clears_what_nobody_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_files, "SHARED_MEMORY", tmp_path)
    used, held = make_folder()
    abandoned, gone = make_folder()
    os.close(gone)

    new, also_held = make_folder()

    assert {used, new} <= set(tmp_path.iterdir())
    assert not abandoned.exists()
    assert new.stat().st_mode & 0o777 == 0o700
    for descriptor in (held, also_held):
        os.close(descriptor)
