# SPDX-License-Identifier: Apache-2.0
"""Who owns what: a claim as every document shows it, and all claims of a store.

What tells records apart is imported where one is met: most stores that are listed are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rollout_router.claims import ClaimReader, ClaimsError, rollout_of_file
from rollout_router.documents import SCHEMA

if TYPE_CHECKING:
    from datetime import timedelta

    from rollout_router.claims import Claim, Judgement, OwnerIdentity, Unreadable

__all__ = ["Owners", "claims_document", "described", "row_of", "surveyed"]


class Owners:
    """What is known of each owner, asked once an owner however many claims name it."""

    def __init__(self, store: ClaimReader) -> None:
        self._store = store
        self._known: dict[tuple[str, int], tuple[OwnerIdentity | None, Judgement]] = {}

    def of(self, claim: Claim) -> tuple[OwnerIdentity | None, Judgement]:
        """Its identity, None where its file is missing or unreadable, and the verdict on it."""
        key = (claim.owner.nonce, claim.owner.inode)
        if key not in self._known:
            try:
                identity = self._store.owner(claim.owner.nonce)
            except ClaimsError:  # the judgement beside it says "unknown"; verify names the file
                identity = None
            self._known[key] = (identity, self._store.judge(claim.owner))
        return self._known[key]


def row_of(claim: Claim, owners: Owners) -> dict[str, Any]:
    """A claim as every document shows it. A tombstone is nobody's: there is no verdict on it."""
    identity, judgement = owners.of(claim) if claim.state == "owned" else (None, None)
    return {
        "rollout_id": claim.rollout_id,
        "claim_epoch": claim.claim_epoch,
        "state": claim.state,
        "worker_id": claim.owner.nonce,
        "pid": identity.pid if identity else None,
        "socket": identity.socket if identity else None,
        "verdict": judgement.verdict.value if judgement else None,
        "claimed_at": claim.at,
    }


def described(bad: Unreadable) -> dict[str, Any]:
    """What cannot be read: also whose claim it is, where its file name tells."""
    return {"path": bad.path, "code": bad.code, "rollout_id": rollout_of_file(bad.path)}


def surveyed(
    store: ClaimReader,
    row: Callable[[Claim], dict[str, Any] | None],
    *,
    step: Callable[[], object],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What *row* makes of every claim of *store*, but None; and what cannot be read, described.

    Args:
        store: whose claims.
        row: makes a row; None leaves the claim out.
        step: called at each record.

    Raises:
        StoreUnavailable: the pass is incomplete.
    """
    found: list[dict[str, Any]] = []
    unreadable: list[dict[str, Any]] = []
    for record in store.survey():
        step()
        from rollout_router.claims import Unreadable  # noqa: PLC0415 - none is met, none is needed

        if isinstance(record, Unreadable):
            unreadable.append(described(record))
        elif (made := row(record)) is not None:
            found.append(made)
    return found, unreadable


def claims_document(
    store: ClaimReader,
    *,
    worker: str | None = None,
    verdict: str | None = None,
    older_than: timedelta | None = None,
    step: Callable[[], object],
) -> dict[str, Any]:
    """All claims that the filters let through, in no order.

    Args:
        store: whose claims.
        worker: only those of this worker.
        verdict: only those of owners that this is known of; never lost sessions.
        older_than: only those that were made longer ago.
        step: called at each record.

    Raises:
        StoreUnavailable: the pass is incomplete.
    """
    owners, now = Owners(store), datetime.now(UTC)

    def asked_for(claim: Claim) -> bool:
        """The cheap questions first."""
        if worker is not None and claim.owner.nonce != worker:
            return False
        if older_than is not None and now - datetime.fromisoformat(claim.at) <= older_than:
            return False
        if verdict is None:
            return True
        return claim.state == "owned" and owners.of(claim)[1].verdict.value == verdict

    found, unreadable = surveyed(
        store, lambda claim: row_of(claim, owners) if asked_for(claim) else None, step=step
    )
    return {
        "schema": SCHEMA,
        "store_id": store.store_id,
        "claims": found,
        "unreadable": unreadable,
    }
