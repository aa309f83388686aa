# SPDX-License-Identifier: Apache-2.0
"""One SQLite file whose commits survive power loss, written by one thread of a process.

A rollback journal that is truncated, with ``synchronous=FULL``: a commit has reached the disk when
it returns. Not a write-ahead log: versions of SQLite from 3.7.0 up to 3.51.2 may damage the file
where several connections reset one (sqlite.org/wal.html, "The WAL-reset bug"), and several workers
are just that.

Writes that wait together are committed together: one sync for all of them. Each either changes
what it says or changes nothing; a refusal of one is no matter to the others.
"""

import asyncio
import os
import queue
import sqlite3
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.claims import Host
from rollout_router.claims.disk import sync_directory

__all__ = ["BUSY_S", "TOGETHER_MAX", "Database"]

BUSY_S: Final = 10.0
"""How long a write waits for another process's: a commit takes a few milliseconds."""

TOGETHER_MAX: Final = 64
"""Writes of one commit. More would wait for the slowest of them; a sync is shared well by these."""

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,  # no descriptor is left: said before anything is written
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_LOCKED,
    }
)
"""What goes away by itself, and leaves the file as it was. After any other error it is not certain
what reached the disk: this process writes no more, and the next one recovers the file."""

_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_Result = TypeVar("_Result")


