# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollout_router.checkpoint import database as database_module
from rollout_router.checkpoint.database import TOGETHER_MAX, Database
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.claims import Host

SCHEMA = "CREATE TABLE IF NOT EXISTS line (text TEXT PRIMARY KEY) STRICT"
CODE = "journal_unavailable"
CHILD = """
import sqlite3, sys
from pathlib import Path
from rollout_router.checkpoint.database import Database
from rollout_router.checkpoint.errors import CheckpointRefusal

def add(*texts):
    return lambda c: c.executemany("INSERT INTO line VALUES (?)", [(text,) for text in texts])

def opened():
    return Database(Path(sys.argv[1]), schema=sys.argv[2], version=1, what="it", code=sys.argv[3])

database = opened()
"""


def opened(path: Path, *, version: int = 1) -> Database:
    return Database(path, schema=SCHEMA, version=version, what="the lines", code=CODE)


def child(path: Path, script: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + script, str(path), SCHEMA, CODE, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def add(*texts: str) -> Callable[[sqlite3.Connection], None]:
    def change(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO line VALUES (?)", [(text,) for text in texts])

    return change


def lines(database: Database) -> set[str]:
    return database.read(lambda c: {text for (text,) in c.execute("SELECT text FROM line")})


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(opened(tmp_path / "lines.sqlite")) as one:
        yield one


class Writer:
    """Holds the writer in a first write until :meth:`let` and notes what it says to SQLite."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.holds = threading.Event()
        self._let = threading.Event()

    def hold(self, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(self.statements.append)
        self.holds.set()
        assert self._let.wait(60)

    def let(self) -> None:
        self._let.set()


async def write_behind(
    database: Database, *changes: Callable[..., Any]
) -> tuple[Writer, list[Any]]:
    """The results of *changes* that waited for the writer together."""
    writer = Writer()
    async with asyncio.TaskGroup() as group:
        group.create_task(database.write(writer.hold))
        await asyncio.to_thread(writer.holds.wait, 60)
        waiting = asyncio.gather(*map(database.write, changes), return_exceptions=True)
        await asyncio.sleep(0)  # each has asked
        writer.let()
    return writer, await waiting


def test_writes_that_wait_together_share_a_commit(database: Database) -> None:
    texts = [f"line {number}" for number in range(TOGETHER_MAX + 1)]
    writer, _ = asyncio.run(write_behind(database, *(add(text) for text in texts)))
    assert writer.statements.count("COMMIT") == 3  # the one that held it, 64, and one
    assert lines(database) == set(texts)


def test_a_write_that_is_refused_changes_nothing_and_is_no_matter_to_the_others(
    database: Database,
) -> None:
    def refuse(connection: sqlite3.Connection) -> None:
        add("refused")(connection)
        raise CheckpointRefusal("stale_attempt", "a later owner")

    def mistaken(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO line VALUES (?)", (object(),))

    changes = [add("a"), refuse, add("twice", "twice"), mistaken, add("b")]
    writer, results = asyncio.run(write_behind(database, *changes))
    assert writer.statements.count("COMMIT") == 2
    assert [type(result) for result in results] == [
        type(None),
        CheckpointRefusal,
        sqlite3.IntegrityError,
        sqlite3.ProgrammingError,
        type(None),
    ]
    assert lines(database) == {"a", "b"}


def test_a_cancelled_write_is_done_wholly_or_not_at_all(database: Database) -> None:
    async def run() -> None:
        writer = Writer()

        def begun(connection: sqlite3.Connection) -> None:
            add("begun")(connection)
            writer.hold(connection)

        async with asyncio.TaskGroup() as group:
            running = group.create_task(database.write(begun))
            await asyncio.to_thread(writer.holds.wait, 60)
            waiting = group.create_task(database.write(add("waiting")))
            await asyncio.sleep(0)  # it has asked
            for task in (running, waiting):
                task.cancel()
            await asyncio.wait([running, waiting])
            assert running.cancelled()
            assert waiting.cancelled()
            writer.let()
        await database.write(add("after"))

    asyncio.run(run())
    assert lines(database) == {"begun", "after"}


def test_what_waits_is_written_before_it_closes_and_nothing_after(tmp_path: Path) -> None:
    database = opened(tmp_path / "lines.sqlite")
    database.write_now(add("a"))
    database.close()
    database.close()
    with pytest.raises(CheckpointRefusal, match="was closed"):
        database.write_now(add("b"))
    assert lines(database) == {"a"}


def test_a_read_is_of_one_state(database: Database) -> None:
    def look(connection: sqlite3.Connection) -> list[int]:
        return [connection.execute("SELECT count(*) FROM line").fetchone()[0] for _ in range(2)]

    async def run() -> list[int]:
        reading = threading.Event()
        seen = threading.Event()

        def slow(connection: sqlite3.Connection) -> list[int]:
            first = connection.execute("SELECT count(*) FROM line").fetchone()[0]
            reading.set()
            assert seen.wait(60)
            return [first, *look(connection)]

        async with asyncio.TaskGroup() as group:
            read = group.create_task(database.read_in_thread(slow))
            await asyncio.to_thread(reading.wait, 60)
            written = group.create_task(database.write(add("a")))
            seen.set()
        await written
        return read.result()

    assert asyncio.run(run()) == [0, 0, 0]
    assert database.read(look) == [1, 1]


def test_another_process_that_holds_the_file_for_too_long_is_a_refusal_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_S", 0.01)
    with (
        closing(opened(tmp_path / "lines.sqlite")) as database,
        closing(sqlite3.connect(database.path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN EXCLUSIVE")
        for ask in (lambda: database.write_now(add("a")), lambda: lines(database)):
            with pytest.raises(CheckpointRefusal, match="locked") as refused:
                ask()
            assert refused.value.code == CODE
        other.execute("COMMIT")
        database.write_now(add("a"))
        assert lines(database) == {"a"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "none", str(mount)], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_c7_a_full_disk_changes_nothing_and_it_works_again_when_there_is_room(
    small_disk: Path,
) -> None:
    with closing(opened(small_disk / "lines.sqlite")) as database:
        database.write_now(add("a"))
        free = os.statvfs(small_disk)
        filler = small_disk / "filler"
        filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize))
        for text in ("small", "large" * 50_000):
            with pytest.raises(CheckpointRefusal, match="full") as refused:
                database.write_now(add(text))
            assert refused.value.code == CODE
            assert lines(database) == {"a"}
        filler.unlink()
        database.write_now(add("b"))
        assert lines(database) == {"a", "b"}


def test_c7_without_descriptors_nothing_changes_and_it_works_again_when_there_are_some(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines.sqlite"
    script = """
import os, resource
least = most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
while least > 3:  # down to where the next file has no number
    least -= 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError:
        break
for ask in (lambda: database.write_now(add("a")), lambda: database.read(list)):
    try:
        ask()
    except CheckpointRefusal as refusal:
        print(refusal.code, "unable to open" in str(refusal))
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
database.write_now(add("b"))
print(database.read(lambda c: c.execute("SELECT text FROM line").fetchall()))
"""
    out, _ = child(path, script).communicate(timeout=60)
    assert out.splitlines() == [f"{CODE} True", f"{CODE} True", "[('b',)]"]


def test_after_an_error_of_the_disk_this_process_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "lines.sqlite"
    script = """
import resource
database.write_now(add("a"))
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, most))  # EFBIG is no lack of room to SQLite
for text in ("x" * 100_000, "small"):
    try:
        database.write_now(add(text))
    except CheckpointRefusal as refusal:
        print(refusal.code, "disk I/O error" in str(refusal), "until this process" in str(refusal))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(database.read(lambda c: c.execute("SELECT text FROM line").fetchall()))
