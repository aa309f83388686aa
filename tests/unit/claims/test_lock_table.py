# SPDX-License-Identifier: Apache-2.0
"""Reading who is at a lock file (C3: for people)."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from rollout_router.claims import LockUse, lock_at
from rollout_router.claims.lock_table import lock_use

TABLE = """\
1: FLOCK  ADVISORY  WRITE 5493 fe:01:1514 0 EOF
2: FLOCK  ADVISORY  READ 5494 fe:01:15 0 EOF
2: -> FLOCK  ADVISORY  WRITE 5495 fe:01:1514 0 EOF
2:  -> FLOCK  ADVISORY  WRITE 5496 fe:01:1514 0 EOF
3: POSIX  ADVISORY  READ -1 fe:01:1514 128 128
4: OFDLCK ADVISORY  WRITE 12 00:1b:1514 0 EOF
5: LEASE  ACTIVE    READ 13 <none>:0 0 EOF
half a li"""


def status_of(device: int, inode: int) -> os.stat_result:
    return os.stat_result((0o100600, inode, device, 1, 0, 0, 0, 0, 0, 0))


def test_c3_a_lock_table_names_holders_and_waiters_of_one_file() -> None:
    found = lock_use(TABLE, status_of(os.makedev(0xFE, 1), 1514))
    assert found == LockUse(holders=(5493, 0), waiters=(5495, 5496))


def test_c3_a_file_of_another_device_is_another_file() -> None:
    assert lock_use(TABLE, status_of(os.makedev(0, 0x1B), 1514)) == LockUse(holders=(12,))
    assert lock_use(TABLE, status_of(os.makedev(0xFE, 1), 7)) == LockUse()


def test_c3_the_kernel_names_the_process_that_holds_a_lock(directory: Path) -> None:
    path = directory / "lock"
    path.touch()
    program = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert lock_at(str(path)) == LockUse(holders=(holder.pid,))
        holder.communicate()
    assert lock_at(str(path)) == LockUse()


def test_c3_our_own_lock_is_seen_too(directory: Path) -> None:
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock_at(file.name) == LockUse(holders=(os.getpid(),))


def test_c3_a_lock_file_that_is_gone_has_a_code(directory: Path) -> None:
    assert lock_at(str(directory / "none")) == "missing"
