# SPDX-License-Identifier: Apache-2.0
"""Clearing what dead workers left (law C3).

A sweep takes nothing from anybody who is not proven dead (C3). Owner files go last: one goes when a
whole pass over all stripes, begun after the proof, found no claim that names it and nothing
unreadable that might; the socket that it names goes first, for only the file tells where it is. A
temporary file is a leftover when the lock of its writers is held. A dry run takes no lock.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rollout_router.claims.disk import TEMPORARY
from rollout_router.claims.errors import ClaimUnreadable, StoreUnavailable
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.layout import STRIPE_NAMES
from rollout_router.claims.record import Claim, Owner, Unreadable, valid_nonce
from rollout_router.claims.verdict import ProofOfDeath

__all__ = ["Swept", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep cleared; of a dry run, what it would have cleared."""

    freed: tuple[Claim, ...]  # rollouts of dead workers: the next request takes them
    lost: tuple[Claim, ...]  # sessions of dead workers: each has a tombstone now
    forgotten: tuple[Claim, ...]  # tombstones that lasted long enough
    owners: tuple[str, ...]  # nonces of dead workers whose owner file went
    sockets: tuple[str, ...]  # paths of the sockets that they left behind
    leftovers: tuple[str, ...]  # paths of temporary files; in a dry run of files being written too
    unreadable: tuple[Unreadable, ...]  # left alone, and the reason why no owner file went


def sweep(
    store: FileClaimStore, *, now: datetime, tombstone_age_max: timedelta, dry_run: bool = False
) -> Swept:
    """Clear what dead workers left.

    Args:
        store: whose claims.
        now: the time, with its zone.
        tombstone_age_max: how long a lost session says 410.
        dry_run: change nothing, and take no lock; *store* may be inspected only.

    Raises:
        StoreUnavailable: what was cleared until then stays cleared; the next sweep goes on.
    """
    try:
        return _sweep(store, now=now, tombstone_age_max=tombstone_age_max, dry_run=dry_run)
    except OSError as error:
        raise StoreUnavailable(f"sweeping {store.state_dir}", error.errno) from error


def _sweep(
    store: FileClaimStore, *, now: datetime, tombstone_age_max: timedelta, dry_run: bool
) -> Swept:
    dead = _dead_owners(store)
    freed: list[Claim] = []
    lost: list[Claim] = []
    forgotten: list[Claim] = []
    unreadable: list[Unreadable] = []
    named: set[Owner] = set()
    for record in store.survey():
        if isinstance(record, Unreadable):
            unreadable.append(record)
            continue
        try:
            if record.state == "lost":
                expired = now - datetime.fromisoformat(record.at) > tombstone_age_max
                if expired and (dry_run or store.forget(record)):
                    forgotten.append(record)
            elif (proof := dead.get(record.owner)) is None:
                named.add(record.owner)
            elif dry_run or store.reap(record, proof):
                (lost if record.kind == "session" else freed).append(record)
        except ClaimUnreadable as error:  # it changed since the survey read it
            unreadable.append(Unreadable(path=error.path, code=error.code))
    leaving = [] if unreadable else [owner for owner in dead if owner not in named]
    sockets = [path for owner in leaving if (path := _clear_owner(store, owner, dry_run=dry_run))]
    return Swept(
        freed=tuple(freed),
        lost=tuple(lost),
        forgotten=tuple(forgotten),
        owners=tuple(owner.nonce for owner in leaving),
        sockets=tuple(sockets),
        leftovers=tuple(_clear_leftovers(store, dry_run=dry_run)),
        unreadable=tuple(unreadable),
    )


def _dead_owners(store: FileClaimStore) -> dict[Owner, ProofOfDeath]:
    directory = store.state_dir / "owners"
    dead: dict[Owner, ProofOfDeath] = {}
    for name in os.listdir(directory):  # noqa: PTH208 - names
        if not valid_nonce(name):
            continue
        try:
            inode = (directory / name).lstat().st_ino
        except FileNotFoundError:
            continue
        owner = Owner(nonce=name, inode=inode)
        if proof := store.proof_of_death(owner):
            dead[owner] = proof
    return dead


def _clear_owner(store: FileClaimStore, owner: Owner, *, dry_run: bool) -> str | None:
    """Remove the owner file of a dead worker, its socket first; the path of that, if there is."""
    socket = _socket_of(store, owner)
    if not dry_run:
        with store.holding_format():
            if socket:
                try:
                    socket.unlink(missing_ok=True)
                except OSError as error:
                    raise StoreUnavailable(f"removing the socket {socket}", error.errno) from error
            (store.state_dir / "owners" / owner.nonce).unlink(missing_ok=True)
    return str(socket) if socket else None


def _socket_of(store: FileClaimStore, owner: Owner) -> Path | None:
    """The socket that a worker left: a nonce is used once, so its name is that of no other."""
    try:
        identity = store.owner(owner.nonce)
    except ClaimUnreadable:
        return None  # where it was nobody knows
    if identity is None or os.path.basename(identity.socket) != f"{owner.nonce}.sock":  # noqa: PTH119 - Path would hide a trailing slash
        return None
    try:
        found = stat.S_ISSOCK(os.lstat(identity.socket).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no file can be there
        return None
    except OSError as error:
        raise StoreUnavailable(f"looking at the socket {identity.socket}", error.errno) from error
    return Path(identity.socket) if found else None


def _clear_leftovers(store: FileClaimStore, *, dry_run: bool) -> Iterator[str]:
    for stripe in STRIPE_NAMES:
        directory = store.state_dir / "claims" / stripe
        if found := _temporary(directory):
            yield from found if dry_run else _unlink(directory, store.holding_stripe(stripe))
    directory = store.state_dir / "owners"
    if found := _temporary(directory):
        yield from found if dry_run else _unlink(directory, store.holding_format())


def _temporary(directory: Path) -> list[str]:
    return [str(path) for path in directory.iterdir() if path.name.startswith(TEMPORARY)]


def _unlink(directory: Path, lock: AbstractContextManager[None]) -> list[str]:
    """Remove the temporary files that are still there when nobody can be writing one."""
    with lock:
        paths = _temporary(directory)
        for path in paths:
            Path(path).unlink(missing_ok=True)
    return paths
