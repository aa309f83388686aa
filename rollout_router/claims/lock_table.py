# SPDX-License-Identifier: Apache-2.0
"""Who holds a lock file, as the kernel lists it in /proc/locks. For people, never a proof (C3).

Pure. A line is ``1: FLOCK  ADVISORY  WRITE 5493 fe:00:1514 0 EOF``; with ``->`` after the number it
is of one who waits in the kernel. Our own workers ask again every few milliseconds instead, and so
never show as waiting. The device is that of the mounted file system: where ``stat`` gives another
one (btrfs), nothing is found. Nor is a process of another PID namespace: the kernel leaves it out.
"""

import os
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["LOCK_TABLE", "LockUse", "lock_use"]

LOCK_TABLE: Final = "/proc/locks"
_LINE: Final = re.compile(
    r"\d+:\s+(?P<waits>-> )?\s*\w+\s+\w+\s+\w+\s+(?P<pid>-?\d+)\s+"
    r"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>\d+)\s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockUse:
    """The processes at one lock file. 0 stands for a lock that the kernel names no process of."""

    holders: tuple[int, ...] = ()
    waiters: tuple[int, ...] = ()


def lock_use(table: str, status: os.stat_result) -> LockUse:
    """Who is at the file of *status*.

    Args:
        table: the text of /proc/locks.
        status: of the lock file.
    """
    wanted = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    holders: list[int] = []
    waiters: list[int] = []
    for match in _LINE.finditer(table):
        place = (int(match["major"], 16), int(match["minor"], 16), int(match["inode"]))
        if place == wanted:
            (waiters if match["waits"] else holders).append(max(0, int(match["pid"])))
    return LockUse(holders=tuple(holders), waiters=tuple(waiters))
