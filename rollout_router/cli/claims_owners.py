# SPDX-License-Identifier: Apache-2.0
"""Opening a store for a command, its owners, and a claim as every document shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_router.claims import ClaimReader, ClaimsError
from rollout_router.cli.claims_view import progress
from rollout_router.cli.flags import ExitCode, ended_by

if TYPE_CHECKING:
    from rollout_router.claims import Claim, Judgement, OwnerIdentity, Unreadable

__all__ = ["Owners", "open_store", "row_of", "surveyed"]


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


def open_store(state_dir: Path) -> ClaimReader:
    """The store, to read; exits with a message where there is none or it is refused."""
    with ended_by(ClaimsError, ExitCode.REFUSED):
        return ClaimReader.inspect(state_dir)


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


def surveyed(
    store: ClaimReader, row: Callable[[Claim], dict[str, Any] | None]
) -> tuple[list[dict[str, Any]], list[Unreadable]]:
    """What *row* makes of every claim of *store*, but None; and what cannot be read.

    Ends the command where the store cannot be read at all.
    """
    found: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    with (
        ended_by(ClaimsError, ExitCode.FAILED),
        progress("reading claims", store.count_files) as step,
    ):
        for record in store.survey():
            step()
            from rollout_router.claims import Unreadable  # noqa: PLC0415 - none is met, none is needed

            if isinstance(record, Unreadable):
                unreadable.append(record)
            elif (made := row(record)) is not None:
                found.append(made)
    return found, unreadable
