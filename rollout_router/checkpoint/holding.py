# SPDX-License-Identifier: Apache-2.0
"""The gate of a service, as the checkpoints of one journal hold it. It blocks.

Several journals may share a store one after the other, and ids of checkpoints repeat between runs:
who holds the gate is told by checkpoint, instance and run.
"""

from collections.abc import Callable
from pathlib import Path

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.ledger import busy
from rollout_router.claims import Moment, read_gate, release_gate
from rollout_router.operate import (
    AdmissionHeld,
    Blocker,
    ask_admission,
    hold_admission,
    renew_admission,
)

__all__ = ["CheckpointGate"]


class CheckpointGate:
    """The gate in *state_dir*, held in the name of the checkpoints of *journal*."""

    def __init__(self, state_dir: Path, journal: Journal, now: Callable[[], Moment]) -> None:
        self._state_dir = state_dir
        self._journal = journal
        self._now = now

    def hold(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> tuple[Blocker, ...]:
        """Close it, and wait until nothing is in hand; what still is comes back.

        Raises:
            CheckpointRefusal: ``checkpoint_busy``: somebody else holds it.
            ValueError, ClaimsError: see :func:`hold_admission`.
        """
        why = f"checkpoint {checkpoint_id} is being taken or brought back; it goes on by itself"
        try:
            return hold_admission(
                self._state_dir,
                by=self._by(checkpoint_id),
                why=why,
                budget_s=budget_s,
                wait_s=wait_s,
                now=self._now,
            )
        except AdmissionHeld as held:
            raise busy(checkpoint_id, str(held)) from held

    def hold_or_leave(
        self, checkpoint_id: str, *, budget_s: float, wait_s: float
    ) -> tuple[Blocker, ...]:
        """:meth:`hold`, unless an operator closed it: it stays theirs, and quiet is waited for."""
        try:
            return self.hold(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
        except CheckpointRefusal:
            if not self._is_operators():
                raise
            return ask_admission(self._state_dir, wait_s=wait_s)

    def renew(self, checkpoint_id: str, *, budget_s: float) -> bool:
        """Begin the budget anew where the gate is held, and never was opened since."""
        by = self._by(checkpoint_id)
        return renew_admission(self._state_dir, by=by, budget_s=budget_s, now=self._now)

    def release(self, checkpoint_id: str) -> None:
        """Open it, if this checkpoint holds it."""
        if self._is_held(checkpoint_id):
            release_gate(self._state_dir, by=self._by(checkpoint_id), now=self._now)

    def check(self, checkpoint_id: str, *, operators: bool = False) -> None:
        """Check that the checkpoint holds it; with *operators*, or that one of them closed it.

        Raises:
            CheckpointRefusal: ``checkpoint_phase``.
        """
        if not self._is_held(checkpoint_id) and not (operators and self._is_operators()):
            raise CheckpointRefusal(
                "checkpoint_phase",
                f"checkpoint {checkpoint_id}: its gate was opened by somebody else, or its budget"
                " is over; begin it again",
            )

    def _is_held(self, checkpoint_id: str) -> bool:
        return read_gate(self._state_dir, now=self._now).is_held(by=self._by(checkpoint_id))

    def _is_operators(self) -> bool:
        gate = read_gate(self._state_dir, now=self._now)
        return not gate.open and gate.until is None

    def _by(self, checkpoint_id: str) -> str:
        return f"checkpoint {checkpoint_id} of {self._journal.instance}, run {self._journal.run}"
