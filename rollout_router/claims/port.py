# SPDX-License-Identifier: Apache-2.0
"""What the rest of the product needs of a claim store, whichever engine holds the claims.

An engine behind this port keeps laws C1 to C5 and C7. Its methods are synchronous and may wait for
a lock or a disk: callers run them in threads, never on an event loop.
"""

from collections.abc import Iterator
from typing import Protocol

from rollout_router.claims.record import Claim, Grant, Kind, Moved, Owner, OwnerIdentity, Unreadable
from rollout_router.claims.verdict import Judgement, ProofOfDeath

__all__ = ["ClaimStore"]


class ClaimStore(Protocol):
    """The claims of one service. Each method that changes a claim does it wholly or not at all."""

    @property
    def store_id(self) -> str:
        """Half of the fencing token; the claim epoch is the other half."""

    @property
    def service(self) -> str:
        """Whose claims these are."""

    def read(self, rollout_id: str) -> Claim | None:
        """The claim that stands, None where none does.

        Raises:
            ClaimUnreadable: the record cannot be understood; the rollout is not free (C5).
            StoreUnavailable: the store cannot be read (C7).
        """

    def take(self, rollout_id: str, owner: Owner, *, kind: Kind = "rollout") -> Grant | Moved:
        """Take a rollout that nobody claims, or that *owner* itself claims already.

        Either way the epoch is higher than every one before (C2). A session stays a session.

        Returns:
            The grant; or what stood there, a session's tombstone too, and nothing changed.

        Raises:
            ClaimUnreadable: as :meth:`read`.
            StoreUnavailable: nothing was granted that another worker would see as anybody else's.
        """

    def take_over(self, seen: Claim, owner: Owner, proof: ProofOfDeath) -> Grant | Moved:
        """Take the claim of an owner that is proven dead (C3). Of racing takers one wins (C4).

        Returns:
            The grant; or what stands now, where that is no longer *seen*, and nothing changed.

        Raises:
            ValueError: *proof* is of another owner, or *seen* is a session, which never moves.
            ClaimUnreadable: as :meth:`read`.
            StoreUnavailable: as :meth:`take`.
        """

    def release(self, grant: Grant) -> bool:
        """Give a claim back. False: it no longer stood, and nothing was changed.

        Raises:
            ClaimUnreadable: the claim stays as it is.
            StoreUnavailable: the claim stays held.
        """

    def stands(self, grant: Grant) -> bool:
        """Whether this very grant is still on record. Cheap: asked before every dispatch.

        What the record says decides, not the file that holds it: a grant whose file was only
        touched or copied (chmod, chown, restorecon, a restore of the same bytes) still stands.

        Returns:
            False: another record stands there, or none: the grant is over for good.

        Raises:
            ClaimUnreadable: the record cannot be understood (C5). Like the next it does not say
                that the grant is over: do not use it now, and do not forget it.
            StoreUnavailable: it cannot be told, the store or a part of it being gone too (C7).
        """

    def lose(self, grant: Grant, *, reason: str) -> bool:
        """Leave a tombstone in the place of an own session, which says 410 from now on (R3).

        Returns:
            False: the claim no longer stood, and nothing was changed.

        Raises:
            ValueError: the claim is of a rollout: release it.
            ClaimUnreadable: the claim stays as it is.
            StoreUnavailable: the claim stays held.
        """

    def reap(self, seen: Claim, proof: ProofOfDeath) -> bool:
        """Free the rollout of a dead owner; of a session leave a tombstone.

        Returns:
            False: *seen* no longer stood, and nothing was changed.

        Raises:
            ValueError: *proof* is of another owner, or *seen* is a tombstone.
            ClaimUnreadable: the claim stays as it is.
            StoreUnavailable: the claim stays as it is.
        """

    def forget(self, tombstone: Claim) -> bool:
        """Remove a tombstone that has lasted long enough. False: it no longer stood.

        Raises:
            ValueError: *tombstone* is a claim that is owned.
            ClaimUnreadable: it stays as it is.
            StoreUnavailable: it stays as it is.
        """

    def force(self, rollout_id: str, *, expect_epoch: int | None, reason: str) -> int:
        """Take a claim away from whoever has it, at an operator's explicit wish (C3).

        The epoch is raised first, so the owner is fenced; then the claim is removed, and of a
        session a tombstone left. The next request takes the rollout.

        Args:
            rollout_id: whose claim.
            expect_epoch: the epoch that the operator saw; None where the record is unreadable.
            reason: for the tombstone and the log.

        Returns:
            The epoch that fences every earlier one; the next grant is above it.

        Raises:
            ForceRefused: another claim, or none, stands there; or an unreadable one though
                *expect_epoch* was given, or one of a newer version. Nothing was changed.
            StoreUnavailable: the claim may be fenced already; force it again.
        """

    def survey(self) -> Iterator[Claim | Unreadable]:
        """Every record, in no particular order; not a snapshot. What cannot be read is named.

        Raises:
            StoreUnavailable: this process cannot read any more; the pass is incomplete.
        """

    def owners(self) -> Iterator[OwnerIdentity | Unreadable]:
        """Every worker that has an owner file, dead ones too.

        Raises:
            StoreUnavailable: the pass is incomplete.
        """

    def owner(self, nonce: str) -> OwnerIdentity | None:
        """What a worker says of itself; None where its owner file is missing.

        Raises:
            ClaimUnreadable: its owner file cannot be understood.
            StoreUnavailable: the store cannot be read.
        """

    def judge(self, owner: Owner) -> Judgement:
        """Alive, dead or unknown. Never raises and never waits.

        Before "unknown" is answered to anybody, read the claim again: it may have moved.
        """

    def proof_of_death(self, owner: Owner) -> ProofOfDeath | None:
        """Ask the life lock alone; for a forwarder that waits for an answer. Never raises."""
