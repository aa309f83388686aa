# SPDX-License-Identifier: Apache-2.0
"""Claims of a worker whose owner file is gone, or is another file now (laws C2, C3).

Without the very file that they name nobody can prove that the worker is dead, so no worker ever
moves such a claim. An operator may say so: each is forced, so that even an owner that lives is
fenced before its claim goes. Claims that name the file that stands are left alone: the life lock
answers better than anybody's word.

What cannot be freed is named and passed by, so that one stuck stripe or one full disk does not keep
the rest, and a stuck stripe is waited for once.
"""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rollout_router.claims.errors import (
    ClaimUnreadable,
    ForceRefused,
    StoreUnavailable,
    errno_name,
)
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.names import stripe_of
from rollout_router.claims.record import Claim, Unreadable

__all__ = ["Orphans", "free_orphans"]

_ENDING: Final = frozenset({errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""This is not our store any more, or this process has nothing left: the rest would fail too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What became of the claims of one worker; of a dry run, what would have."""

    freed: tuple[str, ...]  # rollouts: the next request takes them, under a higher epoch
    lost: tuple[str, ...]  # sessions: each has a tombstone now
    moved: tuple[str, ...]  # another claim, or none, stood there when its turn came: left alone
    unreadable: tuple[Unreadable, ...]  # left alone; some may be this worker's
    failed: tuple[Unreadable, ...]  # could not be freed; ``owner_back``: its owner file came back
    ended_by: StoreUnavailable | None  # why the rest was not tried


def free_orphans(
    store: FileClaimStore, nonce: str, *, dry_run: bool, step: Callable[[], object]
) -> Orphans:
    """Force every claim of the worker *nonce* that names an owner file which is not there.

    Args:
        store: whose claims.
        nonce: of the worker.
        dry_run: change nothing, and take no lock.
        step: called before each record.

    Raises:
        ForceRefused: the owner file is there, and no claim names another one.
        StoreUnavailable: the store cannot be read. Nothing was changed.
    """
    standing = _inode_of(store, nonce)
    orphaned: list[Claim] = []
    unreadable: list[Unreadable] = []
    for found in store.survey():
        step()
        if isinstance(found, Unreadable):
            unreadable.append(found)
        elif (found.state, found.owner.nonce) == ("owned", nonce) and found.owner.inode != standing:
            orphaned.append(found)
    if standing is not None and not orphaned:
        raise ForceRefused(
            f"{store.state_dir}/owners/{nonce} is there, so its life lock says whether worker "
            f"{nonce} is dead: leave out --owner-missing to free the claims of the dead, or take "
            "one with `rollout-router claims force`"
        )
    run = _Pass(store=store)
    for claim in orphaned:
        if dry_run:
            run.gone.append(claim)
        elif run.ended_by is None:
            run.visit(claim)
    return Orphans(
        freed=tuple(claim.rollout_id for claim in run.gone if claim.kind == "rollout"),
        lost=tuple(claim.rollout_id for claim in run.gone if claim.kind == "session"),
        moved=tuple(run.moved),
        unreadable=tuple(unreadable),
        failed=tuple(run.failed),
        ended_by=run.ended_by,
    )


@dataclass(slots=True)
class _Pass:
    store: FileClaimStore
    gone: list[Claim] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    failed: list[Unreadable] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)  # stripes whose lock was not had in time
    ended_by: StoreUnavailable | None = None

    def visit(self, claim: Claim) -> None:
        """Force one claim, where it still is what was seen."""
        stripe = stripe_of(claim.rollout_id)
        if stripe in self.stuck:
            self._fail(claim, "ETIMEDOUT")
            return
        try:
            self._force(claim)
        except ForceRefused:  # an epoch is never given twice: another one stands there
            self.moved.append(claim.rollout_id)
        except StoreUnavailable as error:
            self._fail(claim, errno_name(error))
            if error.errno == errno.ETIMEDOUT:
                self.stuck.add(stripe)
            elif error.errno in _ENDING:
                self.ended_by = error

    def _force(self, claim: Claim) -> None:
        if _inode_of(self.store, claim.owner.nonce) == claim.owner.inode:
            self._fail(claim, "owner_back")
            return
        self.store.force(
            claim.rollout_id,
            expect_epoch=claim.claim_epoch,
            reason=f"the owner file of worker {claim.owner.nonce} is missing or was replaced",
        )
        self.gone.append(claim)

    def _fail(self, claim: Claim, code: str) -> None:
        self.failed.append(Unreadable(path=self.store.path_of(claim.rollout_id), code=code))


def _inode_of(store: FileClaimStore, nonce: str) -> int | None:
    """The inode of the owner file that stands; None where there is none, or only a copy of it.

    Raises:
        StoreUnavailable: it cannot be told.
    """
    path = f"{store.state_dir}/owners/{nonce}"
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"looking at {path}", error.errno) from error
    if not stat.S_ISREG(status.st_mode):
        return None
    try:
        identity = store.owner(nonce)
    except ClaimUnreadable:
        return status.st_ino  # its lock answers all the same
    return status.st_ino if identity and identity.inode == status.st_ino else None
