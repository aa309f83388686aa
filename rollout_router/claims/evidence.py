# SPDX-License-Identifier: Apache-2.0
"""What an operator may want to see of one claim beyond its verdict (laws C3, C5).

All of it is for people: pids are used again, and command lines say what their process likes. The
life lock alone proves anything. Takes no lock, changes nothing, raises nothing for a damaged store.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from rollout_router.claims.census import code_of
from rollout_router.claims.disk import read_capped
from rollout_router.claims.lock_table import LOCK_TABLE, LockUse, lock_use
from rollout_router.claims.record import Malformed, OwnerIdentity

__all__ = ["FileFacts", "ProcessFacts", "command_of", "file_facts", "lock_at", "process_of"]

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
        state: ``running``: it is the owner, as far as pid and start time tell; ``recycled``:
            another process has its pid now; ``gone``: no process has.
        started_at: of the process that has the pid, seconds since 1970.
        command: its command line; None where it is not to be seen.
    """

    state: Literal["running", "stopped", "recycled", "gone"]
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
    """Who is at the lock file *path* now, or the code of the error that hides it."""
    try:
        status = os.lstat(path)
        return lock_use(Path(LOCK_TABLE).read_text(), status)
    except OSError as error:
        return code_of(error)


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
        return ProcessFacts(state="gone" if not psutil.pid_exists(identity.pid) else "recycled")
    if status == psutil.STATUS_ZOMBIE:  # it ended, and nobody has asked how
        return ProcessFacts(state="gone")
    same = abs(started_at - identity.started_at) <= _SAME_START_S
    running: Literal["running", "stopped"] = (
        "stopped" if status == psutil.STATUS_STOPPED else "running"
    )
    holds = isinstance(life, LockUse) and identity.pid in life.holders
    return ProcessFacts(
        state=running if same or holds else "recycled",
        started_at=started_at,
        command=command_of(identity.pid),
    )


def command_of(pid: int) -> str | None:
    """The command line of a process, None where it has none, is gone or is not to be seen."""
    try:
        return " ".join(psutil.Process(pid).cmdline()) or None
    except (psutil.Error, ValueError):  # ValueError: not a pid of this namespace
        return None
