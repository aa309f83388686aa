# SPDX-License-Identifier: Apache-2.0
"""Claims of a worker whose owner file is gone (laws C2, C3).

Without the file nobody can prove that the worker is dead, so no worker ever moves such a claim. An
operator may say so: each is forced, so that even an owner that lives is fenced before its claim
goes. While the file is there this refuses: the life lock answers better than anybody's word.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rollout_router.claims.census import census
from rollout_router.claims.errors import ForceRefused
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.record import Claim, Unreadable

__all__ = ["Orphans", "free_orphans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What became of the claims of one worker; of a dry run, what would have."""

    freed: tuple[str, ...]  # rollouts: the next request takes them, under a higher epoch
    lost: tuple[str, ...]  # sessions: each has a tombstone now
    moved: tuple[str, ...]  # another claim, or none, stood there when its turn came: left alone
    unreadable: tuple[Unreadable, ...]  # left alone; some may be this worker's


def free_orphans(
    store: FileClaimStore, nonce: str, *, dry_run: bool, step: Callable[[], object]
) -> Orphans:
    """Force every claim of the worker *nonce*, whose owner file must be missing.

    Args:
        store: whose claims.
        nonce: of the worker.
        dry_run: change nothing, and take no lock.
        step: called before each record.

    Raises:
        ForceRefused: the owner file is there, or came back; what was freed until then stays so.
        StoreUnavailable: what was freed until then stays so; do it again.
    """
    _check_missing(store, nonce)
    seen: list[Claim] = []
    unreadable: list[Unreadable] = []
    for found in census(store):
        step()
        if isinstance(found, Unreadable):
            unreadable.append(found)
        elif found.state == "owned" and found.owner.nonce == nonce:
            seen.append(found)
    moved = () if dry_run else _force_each(store, nonce, seen)
    gone = [claim for claim in seen if claim.rollout_id not in moved]
    return Orphans(
        freed=tuple(claim.rollout_id for claim in gone if claim.kind == "rollout"),
        lost=tuple(claim.rollout_id for claim in gone if claim.kind == "session"),
        moved=tuple(moved),
        unreadable=tuple(unreadable),
    )


def _force_each(store: FileClaimStore, nonce: str, seen: Iterable[Claim]) -> dict[str, None]:
    """Those that moved meanwhile, in order."""
    moved: dict[str, None] = {}
    for claim in seen:
        _check_missing(store, nonce)
        try:
            store.force(
                claim.rollout_id,
                expect_epoch=claim.claim_epoch,
                reason=f"the owner file of worker {nonce} is missing",
            )
        except ForceRefused:  # an epoch is never given twice: another one stands there
            moved[claim.rollout_id] = None
    return moved


def _check_missing(store: FileClaimStore, nonce: str) -> None:
    path = f"{store.state_dir}/owners/{nonce}"
    if os.path.lexists(path):
        raise ForceRefused(
            f"{path} is there, so its life lock says whether worker {nonce} is dead: leave out "
            "--owner-missing to free the claims of the dead, or take one with "
            "`rollout-router claims force`"
        )