"""
    out, _ = child(path, script).communicate(timeout=60)
    first, second, read = out.splitlines()
    assert (first, second) == (f"{CODE} True False", f"{CODE} True True")
    assert read == "[('a',)]"
    with closing(opened(path)) as next_one:
        next_one.write_now(add("b"))
        assert lines(next_one) == {"a", "b"}


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "is_local", lambda *_: False)
    with pytest.raises(CheckpointRefusal, match="network file system") as refused:
        opened(tmp_path / "lines.sqlite")
    assert refused.value.code == CODE
    assert list(tmp_path.iterdir()) == []


def no_folder(path: Path) -> None:
    path.parent.rmdir()


def a_folder(path: Path) -> None:
    path.mkdir()


def open_to_others(path: Path) -> None:
    path.touch(0o640)


def no_database(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(b"no database at all" * 100)


def anothers(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    path.touch(0o600)
    os.chown(path, 12345, 12345)


def a_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "make", [no_folder, a_folder, open_to_others, no_database, anothers, a_pipe]
)
def test_what_is_no_file_of_its_own_is_refused_and_left(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "folder" / "lines.sqlite"
    path.parent.mkdir()
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(CheckpointRefusal) as refused:
        opened(path)
    assert refused.value.code == CODE
    assert str(path) in str(refused.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_the_file_is_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines.sqlite"
    with closing(opened(path)) as database:

        def look(connection: sqlite3.Connection) -> list[int]:
            add("a")(connection)
            return [path.stat().st_mode for path in tmp_path.iterdir()]

        modes = database.write_now(look)
    assert {stat.S_IMODE(mode) for mode in modes} == {0o600}
    assert len(modes) == 2  # the file, and its rollback journal


def test_a_file_of_another_schema_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "lines.sqlite"
    opened(path, version=2).close()
    before = path.read_bytes()
    with pytest.raises(CheckpointRefusal, match="has schema 2") as refused:
        opened(path)
    assert refused.value.code == "unknown_schema"
    assert path.read_bytes() == before


def test_a_file_is_synced_at_each_commit_and_has_no_write_ahead_log(database: Database) -> None:
    def look(connection: sqlite3.Connection) -> list[Any]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert database.write_now(look) == ["truncate", 2, 1]


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.sqlite"
    opened(path).close()
    script = """
