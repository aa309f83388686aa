# SPDX-License-Identifier: Apache-2.0
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollout_router.gateway.sink import CaptureSink, EpochFenced, SinkRefused, SinkUnavailable

STORE = "store-1"


@pytest.fixture
def sink(tmp_path: Path) -> CaptureSink:
    return CaptureSink(tmp_path / "capture", store_id=STORE)


def lines(sink: CaptureSink, rollout_id: str = "r1") -> list[bytes]:
    return (sink.directory / f"{rollout_id}.jsonl").read_bytes().splitlines()


def fence(sink: CaptureSink, rollout_id: str = "r1") -> Path:
    return sink.directory / ".fence" / f"{rollout_id}.epoch"


def in_another_process(sink: CaptureSink, program: str) -> None:
    head = (
        "import sys; from pathlib import Path\n"
        "from rollout_router.gateway.sink import *\n"
        "sink = CaptureSink(Path(sys.argv[1]), store_id=sys.argv[2])\n"
    )
    arguments = [sys.executable, "-c", head + program, str(sink.directory), sink.store_id]
    subprocess.run(arguments, check=True, timeout=60)


def test_f1_a_lower_epoch_of_another_process_is_refused(sink: CaptureSink) -> None:
    sink.raise_to("r1", 5)
    sink.append("r1", 5, b'{"n":5}')
    in_another_process(sink, "sink.raise_to('r1', 6); sink.append('r1', 6, b'{\"n\":6}')")

    with pytest.raises(EpochFenced) as refused:
        sink.append("r1", 5, b'{"late":5}')
    with pytest.raises(EpochFenced):
        sink.raise_to("r1", 5)

    assert (refused.value.claim_epoch, refused.value.highest) == (5, 6)
    assert lines(sink) == [b'{"n":5}', b'{"n":6}']


def test_f1_the_fence_outlives_its_process(sink: CaptureSink) -> None:
    sink.raise_to("r1", 6)

    again = CaptureSink(sink.directory, store_id=STORE)

    assert again.highest("r1") == 6
    with pytest.raises(EpochFenced):
        again.append("r1", 5, b"{}")
    assert not (sink.directory / "r1.jsonl").exists()


