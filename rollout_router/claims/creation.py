# SPDX-License-Identifier: Apache-2.0
"""How the directory of a store is made, and opened by those that will change it (laws C1, C2).

FORMAT is written last when a store is made, and replaced durably under ``locks/format`` by whoever
first opens it under a new boot id: that raises the generation, which is why a claim needs no sync
of its own (C2). A directory without FORMAT in which something was granted is damaged, never new.
"""

import contextlib
import logging
import os
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rollout_router.claims.disk import publish, read_capped, sync_directory
from rollout_router.claims.envelope import Malformed, seal_envelope
from rollout_router.claims.epochs import decode_highest, encode_highest, generation_of
from rollout_router.claims.errors import StoreRefused
from rollout_router.claims.host import Host, is_swept
from rollout_router.claims.layout import (
    STRIPE_NAMES,
    Format,
    Layout,
    check_access,
    known_format,
    no_store,
    refusing,
)
from rollout_router.claims.locks import LOCK_TIMEOUT_S, StripeLocks
from rollout_router.claims.names import SERVICE, STRIPES
from rollout_router.claims.record import Unreadable

__all__ = [
    "create_or_open",
    "first_trace_of_use",
    "highest_generation",
    "restore_parts",
    "write_format",
]

_CREATION_TIMEOUT_S: Final = 60.0  # 256 synced files, on a disk that takes 200 ms for each
_DIRECTORY_MODE: Final = 0o700
_NEW_EMPTY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_log = logging.getLogger(__name__)


def create_or_open(
    state_dir: Path,
    *,
    service: str | None,
    host: Host,
    allow_network_fs: bool,
) -> Layout:
    """Open the store at *state_dir* for workers; make it first where none is.

    Args:
        state_dir: made with mode 0700 when it is missing.
        service: whose claims these are; None opens an existing store of any service.
        host: this machine.
        allow_network_fs: all workers promise to be on one host and to use one mount.

    Raises:
        StoreRefused: says why and what to do; no claim was touched.
    """
    if service is not None and SERVICE.fullmatch(service) is None:
        raise StoreRefused(f"{service!r} names no service: use 1 to 100 of A-Z a-z 0-9 . _ -")
    root = Path(os.path.realpath(state_dir))
    with refusing(root):
        # What is refused is refused before anything is made or raised.
        local = _check_place(root, host=host, allow_network_fs=allow_network_fs)
        if service is not None:
            root.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        elif not root.is_dir():
            raise no_store(root)
        check_access(root)
        if known_format(root, service=service) is None and service is None:
            raise no_store(root)
        (root / "locks").mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        locks = StripeLocks(root / "locks", timeout_s=LOCK_TIMEOUT_S)
        with locks.hold("format", create=True, timeout_s=_CREATION_TIMEOUT_S):
            found = known_format(root, service=service)
            if found is None:
                if service is None:
                    raise no_store(root)
                found = _create(root, service=service, boot_id=host.boot_id)
            (root / "owners").mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            if found.boot_id != host.boot_id:
                found = found.raised(host.boot_id, above=highest_generation(root))
                write_format(root, found)
    return Layout(root=root, format=found, host=host, local=local)


def write_format(root: Path, fields: Format) -> None:
    """Replace FORMAT durably; the caller holds ``locks/format``."""
    publish(f"{root}/FORMAT", seal_envelope(asdict(fields)), durable=True)


def highest_generation(root: Path) -> int:
    """The highest generation in the epoch files that can be read; 0 where none can."""
    highest = 0
    for stripe in STRIPE_NAMES:
        with contextlib.suppress(OSError, Malformed):  # its stripe fails closed until it is mended
            epoch = decode_highest(read_capped(f"{root}/epochs/{stripe}"))
            highest = max(highest, generation_of(epoch))
    return highest


def restore_parts(root: Path) -> list[Unreadable]:
    """Make what is missing of a store's fixed parts, epoch files excepted.

    The caller holds ``locks/format``, and knows that no worker runs when a lock file is missing.

    Returns:
        What was missing, each with the code ``missing``.
    """
    made: list[Unreadable] = []
    parts = [f"{root}/{part}" for part in ("owners", "epochs", "claims")]
    parts += [f"{root}/claims/{stripe}" for stripe in STRIPE_NAMES]
    for part in parts:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, _DIRECTORY_MODE)  # noqa: PTH102 - 259 of them: Path costs as much again
            made.append(Unreadable(path=part, code="missing"))
    for stripe in STRIPE_NAMES:
        lock = f"{root}/locks/{stripe}"
        with contextlib.suppress(FileExistsError):
            os.close(os.open(lock, _NEW_EMPTY, 0o600))
            made.append(Unreadable(path=lock, code="missing"))
    for directory in (root / "locks", root / "claims", root):
        sync_directory(str(directory))
    return made


def _create(root: Path, *, service: str, boot_id: str) -> Format:
    """Everything but FORMAT, then FORMAT. A crash in between leaves no store; it is resumed."""
    if used := first_trace_of_use(root):
        raise StoreRefused(
            f"{root} has no FORMAT but was used ({used}). Restore FORMAT from a backup; or, with "
            "no worker running, move the directory away: a new store starts with a new store_id"
        )
    restore_parts(root)
    for stripe in STRIPE_NAMES:
        publish(f"{root}/epochs/{stripe}", encode_highest(0), durable=False)
    for stripe in STRIPE_NAMES:
        _sync_file(f"{root}/epochs/{stripe}")
    sync_directory(f"{root}/epochs")
    made = Format(
        service=service,
        store_id=str(uuid.uuid4()),
        stripes=STRIPES,
        generation=1,
        boot_id=boot_id,
    )
    write_format(root, made)
    sync_directory(str(root.parent))
    return made


def _sync_file(path: str) -> None:
    """Make the bytes of one file survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def first_trace_of_use(root: Path) -> str | None:
    """What shows that a directory without FORMAT was a store in use; None where nothing does."""
    for part in [f"{root}/owners", *(f"{root}/claims/{stripe}" for stripe in STRIPE_NAMES)]:
        with contextlib.suppress(FileNotFoundError), os.scandir(part) as entries:
            if any(entries):
                return part
    for stripe in STRIPE_NAMES:
        path = f"{root}/epochs/{stripe}"
        try:
            if decode_highest(read_capped(path)):
                return path
        except (FileNotFoundError, Malformed):
            continue  # not made yet, or cut off by a crash while the store was being made
    return None


def _check_place(root: Path, *, host: Host, allow_network_fs: bool) -> bool:
    local = host.is_local(root)
    if not local and not allow_network_fs:
        raise StoreRefused(
            f"{root} is on a network file system, or one that is not known to be local "
            f"({host.file_system(root)}), where locks may not order what is read: use a local "
            "--state-dir; or, when all workers are on this host and use this mount, "
            "--allow-network-fs"
        )
    if is_swept(root):
        _log.warning("%s is swept by cleaners of temporary files: use /var/lib or /run", root)
    return local
