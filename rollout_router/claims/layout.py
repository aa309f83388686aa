# SPDX-License-Identifier: Apache-2.0
"""The directory of a store, as it is read, checked and refused (laws C1, C2).

    FORMAT   locks/00..ff   owners/   epochs/00..ff   claims/00..ff/   gate   admin

Nothing here makes or changes anything: that is :mod:`rollout_router.claims.creation`, which a
command that only reads does without.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rollout_router.claims.disk import read_capped
from rollout_router.claims.envelope import Malformed, open_envelope
from rollout_router.claims.epochs import GENERATION_MAX
from rollout_router.claims.errors import StoreRefused, StoreUnavailable, errno_name
from rollout_router.claims.host import Host
from rollout_router.claims.names import STRIPES

__all__ = [
    "PARTS",
    "STRIPE_NAMES",
    "Format",
    "Layout",
    "check_access",
    "known_format",
    "look_at",
    "no_store",
    "read_format",
    "refusing",
]

STRIPE_NAMES: Final = tuple(f"{stripe:02x}" for stripe in range(STRIPES))
PARTS: Final = ("locks", "owners", "epochs", "claims")


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


def look_at(state_dir: Path, *, host: Host) -> Layout:
    """Open the store at *state_dir* for commands that read: makes and raises nothing.

    Raises:
        StoreRefused: there is none, or this program cannot read it.
    """
    root = Path(os.path.realpath(state_dir))
    with refusing(root):
        found = known_format(root, service=None)
        if found is None:
            raise no_store(root)
    return Layout(root=root, format=found, host=host, local=host.is_local(root))


def check_access(root: Path) -> None:
    """Refuse a store that others may change, or that is another user's, as a start would.

    What is missing of it is passed by.

    Raises:
        StoreRefused: says of which directory, and what to do.
    """
    for part in (root, *(root / name for name in PARTS)):
        with refusing(root), contextlib.suppress(FileNotFoundError):
            _check_directory(part)


def read_format(root: Path) -> Format:
    """FORMAT of a store that is open.

    Raises:
        StoreUnavailable: ``ESTALE``: it is gone or damaged, so this is no longer our store.
    """
    try:
        found = known_format(root, service=None)
    except (StoreRefused, OSError) as error:
        raise StoreUnavailable(f"reading {root}/FORMAT ({error})", errno.ESTALE) from error
    if found is None:
        raise StoreUnavailable(f"{root}/FORMAT is gone", errno.ESTALE)
    return found


def known_format(root: Path, *, service: str | None) -> Format | None:
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


def no_store(root: Path) -> StoreRefused:
    """What is said where a store was expected."""
    return StoreRefused(f"there is no claim store at {root}: check --state-dir")


@contextmanager
def refusing(root: Path) -> Iterator[None]:
    """Whatever the disk refuses within is why the store is refused."""
    try:
        yield
    except StoreUnavailable as error:
        raise StoreRefused(f"{root} cannot be opened: {error}") from error
    except OSError as error:
        raise StoreRefused(
            f"{root} cannot be opened: {error.strerror} ({errno_name(error)}, {error.filename}): "
            "use a --state-dir that this user may write"
        ) from error


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
