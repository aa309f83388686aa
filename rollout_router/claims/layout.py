# SPDX-License-Identifier: Apache-2.0
"""The directory of a store: how it is made, opened and refused (laws C1, C2).

    FORMAT   locks/00..ff   owners/   epochs/00..ff   claims/00..ff/   gate

FORMAT is written last when a store is made, and replaced durably under ``locks/format`` by whoever
first opens it under a new boot id: that raises the generation, which is why a claim needs no sync
of its own (C2). A directory without FORMAT in which something was granted is damaged, never new.
"""

import contextlib
import errno
import logging
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from rollout_router.claims.disk import publish, read_capped, sync_directory
from rollout_router.claims.epochs import (
    GENERATION_MAX,
    decode_highest,
    encode_highest,
    generation_of,
)
from rollout_router.claims.errors import StoreRefused, StoreUnavailable, errno_name
from rollout_router.claims.host import Host, is_swept
from rollout_router.claims.locks import LOCK_TIMEOUT_S, StripeLocks
from rollout_router.claims.record import (
    STRIPES,
    Malformed,
    Unreadable,
    open_envelope,
    seal_envelope,
)

__all__ = [
    "PARTS",
    "STRIPE_NAMES",
    "Format",
    "Layout",
    "check_access",
    "create_or_open",
    "highest_generation",
    "look_at",
    "restore_parts",
]

STRIPE_NAMES: Final = tuple(f"{stripe:02x}" for stripe in range(STRIPES))
_SERVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CREATION_TIMEOUT_S: Final = 60.0  # 256 synced files, on a disk that takes 200 ms for each
_DIRECTORY_MODE: Final = 0o700
_NEW_EMPTY: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PARTS: Final = ("locks", "owners", "epochs", "claims")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What FORMAT says."""

    service: str
    store_id: str
    stripes: int
    generation: int  # rises once a boot; every epoch is above (generation << 32)
    boot_id: str  # of the boot that raised it last

    def __post_init__(self) -> None:
        if not 0 < self.generation <= GENERATION_MAX:
            raise ValueError(f"a generation is in 1..2**31-1, not {self.generation}")

    def raised(self, boot_id: str, *, above: int) -> "Format":
        """The next generation, also higher than *above*: FORMAT may come from a backup (C2).

        Raises:
            StoreRefused: after two thousand million of them.
        """
        generation = max(self.generation, above) + 1
        if generation > GENERATION_MAX:
            raise StoreRefused("the store's generations are used up: start a new store elsewhere")
        return replace(self, generation=generation, boot_id=boot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A store that was checked, and the machine that it is on."""

    root: Path
    format: Format
    host: Host
    local: bool  # False: on a network file system, allowed for all workers on one host and mount


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
    if service is not None and _SERVICE.fullmatch(service) is None:
        raise StoreRefused(f"{service!r} names no service: use 1 to 100 of A-Z a-z 0-9 . _ -")
    root = Path(os.path.realpath(state_dir))
    with _refusing(root):
        # What is refused is refused before anything is made or raised.
        local = _check_place(root, host=host, allow_network_fs=allow_network_fs)
        if service is not None:
            root.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        elif not root.is_dir():
            raise _no_store(root)
        check_access(root)
        if _known(root, service=service) is None and service is None:
            raise _no_store(root)
        (root / "locks").mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        locks = StripeLocks(root / "locks", timeout_s=LOCK_TIMEOUT_S)
        with locks.hold("format", create=True, timeout_s=_CREATION_TIMEOUT_S):
            found = _known(root, service=service)
            if found is None:
                if service is None:
                    raise _no_store(root)
                found = _create(root, service=service, boot_id=host.boot_id)
            (root / "owners").mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            if found.boot_id != host.boot_id:
                found = found.raised(host.boot_id, above=highest_generation(root))
                write_format(root, found)
    return Layout(root=root, format=found, host=host, local=local)


