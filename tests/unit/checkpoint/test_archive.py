# SPDX-License-Identifier: Apache-2.0
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rollout_router.checkpoint.archive import (
    is_published,
    list_archives,
    publish,
    read_archive,
)
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.manifest import Deliverable, Heading, Manifest

HEADING = Heading(
    instance="agent",
    run="run-1",
    store_id="store",
    checkpoint_id="step-10",
    arguments_digest=digest("arguments"),
    restarts=("r3",),
    deliverable=(Deliverable(rollout_id="r4", receipt=digest("receipt")),),
)
RECORDS = [canonical({"rollout_id": f"r{number}"}).encode() for number in range(3)]
ASKED = {"instance": "agent", "run": "run-1", "checkpoint_id": "step-10"}
OTHERS = [
    replace(HEADING, arguments_digest=digest("others")),
    replace(HEADING, run="run-2"),
    replace(HEADING, store_id="another"),
    replace(HEADING, restarts=()),
]

# Publishes in one forked process after another; each is killed before its next system call that a
# file could tell of: every open, mkdir, rename, link and removal, and every sync.
KILLED = """
import os, signal, sys
from itertools import count
from pathlib import Path
from rollout_router.checkpoint.archive import publish
sys.path.insert(0, sys.argv[2])
from test_archive import HEADING, RECORDS

sync, seen = os.fsync, iter(())
def happens():
    if next(seen, 0) == nth:
        os.kill(os.getpid(), signal.SIGKILL)
def audit(event, arguments):
    if event in {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "fcntl.flock"}:
        happens()
def synced(file):
    happens()
    sync(file)
for nth in count(1):
    if not (child := os.fork()):
        os.fsync, seen = synced, count(1)
        sys.addaudithook(audit)
        permit = lambda name: (happens(), name())
        publish(Path(sys.argv[1], str(nth), "deep"), HEADING, iter(RECORDS), permit=permit)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
"""

RACING = """
import sys
from dataclasses import replace
from pathlib import Path
from rollout_router.checkpoint.archive import publish
from rollout_router.checkpoint.errors import CheckpointRefusal
sys.path.insert(0, sys.argv[2])
from test_archive import HEADING, RECORDS

heading = replace(HEADING, run=sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
code = "checkpoint_busy"
while code == "checkpoint_busy":
    try:
        publish(Path(sys.argv[1]), heading, RECORDS, permit=lambda name: name())
        code = "published"
    except CheckpointRefusal as refusal:
        code = refusal.code
print(code)
"""


def allow() -> None:
    """Permit."""


def write(
    directory: Path,
    heading: Heading = HEADING,
    records: list[bytes] = RECORDS,
    permit: Callable[[], None] = allow,
) -> Manifest:
    def asked(name_it: Callable[[], None]) -> None:
        permit()
        name_it()

    return publish(directory, heading, iter(records), permit=asked)


def named(name: str, value: str) -> Heading:
    changes: dict[str, Any] = {name: value}
    return replace(HEADING, **changes)


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises(CheckpointRefusal) as caught:
        call(*arguments, **named)
    return caught.value.code


def path_of(file: int) -> str:
    return str(Path(f"/proc/self/fd/{file}").readlink())


def home(directory: Path) -> Path:
    return directory / "agent" / "step-10"


def test_what_was_published_is_read_back(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "for it"
    manifest = write(directory)
    archive = read_archive(directory, **ASKED)

    assert archive.manifest == manifest
    assert manifest.heading() == HEADING
    assert list(archive.records()) == RECORDS
    assert list(archive.records()) == RECORDS  # as often as it is asked
    raw = b"".join(record + b"\n" for record in RECORDS)
    assert (manifest.records_bytes, manifest.records_count) == (len(raw), 3)
    assert manifest.records_sha256 == digest(raw)


def test_only_its_user_can_look_into_it(tmp_path: Path) -> None:
    manifest = write(tmp_path / "new")
    modes = {
        str(path.relative_to(tmp_path)): oct(path.stat().st_mode & 0o777)
        for path in sorted(tmp_path.rglob("*"))
    }
    assert modes == {
        "new": "0o700",
        "new/agent": "0o700",
        "new/agent/step-10": "0o700",
        "new/agent/step-10/.lock": "0o600",
        "new/agent/step-10/manifest.json": "0o600",
        f"new/agent/step-10/records-{manifest.records_sha256}.jsonl": "0o600",
    }


def test_a_checkpoint_may_hold_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, records=[]).records_count == 0
    assert list(read_archive(tmp_path, **ASKED).records()) == []


