# SPDX-License-Identifier: Apache-2.0
"""The directories of a service: where they lie, who may enter them, whether locks hold there.

Nothing is made: what is not there yet is judged by the directory that it would be made in. A lock
is tried on a file without a name, which is gone with its descriptor.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rollout_router.claims import ClaimReader, ClaimsError, Host, check_access, new_nonce
from rollout_router.claims.host import is_swept
from rollout_router.doctor.checked import Checked, Status, fail, ok, refused, skipped, warn
from rollout_router.gateway.sink import SinkRefused, check_bound
from rollout_router.routing.run_dir import check_private_directory, private_socket_path
from rollout_router.serve.config import ServeConfig

__all__ = [
    "capture_access",
    "capture_file_system",
    "locks",
    "run_access",
    "socket_path",
    "space",
    "state_access",
    "state_file_system",
]

SPACE_BYTES_MIN: Final = 16 * 1024**2
"""A store of 2 MiB, and some thousand claims; below it nothing begins well."""

SPACE_BYTES_GOOD: Final = 1024**3
"""As many claims as a store has sessions at most, a block of 4 KiB each."""

INODES_MIN: Final = 2_000
"""A store begins with 775 files and directories; each claim is one more."""

CHILD_S: Final = 30.0
"""For a Python that tries one lock, on a machine under load."""

_NO_CAPTURE: Final = "nothing is recorded: no --capture-dir"
_GRANTED, _HELD, _NO_LOCKS = 0, 3, 4
_TRY: Final = f"""
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit({_HELD})
except OSError:
    sys.exit({_NO_LOCKS})
"""


def state_file_system(config: ServeConfig, *, host: Host | None = None) -> Checked:
    """Whether the store is where the kernel of this host alone writes (C3)."""
    host = host or Host.here()
    root, kind = _resolved(config.state_dir, host)
    if not host.is_local(root):
        found = f"{root} is on {kind}, a network file system or one not known to be local"
        if not config.allow_network_fs:
            return fail(found, "use a local --state-dir, or see --allow-network-fs")
        return warn(found, "keep all workers of this store on one host and one mount")
    return _swept(root, kind, "--state-dir")


def capture_file_system(config: ServeConfig, *, host: Host | None = None) -> Checked:
    """As for the store, which a start insists on; here it only advises."""
    if config.capture_dir is None:
        return skipped(_NO_CAPTURE)
    host = host or Host.here()
    root, kind = _resolved(config.capture_dir, host)
    if not host.is_local(root):
        return warn(
            f"{root} is on {kind}, a network file system or one not known to be local",
            "use a local --capture-dir: the fence of the records is a lock",
        )
    return _swept(root, kind, "--capture-dir")


def state_access(config: ServeConfig) -> Checked:
    """Whether this user may make or use the store, and nobody else."""
    root = Path(os.path.realpath(config.state_dir))
    try:
        check_access(root)
    except ClaimsError as error:
        return refused(error)
    return _usable(root, "--state-dir")


def run_access(config: ServeConfig) -> Checked:
    """Whether this user may make or use the directory of the private sockets, and nobody else."""
    if not os.path.lexists(config.run_dir):
        return _usable(config.run_dir, "--run-dir")
    try:
        check_private_directory(config.run_dir)
    except ClaimsError as error:
        return refused(error)
    return _usable(config.run_dir, "--run-dir")


def capture_access(config: ServeConfig) -> Checked:
    """Whether records can be written, and are fenced by the epochs of this store (F1)."""
    if config.capture_dir is None:
        return skipped(_NO_CAPTURE)
    usable = _usable(config.capture_dir, "--capture-dir")
    if usable.status is Status.FAIL:
        return usable
    try:
        store_id = ClaimReader.inspect(config.state_dir).store_id
    except ClaimsError:  # there is none yet, or the check of the store says what is wrong
        store_id = None
    try:
        bound = check_bound(config.capture_dir, store_id=store_id)
    except SinkRefused as error:
        return refused(error)
    if bound and store_id is None and not (config.state_dir / "FORMAT").exists():
        return fail(
            f"{config.capture_dir} is bound to another store than the one that would be made",
            "name an empty --capture-dir, or the --state-dir that its records are from",
        )
    return usable


def socket_path(config: ServeConfig) -> Checked:
    """Whether the path of a private socket is short enough for the kernel."""
    try:
        path = private_socket_path(config.run_dir, new_nonce())
    except ClaimsError as error:
        return refused(error)
    return ok(f"{len(os.fsencode(path))} bytes")


def locks(config: ServeConfig) -> Checked:
    """Whether a lock of one process keeps another one out, where the store lies (C1)."""
    directory = _standing(config.state_dir)
    try:
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - entered below
    except OSError as error:
        return fail(
            f"no file can be made in {directory}: {error.strerror}",
            "see the checks of --state-dir and of the space there",
        )
    with file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            while_held = _try_lock(path)
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError as error:
            return fail(f"{directory} takes no flock: {error.strerror}", "use another --state-dir")
        afterwards = _try_lock(path)
    if (while_held, afterwards) != (_HELD, _GRANTED):
        return fail(
            f"a lock in {directory} does not keep another process out",
            "use a --state-dir on a local disk: two workers could own one rollout",
        )
    return ok(f"flock keeps other processes out in {directory}")


def space(config: ServeConfig) -> Checked:
    """Whether the store has room: a claim is a file, and a block of 4 KiB (C7)."""
    directory = _standing(config.state_dir)
    free = os.statvfs(directory)
    free_bytes, inodes = free.f_bavail * free.f_frsize, free.f_favail
    counted = free.f_files > 0  # some file systems make inodes as they are needed
    said = f"{inodes:,}" if counted else "any number of"
    found = f"{free_bytes // 1024**2:,} MiB and {said} inodes are free at {directory}"
    wanted = INODES_MIN + config.workers * config.history_rollouts
    if free_bytes < SPACE_BYTES_MIN or (counted and inodes < INODES_MIN):
        return fail(found, "free some, or use another --state-dir: calls are 503 without space")
    if free_bytes < SPACE_BYTES_GOOD or (counted and inodes < wanted):
        return warn(found, f"watch it: claims take up to {wanted:,} inodes, and a block each")
    return ok(found)


def _resolved(path: Path, host: Host) -> tuple[Path, str]:
    root = Path(os.path.realpath(path))
    return root, host.file_system(root)


def _swept(root: Path, kind: str, flag: str) -> Checked:
    if is_swept(root):
        return warn(
            f"{root} is swept by cleaners of temporary files",
            f"use a {flag} in /var/lib, or below your home",
        )
    return ok(f"{kind}, local")


def _standing(path: Path) -> Path:
    """*path*, or the nearest directory above it that is there."""
    path = Path(os.path.realpath(path))
    return next(one for one in (path, *path.parents) if one.is_dir())


def _usable(path: Path, flag: str) -> Checked:
    """Whether this user may write there, or make it."""
    path = Path(os.path.realpath(path))
    nearest = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if not nearest.is_dir():
        return fail(f"{nearest} is no directory", f"move it away, or name another {flag}")
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return fail(f"this user may not write in {nearest}", f"name another {flag}, or change that")
    return ok(f"{path}" if nearest == path else f"{path} will be made in {nearest}")


def _try_lock(path: str) -> int:
    done = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-I", "-S", "-c", _TRY, path], check=False, timeout=CHILD_S
    )
    return done.returncode
