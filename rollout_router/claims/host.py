# SPDX-License-Identifier: Apache-2.0
"""What the store must know of the machine it is on (laws C1, C3).

A boot id names one run of one kernel: while it is the same, file locks and Unix sockets mean what
they say. A store belongs to one host, so its file system must be a local one: over two mounts of a
network file system a lock may be held and the record read under it still be an old one.

A moment is told by the clock of one boot: it goes on through suspend, and nobody can set it.

Pure but for :meth:`Host.here` and :meth:`Moment.now`, so that tests can boot another machine.
"""

import math
import os
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["LOCAL_FILE_SYSTEMS", "Host", "Moment"]

LOCAL_FILE_SYSTEMS: Final = frozenset(
    "bcachefs btrfs exfat ext2 ext3 ext4 f2fs fuseblk hfsplus jfs nilfs2 ntfs3 overlay ramfs "  # noqa: SIM905 - as a list it is twenty lines
    "reiserfs rootfs tmpfs ubifs vfat xfs zfs".split()
)
"""Types in /proc/self/mountinfo whose files this kernel alone changes. Of any other type, also one
that is not invented yet, another host may be a writer: what is unknown is not local (C3)."""

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One run of one machine.

    Attributes:
        boot_id: of the running kernel.
        mountinfo: the text of /proc/self/mountinfo.
    """

    boot_id: str
    mountinfo: str

    @classmethod
    def here(cls) -> "Host":
        """The machine that this process runs on.

        Raises:
            OSError: /proc is not mounted or not readable.
        """
        return cls(
            boot_id=_boot_id(),
            mountinfo=Path("/proc/self/mountinfo").read_text(errors="surrogateescape"),
        )

    def file_system(self, path: Path) -> str:
        """The type of the file system that holds the absolute, resolved *path*.

        The deepest mount point wins, and of two at one place the later: it covers the other.
        """
        deepest, found = -1, "unknown"
        for line in self.mountinfo.splitlines():
            left, _, right = line.partition(" - ")
            fields = left.split(" ")
            if len(fields) < 5 or not right:  # noqa: PLR2004 - the mount point is the fifth field
                continue
            mount = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
            inside = mount == "/" or f"{path}/".startswith(f"{mount}/")
            if inside and len(mount) >= deepest:
                deepest, found = len(mount), right.split(" ")[0]
        return found

    def is_local(self, path: Path) -> bool:
        """Whether only this kernel can change what lies at *path*."""
        return self.file_system(path) in LOCAL_FILE_SYSTEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of one boot.

    Attributes:
        boot_id: of the kernel that told it.
        seconds: since its boot, suspend included (CLOCK_BOOTTIME): no wall clock has a part in it.

    Raises:
        ValueError: it is none.
    """

    boot_id: str
    seconds: float

    def __post_init__(self) -> None:
        if not (self.boot_id and math.isfinite(self.seconds)):
            raise ValueError(f"no moment of a boot: {self}")

    @classmethod
    def now(cls) -> "Moment":
        """The present one.

        Raises:
            OSError: /proc is not mounted or not readable.
        """
        return cls(boot_id=_boot_id(), seconds=time.clock_gettime(time.CLOCK_BOOTTIME))

    def later(self, seconds: float) -> "Moment":
        """So many seconds after this one."""
        return Moment(boot_id=self.boot_id, seconds=self.seconds + seconds)

    def seconds_to(self, other: "Moment") -> float:
        """How far *other* is ahead; 0 where it has passed, and where it was of another boot."""
        return max(0.0, other.seconds - self.seconds) if other.boot_id == self.boot_id else 0.0


def is_swept(path: Path) -> bool:
    """Whether cleaners of temporary directories may remove files at *path*."""
    return any(os.path.commonpath([path, top]) == top for top in ("/tmp", "/var/tmp"))  # noqa: S108 - the point


@cache
def _boot_id() -> str:
    """It changes with the boot, which no process outlives."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