def test_f1_a_raise_is_on_disk_before_it_returns(
    sink: CaptureSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronised: list[str] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        synchronised.append(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", watched)
    sink.raise_to("r1", 5)
    assert synchronised == ["r1.epoch", ".fence"]
    sink.append("r1", 5, b"{}")
    assert len(synchronised) == 2
    sink.append("r1", 7, b"{}")  # an append that raises the fence synchronises it too
    assert synchronised[2:] == ["r1.epoch", ".fence"]


def test_f1_an_equal_epoch_is_raised_to_disk_too(
    sink: CaptureSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it may have died before its fsync, and then only memory knows of it."""
    sink.raise_to("r1", 5)
    synchronised: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synchronised.append(Path(f"/proc/self/fd/{file}").readlink().name)
    )

    CaptureSink(sink.directory, store_id=STORE).raise_to("r1", 5)

    assert synchronised == ["r1.epoch", ".fence"]


def test_f1_an_equal_epoch_is_accepted_and_rollouts_do_not_meet(sink: CaptureSink) -> None:
    sink.raise_to("r1", 9)
    sink.raise_to("r1", 9)
    sink.append("r2", 1, b"{}")

    assert sink.highest("r1") == 9
    assert sink.highest("r2") == 1


def test_f1_check_and_append_are_one_step(sink: CaptureSink) -> None:
    """A raise that waits for the lock comes after the whole append, or before all of it."""
    sink.raise_to("r1", 5)
    outcomes: list[str] = []
    holder = os.open(fence(sink), os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    def late() -> None:
        try:
            sink.append("r1", 5, b"{}")
        except EpochFenced:
            outcomes.append("fenced")

    thread = threading.Thread(target=late)
    thread.start()  # it waits for the lock, and has decided nothing
    successor = b"1 %020d " % 6
    crc = __import__("zlib").crc32(b"r1 6")
    os.pwrite(holder, successor + b"%08x\n" % crc, 0)
    os.close(holder)
    thread.join(30)

    assert outcomes == ["fenced"]
    assert not (sink.directory / "r1.jsonl").exists()


def test_f1_another_store_is_refused_and_told_the_way_out(sink: CaptureSink) -> None:
    sink.append("r1", 5, b"{}")

    with pytest.raises(SinkRefused, match=r"store-1.*store-2.*new capture folder.*move or remove"):
        CaptureSink(sink.directory, store_id="store-2")
    CaptureSink(sink.directory, store_id=STORE)


@pytest.mark.parametrize("damage", ["removed", "garbage", "other document"])
def test_f1_records_without_their_store_are_refused(sink: CaptureSink, damage: str) -> None:
    sink.append("r1", 5, b"{}")
    store = sink.directory / ".fence" / "STORE"
    if damage == "removed":
        store.unlink()
    else:
        store.write_text("{" if damage == "garbage" else "[]")

    with pytest.raises(SinkRefused, match="new capture folder"):
        CaptureSink(sink.directory, store_id=STORE)


@pytest.mark.parametrize("content", [b"1 5\n", b"x" * 32, b"1 %020d 00000000\n" % 5, b"\0" * 40])
def test_f1_a_damaged_fence_fails_closed_for_its_rollout_alone(
    sink: CaptureSink, content: bytes
) -> None:
    sink.raise_to("r1", 5)
    fence(sink).write_bytes(content)

    with pytest.raises(SinkUnavailable, match=r"r1.*damaged"):
        sink.append("r1", 6, b"{}")
    with pytest.raises(SinkUnavailable, match=r"r1.*damaged"):
        sink.raise_to("r1", 6)
    sink.append("r2", 5, b"{}")


def test_f1_a_fence_of_another_rollout_is_damage(sink: CaptureSink) -> None:
    sink.raise_to("r2", 3)
    fence(sink).write_bytes(fence(sink, "r2").read_bytes())

    with pytest.raises(SinkUnavailable):
        sink.append("r1", 3, b"{}")


def test_f1_the_wait_for_the_lock_has_a_bound(tmp_path: Path) -> None:
    sink = CaptureSink(tmp_path, store_id=STORE, lock_timeout_s=0.02)
    sink.raise_to("r1", 5)
    holder = os.open(fence(sink), os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    with pytest.raises(SinkUnavailable, match="held its lock"):
        sink.append("r1", 5, b"{}")
    sink.append("r2", 5, b"{}")  # another rollout's sink has a lock of its own
    os.close(holder)
    sink.append("r1", 5, b"{}")


@pytest.mark.timeout(30)
def test_f1_the_lock_is_tried_once_after_the_deadline(tmp_path: Path) -> None:
    sink = CaptureSink(tmp_path, store_id=STORE, lock_timeout_s=600)
    past_s = time.monotonic() - 1
    sink.raise_to("r1", 5, deadline_s=past_s)
    sink.append("r1", 5, b"{}", deadline_s=past_s)
    holder = os.open(fence(sink), os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    with pytest.raises(SinkUnavailable, match="held its lock"):
        sink.append("r1", 5, b"{}", deadline_s=past_s)
    with pytest.raises(SinkUnavailable, match="held its lock"):
        sink.raise_to("r1", 6, deadline_s=past_s)
    os.close(holder)

    assert (lines(sink), sink.highest("r1")) == ([b"{}"], 5)


def test_an_unrouted_record_meets_no_fence(sink: CaptureSink) -> None:
    sink.append("r1", None, b'{"n":1}')
    sink.raise_to("r1", 6)
    sink.append("r1", None, b'{"n":2}')

    assert lines(sink) == [b'{"n":1}', b'{"n":2}']
    assert sink.highest("r1") == 6


@pytest.mark.parametrize("whole", [[], [b'{"n":1}'], [b'{"n":1}', b'{"n":2}']])
@pytest.mark.parametrize("torn_bytes", [1, 70_000, 200_000])
def test_f2_a_torn_line_is_cut_off_before_the_next_record(
    sink: CaptureSink, whole: list[bytes], torn_bytes: int
) -> None:
    for line in whole:
        sink.append("r1", 5, line)
    with (sink.directory / "r1.jsonl").open("ab") as file:
        file.write(b"{" * torn_bytes)

    sink.append("r1", 5, b'{"n":9}')

    assert lines(sink) == [*whole, b'{"n":9}']


def test_c7_a_failed_write_leaves_no_part_of_its_line(
    sink: CaptureSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.append("r1", 5, b'{"n":1}')
    write = os.write

    def full(file: int, content: bytes) -> int:
        if len(content) > 4:
            return write(file, content[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SinkUnavailable, match="No space left"):
        sink.append("r1", 5, b'{"n":22}')
    monkeypatch.undo()

    assert (sink.directory / "r1.jsonl").read_bytes() == b'{"n":1}\n'
    sink.append("r1", 5, b'{"n":3}')
    assert lines(sink) == [b'{"n":1}', b'{"n":3}']


def test_c7_a_folder_that_cannot_be_made_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SinkUnavailable, match="capture folder"):
        CaptureSink(tmp_path / "file" / "capture", store_id=STORE)


def test_threads_and_processes_append_whole_lines(sink: CaptureSink) -> None:
    record = b'"' + b"x" * 20_000 + b'"'

    def append_ten() -> None:
        for _ in range(10):
            sink.append("r1", 5, record)

    threads = [threading.Thread(target=append_ten) for _ in range(4)]
    for thread in threads:
        thread.start()
    in_another_process(sink, "[sink.append('r1', 5, b'{}') for _ in range(10)]")
    for thread in threads:
        thread.join(60)

    assert sorted(lines(sink)) == sorted([record] * 40 + [b"{}"] * 10)


def test_modes_keep_others_out(sink: CaptureSink) -> None:
    sink.append("r1", 5, b"{}")

    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in sink.directory.rglob("*")}
    assert stat.S_IMODE(sink.directory.stat().st_mode) == 0o700
    assert modes == {".fence": 0o700, "STORE": 0o600, "r1.epoch": 0o600, "r1.jsonl": 0o600}


@pytest.mark.parametrize("rollout_id", ["", ".fence", "../x", "a/b", "a\n", "x" * 201, "é"])
def test_a_rollout_id_that_is_no_file_name_is_refused(sink: CaptureSink, rollout_id: str) -> None:
    with pytest.raises(ValueError, match="rollout id"):
        sink.append(rollout_id, 5, b"{}")
    with pytest.raises(ValueError, match="rollout id"):
        sink.raise_to(rollout_id, 5)


def test_the_rollout_named_store_does_not_meet_the_binding(sink: CaptureSink) -> None:
    sink.append("STORE", 5, b"{}")

    CaptureSink(sink.directory, store_id=STORE)


def test_a_record_is_one_line(sink: CaptureSink) -> None:
    with pytest.raises(ValueError, match="one line"):
        sink.append("r1", 5, b"{}\n{}")
