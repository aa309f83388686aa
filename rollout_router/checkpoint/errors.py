# SPDX-License-Identifier: Apache-2.0
"""What a journal, an environment or a checkpoint refuses, and what becomes of the rollout.

Each code is public and never renamed. Whatever its outcome, no refusal yields a reward: a rollout
ends with the result that its own loop completed, or with none.

    refused       nothing changed; who asked may be told, and the rollout is as it was
    restart       what was recorded is given up, and the rollout starts again from its input
    quarantined   the rollout is set aside, with the code as its reason, until somebody restarts it
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from rollout_router.errors import Answer, Refusal

__all__ = ["CODES", "CheckpointRefusal", "Code", "Outcome"]

Outcome = Literal["refused", "restart", "quarantined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(Answer):
    """One public code: its status over HTTP, and what becomes of the rollout."""

    outcome: Outcome = "refused"


CODES: Final[Mapping[str, Code]] = {
    # Of an environment, before it did anything.
    "operation_required": Code(status=400),
    "operation_invalid": Code(status=400),
    "stale_attempt": Code(status=409),
    "stale_operation": Code(status=409),
    "operation_conflict": Code(status=409, outcome="quarantined"),
    "environment_exists": Code(status=409, outcome="quarantined"),
    "environment_unknown": Code(status=404, outcome="restart"),
    "environment_lost": Code(status=410, outcome="restart"),
    "environment_phase": Code(status=409, outcome="quarantined"),
    "environment_failed": Code(status=500),
    "environment_unavailable": Code(status=503, retry_after=True),
    # Of a run, when it is opened.
    "rollout_unclaimed": Code(status=400),
    "task_invalid": Code(status=400),
    "acknowledgement_invalid": Code(status=400),
    "rollout_unknown": Code(status=404),
    "task_changed": Code(status=409),
    "loop_changed": Code(status=409),
    "configuration_changed": Code(status=409),
    "result_acknowledged": Code(status=410),
    "receipt_mismatch": Code(status=409),
    "rollout_quarantined": Code(status=409),
    "rollout_completed": Code(status=409),
    "rollout_open": Code(status=409),
    "journal_of_another": Code(status=409),
    "journal_unavailable": Code(status=503, retry_after=True),
    "operation_unavailable": Code(status=503, retry_after=True),
    # Of what a run has recorded, or is about to.
    "chain_broken": Code(status=500, outcome="quarantined"),
    "gap": Code(status=500, outcome="quarantined"),
    "unknown_schema": Code(status=500, outcome="quarantined"),
    "revision_mismatch": Code(status=500, outcome="quarantined"),
    "restarts_exhausted": Code(status=500, outcome="quarantined"),
    "divergence": Code(status=500, outcome="restart"),
    "ambiguous_outcome": Code(status=500, outcome="restart"),
    # Of a checkpoint.
    "checkpoint_conflict": Code(status=409),
    "checkpoint_phase": Code(status=409),
    "checkpoint_abandoned": Code(status=409),
    "checkpoint_not_quiet": Code(status=409),
    "checkpoint_busy": Code(status=409),
    "completed_in_scope": Code(status=409),
    "restart_in_scope": Code(status=409),
    "quarantined_in_scope": Code(status=409),
    "environment_unreachable": Code(status=503, retry_after=True),
    "archive_unavailable": Code(status=503, retry_after=True),
    "manifest_missing": Code(status=404),
    "manifest_damaged": Code(status=422),
    "manifest_of_another": Code(status=409),
    "restore_conflict": Code(status=409),
    "restore_into_live": Code(status=409),
}


class CheckpointRefusal(Refusal):
    """A refusal whose code is one of :data:`CODES`."""

    answers: ClassVar[Mapping[str, Answer]] = CODES

    @property
    def outcome(self) -> Outcome:
        """What becomes of the rollout."""
        return CODES[self.code].outcome