def test_an_equal_retry_gives_the_same_manifest_and_replaces_nothing(tmp_path: Path) -> None:
    first = write(tmp_path)
    before = (home(tmp_path) / "manifest.json").stat()
    assert write(tmp_path) == first
    assert (home(tmp_path) / "manifest.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize("other", OTHERS)
def test_another_heading_is_a_conflict_and_leaves_the_first(tmp_path: Path, other: Heading) -> None:
    write(tmp_path)
    before = sorted(home(tmp_path).iterdir())
    untaken = iter(RECORDS)
    assert (
        refused(publish, tmp_path, other, untaken, permit=lambda name: name())
        == "checkpoint_conflict"
    )
    if other.identity != HEADING.identity:
        assert list(untaken) == RECORDS  # nothing was written for it
    assert sorted(home(tmp_path).iterdir()) == before
    assert list(read_archive(tmp_path, **ASKED).records()) == RECORDS


@pytest.mark.parametrize("records", [RECORDS[:2], [*RECORDS, b"{}"], RECORDS[::-1], []])
def test_other_records_are_a_conflict_and_leave_the_first(
    tmp_path: Path, records: list[bytes]
) -> None:
    write(tmp_path)
    before = sorted(home(tmp_path).iterdir())
    assert refused(write, tmp_path, records=records) == "checkpoint_conflict"
    assert sorted(home(tmp_path).iterdir()) == before


def test_reading_asks_for_ids_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an id"):
        read_archive(tmp_path, instance="..", run="run-1", checkpoint_id="step-10")
    with pytest.raises(ValueError, match="not an id"):
        list_archives(tmp_path, "../agent")


@pytest.mark.parametrize("record", [b"", b"{}\n{}", "é".encode()])
def test_a_record_is_one_line_of_ascii(tmp_path: Path, record: bytes) -> None:
    with pytest.raises(ValueError, match="record 4 is not one line"):
        write(tmp_path, records=[*RECORDS, record])
    assert [path.name for path in home(tmp_path).iterdir()] == [".lock"]


def test_what_is_forbidden_gets_no_name_and_can_be_published_later(tmp_path: Path) -> None:
    def forbid() -> NoReturn:
        assert not (home(tmp_path) / "manifest.json").exists()
        raise CheckpointRefusal("checkpoint_abandoned", "too late")

    assert refused(write, tmp_path, permit=forbid) == "checkpoint_abandoned"
    assert refused(read_archive, tmp_path, **ASKED) == "manifest_missing"
    assert [path.name for path in home(tmp_path).iterdir()] == [".lock"]
    write(tmp_path)


def test_what_a_dead_publisher_left_goes_with_the_next(tmp_path: Path) -> None:
    home(tmp_path).mkdir(mode=0o700, parents=True)
    (tmp_path / "agent").chmod(0o700)
    for name in (".records", ".manifest", f"records-{digest('other')}.jsonl"):
        (home(tmp_path) / name).write_bytes(b"half of it")
    manifest = write(tmp_path)
    assert {path.name for path in home(tmp_path).iterdir()} == {
        ".lock",
        "manifest.json",
        f"records-{manifest.records_sha256}.jsonl",
    }


def test_a_second_publisher_is_told_that_one_is_at_it(tmp_path: Path) -> None:
    codes: list[str] = []
    write(tmp_path, permit=lambda: codes.append(refused(write, tmp_path)))
    assert codes == ["checkpoint_busy"]
    assert list(read_archive(tmp_path, **ASKED).records()) == RECORDS


def test_of_two_processes_that_publish_at_once_one_has_the_name(tmp_path: Path) -> None:
    def race(run: str) -> "subprocess.Popen[str]":
        folder = str(Path(__file__).parent)
        command = [sys.executable, "-c", RACING, str(tmp_path / "new"), folder, run]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    with race("run-1") as one, race("run-2") as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        codes = [process.communicate()[0].strip() for process in (one, other)]

    assert sorted(codes) == ["checkpoint_conflict", "published"]
    winner = f"run-{codes.index('published') + 1}"
    archive = read_archive(tmp_path / "new", **{**ASKED, "run": winner})
    assert list(archive.records()) == RECORDS


def test_a_publisher_killed_anywhere_leaves_all_or_nothing_and_a_retry_ends_it(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    subprocess.run(command, check=True, timeout=60)
    attempts = sorted((int(path.name), path / "deep") for path in tmp_path.iterdir())
    published = []
    for number, directory in attempts:
        listed = list_archives(directory, "agent")
        assert {one.code for one in listed} <= {None, "manifest_missing"}, number
        published.append(any(one.manifest for one in listed))
        manifest = write(directory)
        assert list(read_archive(directory, **ASKED).records()) == RECORDS
        assert {path.name for path in home(directory).iterdir()} == {
            ".lock",
            "manifest.json",
            f"records-{manifest.records_sha256}.jsonl",
        }, number
    # Neither the first moments nor the last ones were missed, and a name once given stays.
    assert published == sorted(published)
    assert published.count(False) > 10
    assert published.count(True) > 1


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, renamed and linked, in order."""
    seen: list[str] = []
    sync, link, rename = os.fsync, os.link, os.rename

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noting(*arguments: Any, **named: Any) -> None:
            seen.append(name)
            call(*arguments, **named)

        return noting

    def synced(file: int) -> None:
        seen.append(path_of(file))
        sync(file)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", noted("link", link))
    monkeypatch.setattr(os, "rename", noted("rename", rename))
    return seen


@pytest.mark.parametrize("retry", [False, True])
def test_all_is_on_the_disk_before_the_name_and_the_name_before_the_answer(
    tmp_path: Path, traced: list[str], *, retry: bool
) -> None:
    directory = tmp_path / "made" / "for it"
    if retry:
        write(directory)
        traced.clear()
    write(directory, permit=lambda: traced.append("permit"))

    folder = home(directory)
    assert traced[:3] == [f"{folder}/.records", "rename", f"{folder}/.manifest"]
    above = traced[3 : traced.index("permit")]
    made = [folder, directory / "agent", directory, directory.parent, tmp_path]
    assert above[:5] == [str(path) for path in made]
    assert traced[3 + len(above) :] == ["permit", "link", str(folder)]


def test_the_parents_are_synced_where_a_crashed_attempt_may_have_made_them(
    tmp_path: Path, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(  # nobody could have made anything in the folder above this one
        os,
        "access",
        lambda path, mode, *, dir_fd, **named: (
            (mode, path_of(dir_fd)) != (os.W_OK, str(tmp_path))
            and access(path, mode, dir_fd=dir_fd, **named)
        ),
    )
    write(tmp_path / "new")
    assert str(tmp_path) in traced
    assert str(tmp_path.parent) not in traced


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])  # records, manifest, folder, its name
def test_a_disk_that_fails_at_any_sync_leaves_no_name_but_a_retry_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, code: int
) -> None:
    sync, calls = os.fsync, iter(range(1, 1000))

    def failing(file: int) -> None:
        if next(calls) == nth:
            raise OSError(code, os.strerror(code))
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        patch.setattr(os, "access", lambda *_, **__: False)  # as where no parent was made
        assert refused(write, tmp_path) == "archive_unavailable"
    assert next(calls) == nth + 1  # nothing was synced afterwards
    names = {path.name for path in home(tmp_path).iterdir()}
    assert not names & {".records", ".manifest"}
    assert ("manifest.json" in names) == (nth == 4)  # it may survive, and the retry makes sure
    write(tmp_path)
    assert list(read_archive(tmp_path, **ASKED).records()) == RECORDS


@pytest.mark.parametrize("bytes_max", [10, 100], ids=["records", "manifest"])
def test_a_file_that_cannot_grow_leaves_no_name_and_nothing_else(
    tmp_path: Path, bytes_max: int
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        code = refused(write, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == "archive_unavailable"
    assert [path.name for path in home(tmp_path).iterdir()] == [".lock"]
    write(tmp_path)


def test_a_damaged_manifest_is_named_and_left_untouched(tmp_path: Path) -> None:
    write(tmp_path)
    path = home(tmp_path) / "manifest.json"
    torn = path.read_bytes()[:-9]
    path.write_bytes(torn)
    assert refused(read_archive, tmp_path, **ASKED) == "manifest_damaged"
    assert refused(write, tmp_path) == "manifest_damaged"
    assert path.read_bytes() == torn


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:5] + b"x" + raw[6:],
        lambda raw: raw.split(b"\n", 1)[1],
        lambda raw: raw + b"{}\n",
        lambda raw: raw[:-1],
        lambda _: None,
    ],
    ids=["a flipped byte", "a missing line", "a line more", "cut", "no file"],
)
def test_records_that_are_not_what_was_written_are_never_handed_out(
    tmp_path: Path, change: Callable[[bytes], bytes | None]
) -> None:
    manifest = write(tmp_path)
    archive = read_archive(tmp_path, **ASKED)
    path = home(tmp_path) / f"records-{manifest.records_sha256}.jsonl"
    raw = change(path.read_bytes())
    path.unlink()
    if raw is not None:
        path.write_bytes(raw)
    assert refused(read_archive, tmp_path, **ASKED) == "manifest_damaged"
    assert refused(next, archive.records()) == "manifest_damaged"
    assert write(tmp_path) == manifest  # who still has the records can heal it
    assert list(archive.records()) == RECORDS


@pytest.mark.parametrize(("name", "value"), [("instance", "other"), ("checkpoint_id", "step-11")])
def test_a_folder_of_another_is_refused(tmp_path: Path, name: str, value: str) -> None:
    write(tmp_path)
    asked = {**ASKED, name: value}
    moved = tmp_path / asked["instance"] / asked["checkpoint_id"]
    moved.parent.mkdir(mode=0o700, exist_ok=True)
    home(tmp_path).rename(moved)
    assert refused(read_archive, tmp_path, **asked) == "manifest_of_another"
    assert refused(write, tmp_path, named(name, value)) == "checkpoint_conflict"


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    assert refused(read_archive, tmp_path, **{**ASKED, "run": "run-2"}) == "manifest_of_another"


@pytest.mark.parametrize("what", ["agent", "agent/step-10", "manifest", "records"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "archives"
    manifest = write(directory)
    names = {
        "manifest": "agent/step-10/manifest.json",
        "records": f"agent/step-10/records-{manifest.records_sha256}.jsonl",
    }
    path = directory / names.get(what, what)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refused(read_archive, directory, **ASKED) == "archive_unavailable"
    if what != "records":  # which a publisher writes anew
        assert refused(write, directory) == "archive_unavailable"
        assert path.is_symlink()


@pytest.mark.parametrize("name", ["agent", "agent/step-10"])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).chmod(0o770)
    assert refused(read_archive, tmp_path, **ASKED) == "archive_unavailable"
    assert refused(write, tmp_path) == "archive_unavailable"


def test_a_pipe_in_the_place_of_a_manifest_blocks_nobody(tmp_path: Path) -> None:
    write(tmp_path)
    path = home(tmp_path) / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    assert refused(read_archive, tmp_path, **ASKED) == "archive_unavailable"


def test_a_listing_names_what_is_damaged_and_what_was_not_finished(tmp_path: Path) -> None:
    assert list_archives(tmp_path / "none", "agent") == []
    manifests = {
        name: write(tmp_path, replace(HEADING, checkpoint_id=name)) for name in ("a", "b", "c")
    }
    (tmp_path / "agent" / "b" / "manifest.json").write_bytes(b"{")
    (tmp_path / "agent" / "d").mkdir(0o700)
    (tmp_path / "agent" / ".not-an-id").mkdir(0o700)

    listed = list_archives(tmp_path, "agent")

    assert [(one.checkpoint_id, one.code) for one in listed] == [
        ("a", None),
        ("b", "manifest_damaged"),
        ("c", None),
        ("d", "manifest_missing"),
    ]
    assert [one.manifest for one in listed] == [manifests["a"], None, manifests["c"], None]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    write(tmp_path)
    before = count()
    write(tmp_path)
    list(read_archive(tmp_path, **ASKED).records())
    refused(write, tmp_path, OTHERS[0])
    refused(read_archive, tmp_path, **{**ASKED, "instance": "none"})
    (tmp_path / "agent").chmod(0o770)
    refused(write, tmp_path)
    assert count() == before


@pytest.mark.parametrize("other", OTHERS[:3])
def test_a_manifest_is_published_for_who_asked_for_it(tmp_path: Path, other: Heading) -> None:
    assert not is_published(tmp_path, HEADING)
    write(tmp_path)
    assert is_published(tmp_path, HEADING)
    assert is_published(tmp_path, replace(HEADING, restarts=(), deliverable=()))
    assert not is_published(tmp_path, other)
    (home(tmp_path) / "manifest.json").write_bytes(b"{")
    assert not is_published(tmp_path, HEADING)
    home(tmp_path).chmod(0o770)
    assert refused(is_published, tmp_path, HEADING) == "archive_unavailable"


def test_what_is_said_to_be_published_survives_power_loss(
    tmp_path: Path, traced: list[str]
) -> None:
    write(tmp_path)
    traced.clear()
    assert is_published(tmp_path, HEADING)
    assert traced[:3] == [str(path) for path in (home(tmp_path), tmp_path / "agent", tmp_path)]
