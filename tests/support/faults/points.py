# SPDX-License-Identifier: Apache-2.0
"""The points of a process at which a fault may happen to it.

A process that reaches a point of the plan tells the bench, and stands still until it is answered:
with an order, or not at all because it was killed. The points of a write to a database:

    unwritten    what it is to write is in hand
    commit       everything is written in its transaction, which is not committed
    written      it is on the disk, and nobody was told
"""

import json
import resource
import socket
import sqlite3
import threading
from collections.abc import Callable, Collection
from typing import Any, ClassVar, TypeVar

from rollout_router.checkpoint.database import Database

__all__ = ["PointedDatabase", "Points", "label"]

_Result = TypeVar("_Result")


class Points:
    """The way of one process to the bench.

    Args:
        channel: to it.
        planned: points at which it asks; others it passes.
    """

    def __init__(self, channel: socket.socket, planned: Collection[tuple[str, str]]) -> None:
        self._stream = channel.makefile("rwb")
        self._planned = frozenset(planned)
        self._one_at_a_time = threading.Lock()

    def reach(self, point: str, target: str) -> str:
        """Stand still at a point of the plan; returns the order."""
        return self.tell("at", point, target) if (point, target) in self._planned else "go"

    def tell(self, what: str, *told: Any) -> str:
        """Say something, and wait for the answer."""
        with self._one_at_a_time:
            self._stream.write(json.dumps([what, *told]).encode() + b"\n")
            self._stream.flush()
            if not (answer := self._stream.readline()):
                raise ConnectionError("the bench is gone")
            return answer.decode().strip()


class PointedDatabase(Database):
    """A database whose writes have points; :func:`label` says which write comes next."""

    points: ClassVar[Points]
    written: ClassVar[str] = ""

    async def write(self, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
        target = self.written
        self.points.reach("unwritten", target)

        def changed(db: sqlite3.Connection) -> _Result:
            result = change(db)
            match self.points.reach("commit", target):
                case "full":
                    _spill(db, "PRAGMA max_page_count=1")
                case "eio":
                    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # every write fails
                case "tear":
                    _spill(db, "PRAGMA cache_size=1")
                    hot = self.path.with_name(f"{self.path.name}-journal")
                    self.points.tell("torn", hot.stat().st_size)
            return result

        try:
            result = await super().write(changed)
        finally:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        self.points.reach("written", target)
        return result


def label(cls: type, method: str, target_of: Callable[..., str]) -> None:
    """Have a method say which write it makes."""
    real = getattr(cls, method)

    async def labelled(self: Any, *arguments: Any, **named: Any) -> Any:
        PointedDatabase.written = target_of(*arguments)
        return await real(self, *arguments, **named)

    setattr(cls, method, labelled)


def _spill(db: sqlite3.Connection, pragma: str) -> None:
    """Write more than there is room for: pages go to the file before the commit, or it is full."""
    db.execute(pragma)
    db.execute("CREATE TABLE scrap AS SELECT zeroblob(100000) AS much")
    db.execute("INSERT INTO scrap SELECT much FROM scrap")