for number in range(20):
    database.write_now(add(f"{sys.argv[4]} {number}"))
"""
    children = [child(path, script, name) for name in "ab"]
    for one in children:
        one.communicate(timeout=60)
        assert one.returncode == 0
    assert lines(opened(path)) == {f"{name} {number}" for name in "ab" for number in range(20)}


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(60, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_a_kill_leaves_whole_transactions_and_all_that_were_answered(
    tmp_path: Path, rounds: int
) -> None:
    path = tmp_path / "lines.sqlite"
    script = """
for number in range(10**9):
    database.write_now(add(*(f"{sys.argv[4]} {number} {part} " + "x" * 5000 for part in range(9))))
    print(number, flush=True)
"""
    answered = 0
    for turn in range(rounds):
        with child(path, script, str(turn)) as writing:
            assert writing.stdout is not None
            said = [int(next(writing.stdout)) for _ in range(5 + turn)]
            writing.kill()
            said += [int(line) for line in writing.stdout]
        answered += len(said)
        found = [" ".join(line.split(" ")[:2]) for line in lines(opened(path))]
        assert {found.count(one) for one in set(found)} == {9}
        assert {f"{turn} {number}" for number in said} <= set(found)
        assert answered <= len(set(found)) <= answered + turn + 1  # one may have been on its way


def test_f1_looking_at_a_file_drops_no_lock_that_this_process_holds_on_it(tmp_path: Path) -> None:
    path = tmp_path / "it"
    writing, other = threading.Event(), threading.Event()

    def slowly(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO line VALUES ('first')")
        writing.set()
        assert other.wait(60)

    with closing(opened(path)) as first, ThreadPoolExecutor(1) as threads:
        kept = threads.submit(first.write_now, slowly)
        assert writing.wait(60)
        opened(path).close()
        intruder = child(
            path,
            """
with sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None) as db:
    try:
        db.execute("BEGIN IMMEDIATE")
        print("in")
    except sqlite3.OperationalError as error:
        print(error)
""",
        )
        said, _ = intruder.communicate(timeout=60)
        other.set()
        kept.result()
        assert said == "database is locked\n"
        assert lines(first) == {"first"}


def test_who_can_write_no_more_says_so_once(tmp_path: Path) -> None:
    script = """
import resource
said = []
database = Database(
    Path(sys.argv[1]), schema=sys.argv[2], version=1, what="it", code=sys.argv[3],
    on_poisoned=lambda: said.append("poisoned"),
)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
for text in ("a", "b"):
    try:
        database.write_now(add(text))
    except CheckpointRefusal:
        pass
print(said)
"""
    said, _ = child(tmp_path / "it", script).communicate(timeout=60)
    assert said == "['poisoned']\n"