def look_at(state_dir: Path, *, host: Host) -> Layout:
    """Open the store at *state_dir* for commands that read: makes and raises nothing.

    Raises:
        StoreRefused: there is none, or this program cannot read it.
    """
    root = Path(os.path.realpath(state_dir))
    with _refusing(root):
        found = _known(root, service=None)
        if found is None:
            raise _no_store(root)
    return Layout(root=root, format=found, host=host, local=host.is_local(root))


def check_access(root: Path) -> None:
    """Refuse a store that others may change, or that is another user's, as a start would.

    What is missing of it is passed by.

    Raises:
        StoreRefused: says of which directory, and what to do.
    """
    for part in (root, *(root / name for name in PARTS)):
        with _refusing(root), contextlib.suppress(FileNotFoundError):
            _check_directory(part)


def read_format(root: Path) -> Format:
    """FORMAT of a store that is open.

    Raises:
        StoreUnavailable: ``ESTALE``: it is gone or damaged, so this is no longer our store.
    """
    try:
        found = _known(root, service=None)
    except (StoreRefused, OSError) as error:
        raise StoreUnavailable(f"reading {root}/FORMAT ({error})", errno.ESTALE) from error
    if found is None:
        raise StoreUnavailable(f"{root}/FORMAT is gone", errno.ESTALE)
    return found


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
    if used := _first_trace_of_use(root):
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


def _first_trace_of_use(root: Path) -> str | None:
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


def _read_format(root: Path) -> Format | None:
    path = f"{root}/FORMAT"
    try:
        fields = open_envelope(read_capped(path))
        return Format(
            service=str(fields["service"]),
            store_id=str(fields["store_id"]),
            stripes=int(fields["stripes"]),
            generation=int(fields["generation"]),
            boot_id=str(fields["boot_id"]),
        )
    except FileNotFoundError:
        return None
    except Malformed as error:
        if error.code == "newer_format":
            raise StoreRefused(
                f"{path} was written by a newer version: run that version, or use another directory"
            ) from error
        raise StoreRefused(f"{path} is damaged ({error.code}): restore it from a backup") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreRefused(f"{path} is damaged (field): restore it from a backup") from error


def _known(root: Path, *, service: str | None) -> Format | None:
    """FORMAT of a store that *service* may use: None where there is none yet.

    A worker is refused a store that lacks a part; a command may be about to mend it.
    """
    found = _read_format(root)
    if found is None:
        return None
    if found.stripes != STRIPES:
        raise StoreRefused(
            f"{root} has {found.stripes} stripes, this version uses {STRIPES}: "
            "run the version that made it, or use another directory"
        )
    if service is not None and found.service != service:
        raise StoreRefused(
            f"{root} holds the claims of service {found.service!r}, not of {service!r}: "
            "give each service a --state-dir of its own"
        )
    # Owner files order no grants: their directory is made anew.
    missing = [part for part in PARTS if part != "owners" and not (root / part).exists()]
    if service is not None and missing:
        raise StoreRefused(
            f"{root} lacks {', '.join(missing)}: stop all workers of this store and run "
            "`rollout-router claims verify --repair`"
        )
    return found


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


def _check_directory(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StoreRefused(f"{path} is not a directory: move it away")
    if status.st_uid != os.geteuid():
        raise StoreRefused(
            f"{path} belongs to user {status.st_uid}, this process is {os.geteuid()}: "
            "run as that user, or use another --state-dir"
        )
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise StoreRefused(f"{path} is open to other users (mode {mode:04o}): chmod 700 {path}")


def _no_store(root: Path) -> StoreRefused:
    return StoreRefused(f"there is no claim store at {root}: check --state-dir")


@contextmanager
def _refusing(root: Path) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise StoreRefused(f"{root} cannot be opened: {error}") from error
    except OSError as error:
        raise StoreRefused(
            f"{root} cannot be opened: {error.strerror} ({errno_name(error)}, {error.filename}): "
            "use a --state-dir that this user may write"
        ) from error
