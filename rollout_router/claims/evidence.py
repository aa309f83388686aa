# SPDX-License-Identifier: Apache-2.0
"""What an operator may want to see of one claim beyond its verdict (laws C3, C5).

All of it is for people: pids are used again, and command lines say what their process likes. The
life lock alone proves anything. Changes nothing, raises nothing for a damaged store. Where nobody
is seen at a lock file its lock is asked for, shared, and given back at once: some microseconds in
which a writer asks in vain, and asks again.
"""

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from rollout_router.claims.disk import close_unwritten, open_for_reading, read_capped
from rollout_router.claims.envelope import Malformed
from rollout_router.claims.errors import code_of
from rollout_router.claims.lock_table import LOCK_TABLE, LockUse, lock_use
from rollout_router.claims.record import OwnerIdentity

__all__ = [
    "UNSEEN",
    "FileFacts",
    "ProcessFacts",
    "command_of",
    "file_facts",
    "is_held",
    "lock_at",
    "process_of",
]

UNSEEN: Final = "held by a process outside of this PID namespace, or by one that is not to be seen"
"""In the place of who holds a lock that is held, where the kernel's list names nobody."""

_LOOKS: Final = 3  # a writer that comes between two looks is not unseen

_SAME_START_S: Final = 2.0
"""Clocks are corrected while a process runs, and its start time is shown by them."""

_KINDS: Final = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
}

_SHOWN_BYTES_MAX: Final = 400  # the whole of an ordinary record, without the spaces behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What can be seen of a file, whether or not it can be read."""

    kind: str  # file, directory, symbolic link, FIFO, socket, device
    size_bytes: int
    mode: str  # four octal digits
    user: int
    modified_at: float  # seconds since 1970
    begins: str | None  # its first 400 bytes, others than ASCII escaped; None where none is read


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """The process that has the pid of an owner now.

    Attributes:
        state: ``running``: it is the owner, as far as pid and start time tell; ``stopped``: so it
            is, and a signal stopped it; ``recycled``: another process has its pid now; ``gone``: no
            process has; ``unseen``: its life lock is held, and no process here is the one.
        started_at: of the process that has the pid, seconds since 1970.
        command: its command line; None where it is not to be seen.
    """

    state: Literal["running", "stopped", "recycled", "gone", "unseen"]
    started_at: float | None = None
    command: str | None = None


def file_facts(path: str) -> FileFacts | str:
    """What stands at *path*, or the code of the error that keeps it from being seen."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return code_of(error)
    try:
        raw = read_capped(path)[:_SHOWN_BYTES_MAX]
        begins = raw.rstrip().decode("ascii", "backslashreplace")
    except (OSError, Malformed):
        begins = None
    return FileFacts(
        kind=_KINDS.get(stat.S_IFMT(status.st_mode), "device"),
        size_bytes=status.st_size,
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
        user=status.st_uid,
        modified_at=status.st_mtime,
        begins=begins,
    )


def lock_at(path: str) -> LockUse | str:
    """Who is at the lock file *path* now; the code of the error that hides it, or ``UNSEEN``.

    Raises:
        StoreUnavailable: this process has no descriptors or memory left.
    """
    try:
        for _ in range(_LOOKS):
            use = lock_use(Path(LOCK_TABLE).read_text(), os.lstat(path))
            if use.holders or not is_held(path):
                return use
    except OSError as error:
        return code_of(error)
    return UNSEEN


def is_held(path: str) -> bool:
    """Whether anybody at all holds the lock file *path*; False too where it cannot be asked.

    Raises:
        StoreUnavailable: this process has no descriptors or memory left.
    """
    try:
        fd = open_for_reading(path)
    except Malformed:
        return False
    except OSError as error:
        code_of(error)  # raises what is of this process
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        close_unwritten(fd)
    return False


def process_of(identity: OwnerIdentity, *, life: LockUse | str) -> ProcessFacts:
    """Whether the process that *identity* names runs.

    Args:
        identity: as its owner file says.
        life: who is at the owner file: a holder with that pid is the owner, whatever clocks say.
    """
    try:
        process = psutil.Process(identity.pid)
        started_at, status = process.create_time(), process.status()
    except psutil.Error:  # no such process, or no right to look at it
        there = psutil.pid_exists(identity.pid)
        return ProcessFacts(state=_other("recycled" if there else "gone", life=life))
    if status == psutil.STATUS_ZOMBIE:  # it ended, and nobody has asked how
        return ProcessFacts(state=_other("gone", life=life))
    same = abs(started_at - identity.started_at) <= _SAME_START_S
    running: Literal["running", "stopped"] = (
        "stopped" if status == psutil.STATUS_STOPPED else "running"
    )
    holds = isinstance(life, LockUse) and identity.pid in life.holders
    return ProcessFacts(
        state=running if same or holds else _other("recycled", life=life),
        started_at=started_at,
        command=command_of(identity.pid),
    )


def _other(
    state: Literal["recycled", "gone"], *, life: LockUse | str
) -> Literal["recycled", "gone", "unseen"]:
    return "unseen" if life == UNSEEN else state


def command_of(pid: int) -> str | None:
    """The command line of a process, None where it has none, is gone or is not to be seen."""
    try:
        return " ".join(psutil.Process(pid).cmdline()) or None
    except (psutil.Error, ValueError):  # ValueError: not a pid of this namespace
        return None