class Database:
    """One open file. Synchronous calls run in the caller's thread, :meth:`write` in the writer.

    Args:
        path: made with mode 0600 where it does not exist, in a directory that does.
        schema: statements that make the tables where they are missing.
        version: of *schema*; a file of another one is refused.
        what: for messages: "the journal", "the environments".
        code: of the refusal while it cannot be written or read.
        on_poisoned: called once, in the writer's thread, where this process will write no more.

    Raises:
        CheckpointRefusal: ``unknown_schema``, or *code*: the file system is a network one, the file
            is another user's or open to others, or cannot be read. Nothing was changed.
    """

    def __init__(
        self,
        path: Path,
        *,
        schema: str,
        version: int,
        what: str,
        code: str,
        on_poisoned: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._what = what
        self._code = code
        self._on_poisoned = on_poisoned
        self._poisoned: str | None = None  # why nothing more is written until the process restarts
        self._waiting: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._check_place()
        try:
            with closing(self._connect()) as connection:
                self._prepare(connection, schema, version)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    async def write(self, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run *change* in a transaction of the writer's and return once it is on the disk.

        Where the caller was cancelled it is done wholly or not at all, as if its process had died.

        Raises:
            CheckpointRefusal: what *change* raises, or this database's code: nothing was changed.
        """
        return await asyncio.wrap_future(self._submit(change))

    def write_now(self, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """:meth:`write` for a program without an event loop: it blocks."""
        return self._submit(change).result()

    def read(self, look: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run *look* on one consistent state of the file, in this thread.

        Raises:
            CheckpointRefusal: what *look* raises, or this database's code.
        """
        try:
            with closing(self._connect()) as connection:
                connection.execute("BEGIN")
                return look(connection)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    async def read_in_thread(self, look: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """:meth:`read`, without holding the event loop."""
        return await asyncio.to_thread(self.read, look)

    def close(self) -> None:
        """Write what waits, and end the writer. What is asked for later is refused."""
        with self._starting:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def _submit(self, change: Callable[[sqlite3.Connection], _Result]) -> "Future[_Result]":
        write: _Write = _Write(change)
        with self._starting:
            if self._closed:
                raise self._refused(f"{self._what} was closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._what, daemon=True)
                self._thread.start()
            self._waiting.put(write)
        return write.future

    def _run(self) -> None:
        """The writer: takes what waits, and commits it together."""
        connection: sqlite3.Connection | None = None
        while (first := self._waiting.get()) is not None:
            batch, ends = [first], False
            with suppress(queue.Empty):
                while len(batch) < TOGETHER_MAX and not ends:
                    write = self._waiting.get_nowait()
                    ends = write is None
                    batch += [] if write is None else [write]
            batch = [write for write in batch if write.future.set_running_or_notify_cancel()]
            try:
                if self._poisoned is not None:
                    raise self._refused(self._poisoned)
                connection = connection or self._connect()
                if batch:
                    _commit(connection, batch)
            except (sqlite3.Error, CheckpointRefusal) as error:
                refusal = error if isinstance(error, CheckpointRefusal) else self._failed(error)
                if connection is not None:
                    connection.close()  # a commit that failed is rolled back here, or by the next
                    connection = None
                for write in batch:
                    write.future.set_exception(refusal)
            if ends:
                break
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=TRUNCATE")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _check_place(self) -> None:
        try:
            if not Host.here().is_local(self.path.parent):
                raise self._refused(
                    f"{self.path} lies on a network file system, where SQLite's locks cannot be"
                    " relied on: use a local disk"
                )
            # Whoever closes a file gives up every lock that this process holds on it, SQLite's too:
            # it is opened here only where it is made, before any connection can be.
            with suppress(FileExistsError):
                os.close(os.open(self.path, _MAKE, 0o600))
            status = self.path.lstat()
            mine = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            if not (mine and stat.S_ISREG(status.st_mode)):
                raise self._refused(
                    f"{self.path} is no file of this user's alone: give it an owner and a mode"
                    " of its own (chown, chmod 600), or use another"
                )
            sync_directory(os.fspath(self.path.parent))
        except OSError as error:
            raise self._refused(f"{self.path} cannot be used: {error}") from error

    def _prepare(self, connection: sqlite3.Connection, schema: str, version: int) -> None:
        if connection.execute("PRAGMA user_version").fetchone()[0] == version:
            return  # made wholly, and who only looks changes nothing
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, version):
            raise CheckpointRefusal(
                "unknown_schema",
                f"{self.path} has schema {found}, this version knows {version}: run the version"
                " that made it, or use another file",
            )
        for statement in schema.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={version}")
        connection.execute("COMMIT")

    def _failed(self, error: sqlite3.Error) -> CheckpointRefusal:
        refusal = self._unavailable(error)
        # The low byte is the kind of error; the rest says more of the same.
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _PASSING:
            self._poisoned = f"{refusal.message}; nothing more is written until this process ends"
            self._on_poisoned()
        return refusal

    def _unavailable(self, error: sqlite3.Error) -> CheckpointRefusal:
        return self._refused(f"{self._what} at {self.path}: {error}")

    def _refused(self, message: str) -> CheckpointRefusal:
        return CheckpointRefusal(self._code, message)


class _Write:
    """A change that waits for its commit."""

    def __init__(self, change: Callable[[sqlite3.Connection], Any]) -> None:
        self.change = change
        self.future: Future[Any] = Future()


def _commit(connection: sqlite3.Connection, batch: "list[_Write]") -> None:
    """Run all of *batch* in one transaction, and tell each what became of it after the commit."""
    connection.execute("BEGIN IMMEDIATE")
    told: list[Callable[[], None]] = []
    for write in batch:
        connection.execute("SAVEPOINT one")
        try:
            result = write.change(connection)
        except sqlite3.Error as error:
            # One without a code did not come from the file: the module refused what it was given.
            if hasattr(error, "sqlite_errorcode") and not isinstance(error, sqlite3.IntegrityError):
                raise
            told.append(partial(write.future.set_exception, error))
            connection.execute("ROLLBACK TO one")
        except Exception as error:  # noqa: BLE001 - its caller's, who is told
            told.append(partial(write.future.set_exception, error))
            connection.execute("ROLLBACK TO one")
        else:
            told.append(partial(write.future.set_result, result))
        connection.execute("RELEASE one")
    connection.execute("COMMIT")
    for tell in told:
        tell()
