# SPDX-License-Identifier: Apache-2.0
"""Clearing what dead workers left (law C3).

A sweep takes nothing from anybody who is not proven dead (C3). Owner files go last: one goes when a
whole pass over all stripes, begun after the proof, found no claim that names its worker and nothing
unreadable that might; the sockets that it names go first, for only the file tells where they are,
so a file that does not is left. A temporary file is a leftover when the lock of its writers is
held. A dry run takes no lock.

What cannot be cleared is named and passed by, so that one stuck stripe or one full disk does not
keep the rest: the next sweep comes back for it.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from rollout_router.claims.disk import TEMPORARY
from rollout_router.claims.errors import ClaimUnreadable, StoreUnavailable, errno_name
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.gate import writing_gate
from rollout_router.claims.layout import STRIPE_NAMES
from rollout_router.claims.locks import StripeLocks
from rollout_router.claims.names import stripe_of, valid_nonce
from rollout_router.claims.record import Claim, Owner, Unreadable
from rollout_router.claims.verdict import ProofOfDeath

__all__ = ["Swept", "dead_owners", "sweep", "sweep_alone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep cleared; of a dry run, what it would have cleared."""

    freed: tuple[Claim, ...] = ()  # rollouts of dead workers: the next request takes them
    lost: tuple[Claim, ...] = ()  # sessions of dead workers: each has a tombstone now
    forgotten: tuple[Claim, ...] = ()  # tombstones that lasted long enough
    owners: tuple[str, ...] = ()  # nonces of dead workers whose owner file went
    sockets: tuple[str, ...] = ()  # paths of the sockets and load files that they left behind
    leftovers: tuple[str, ...] = ()  # temporary files; in a dry run also files being written
    unreadable: tuple[Unreadable, ...] = ()  # left alone, and the reason why no owner file went
    failed: tuple[Unreadable, ...] = ()  # could not be cleared, by the name of the error number
    whole: bool = True  # False: it was ended early, perhaps before an owner file went


def _unhurried() -> bool:
    return True


@dataclass(slots=True)
class _Pass:
    """One pass: what it may do, and what it found so far."""

    store: FileClaimStore
    dead: Mapping[Owner, ProofOfDeath]
    now: datetime
    tombstone_age_max: timedelta
    dry_run: bool
    pace: Callable[[], bool]
    freed: list[Claim] = field(default_factory=list)
    lost: list[Claim] = field(default_factory=list)
    forgotten: list[Claim] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    failed: list[Unreadable] = field(default_factory=list)
    named: set[str] = field(default_factory=set)  # nonces, by a claim that stays
    stuck: set[str] = field(default_factory=set)  # stripes whose lock was not had in time
    dead_nonces: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.dead_nonces = frozenset(owner.nonce for owner in self.dead)

    def visit(self, record: Claim | Unreadable) -> None:
        """Clear one record, where it may go."""
        if isinstance(record, Unreadable):
            self.unreadable.append(record)
            return
        try:
            if stripe_of(record.rollout_id) in self.stuck or not self._clear(record):
                self.named.add(record.owner.nonce)
        except ClaimUnreadable as error:  # it changed since it was listed
            self.unreadable.append(Unreadable(path=error.path, code=error.code))
        except StoreUnavailable as error:
            if error.errno == errno.ESTALE:
                raise  # this is not our store any more
            if error.errno == errno.ETIMEDOUT:
                self.stuck.add(stripe_of(record.rollout_id))
            self.named.add(record.owner.nonce)
            self._fail(self.store.path_of(record.rollout_id), error)

    def _clear(self, claim: Claim) -> bool:
        """False: a claim stays there that may name its owner."""
        if claim.state == "lost":
            expired = self.now - datetime.fromisoformat(claim.at) > self.tombstone_age_max
            if expired and (self.dry_run or self.store.forget(claim)):
                self.forgotten.append(claim)
            return True  # a tombstone needs no owner file
        proof = self.dead.get(claim.owner)
        if proof is None and claim.owner.nonce in self.dead_nonces:
            proof = self.store.proof_of_death(claim.owner)  # it names another file of that nonce
        if proof is None:
            return False
        if self.dry_run or self.store.reap(claim, proof):
            (self.lost if claim.kind == "session" else self.freed).append(claim)
        return True  # cleared, or taken over since it was read

    def clear_owners(self) -> Iterator[tuple[str, list[str]]]:
        """Remove the files of dead workers that no claim names: each nonce, and its sockets."""
        leaving = [owner for owner in self.dead if owner.nonce not in self.named]
        with ExitStack() as writers:
            if leaving and not self.dry_run:
                try:
                    writers.enter_context(self.store.holding_format())
                except StoreUnavailable as error:
                    self._fail(f"{self.store.state_dir}/owners", error)
                    return
            for owner in leaving:
                if not self.pace():
                    return
                path = self.store.state_dir / "owners" / owner.nonce
                try:
                    sockets = list(_sockets_of(self.store, owner))
                    for gone in () if self.dry_run else (*sockets, path):
                        gone.unlink(missing_ok=True)
                except ClaimUnreadable as error:  # nobody knows where its sockets are
                    self.failed.append(Unreadable(path=error.path, code=error.code))
                except (StoreUnavailable, OSError) as error:
                    self._fail(str(path), error)
                else:
                    yield owner.nonce, [str(socket) for socket in sockets]

    def clear_leftovers(self) -> Iterator[str]:
        """Remove the temporary files that are there while nobody can be writing one."""
        root = self.store.state_dir
        parts = [root, root / "owners", root / "epochs"]
        parts += [root / "claims" / stripe for stripe in STRIPE_NAMES]
        for directory in parts:
            if directory.name in self.stuck:
                continue
            if not self.pace():
                return
            try:
                yield from self._clear_temporary(directory)
            except (StoreUnavailable, OSError) as error:
                self._fail(str(directory), error)

    def _clear_temporary(self, directory: Path) -> list[str]:
        found = _temporary(directory)
        if not found or self.dry_run:
            return found
        with ExitStack() as writers:
            if directory.name in STRIPE_NAMES:
                writers.enter_context(self.store.holding_stripe(directory.name))
            else:
                writers.enter_context(self.store.holding_format())
            if directory == self.store.state_dir:
                writers.enter_context(writing_gate(directory))
            found = _temporary(directory)
            for path in found:
                Path(path).unlink(missing_ok=True)
        return found

    def _fail(self, path: str, error: StoreUnavailable | OSError) -> None:
        self.failed.append(Unreadable(path=path, code=errno_name(error)))


def sweep(
    store: FileClaimStore,
    *,
    now: datetime,
    tombstone_age_max: timedelta,
    dry_run: bool = False,
    pace: Callable[[], bool] = _unhurried,
) -> Swept:
    """Clear what dead workers left.

    Args:
        store: whose claims.
        now: the time, with its zone.
        tombstone_age_max: how long a lost session says 410.
        dry_run: change nothing, and take no lock; *store* may be inspected only.
        pace: asked before each record, owner and directory of temporary files, and may wait; False
            ends the sweep there.

    Raises:
        StoreUnavailable: the owner files cannot be listed, the store was replaced, or this process
            has no descriptors left. What was cleared until then stays cleared; the next goes on.
    """
    run = _Pass(
        store=store,
        dead=dead_owners(store),
        now=now,
        tombstone_age_max=tombstone_age_max,
        dry_run=dry_run,
        pace=pace,
    )
    whole = True
    for record in store.survey():
        if not pace():
            whole = False
            break
        run.visit(record)
    cleared = list(run.clear_owners()) if whole and not run.unreadable else []
    leftovers = list(run.clear_leftovers()) if whole else []
    return Swept(
        freed=tuple(run.freed),
        lost=tuple(run.lost),
        forgotten=tuple(run.forgotten),
        owners=tuple(nonce for nonce, _ in cleared),
        sockets=tuple(path for _, sockets in cleared for path in sockets),
        leftovers=tuple(leftovers),
        unreadable=tuple(run.unreadable),
        failed=tuple(run.failed),
        whole=whole,
    )


def sweep_alone(
    store: FileClaimStore,
    *,
    now: datetime,
    tombstone_age_max: timedelta,
    pace: Callable[[], bool] = _unhurried,
) -> Swept | None:
    """Sweep, unless another process does so now: then None, at once.

    The lock only saves work: two sweeps at one time are as safe as one.

    Raises:
        StoreUnavailable: as :func:`sweep`.
    """
    locks = StripeLocks(store.state_dir / "locks")
    with ExitStack() as alone:
        try:
            alone.enter_context(locks.hold("sweep", create=True, timeout_s=0))
        except StoreUnavailable as error:
            if error.errno != errno.ETIMEDOUT:
                raise
            return None
        return sweep(store, now=now, tombstone_age_max=tombstone_age_max, pace=pace)


def dead_owners(store: FileClaimStore) -> dict[Owner, ProofOfDeath]:
    """The workers that left an owner file and are proven dead.

    Raises:
        StoreUnavailable: the owner files cannot be listed.
    """
    directory = store.state_dir / "owners"
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names
    except OSError as error:
        raise StoreUnavailable(f"listing {directory}", error.errno) from error
    dead: dict[Owner, ProofOfDeath] = {}
    for name in names:
        if not valid_nonce(name):
            continue
        try:
            inode = (directory / name).lstat().st_ino
        except OSError:
            continue  # gone, or not to be looked at: not proven dead
        owner = Owner(nonce=name, inode=inode)
        if proof := store.proof_of_death(owner):
            dead[owner] = proof
    return dead


def _sockets_of(store: FileClaimStore, owner: Owner) -> Iterator[Path]:
    """The sockets that a worker left, and the file that says how busy it is.

    A nonce is used once, so these names are of no other.

    Raises:
        ClaimUnreadable: its owner file does not say where they are.
    """
    identity = store.owner(owner.nonce)
    if identity is None or os.path.basename(identity.socket) != f"{owner.nonce}.sock":  # noqa: PTH119 - Path would hide a trailing slash
        return
    stem = identity.socket.removesuffix("sock")
    # ``new`` is the name under which a worker binds anew when its socket file was removed; by
    # ``conn`` it took connections that others handed over.
    left = [(stem + name, stat.S_ISSOCK) for name in ("sock", "new", "conn")]
    for path, is_its in (*left, (stem + "load", stat.S_ISREG)):
        try:
            if is_its(os.lstat(path).st_mode):
                yield Path(path)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue  # ValueError: no file can be there


def _temporary(directory: Path) -> list[str]:
    return [str(path) for path in directory.iterdir() if path.name.startswith(TEMPORARY)]
