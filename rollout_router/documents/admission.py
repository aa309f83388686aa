# SPDX-License-Identifier: Apache-2.0
"""The gate of a service, and what keeps a closed one from being quiet (R6)."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rollout_router.claims import Moment, read_gate
from rollout_router.documents import SCHEMA
from rollout_router.operate import Blocker

__all__ = ["OPERATOR", "admission_document", "blockers_document"]

OPERATOR: Final = "operator"
"""Who closed a gate by a command, or at the admin address."""


def admission_document(state_dir: Path) -> dict[str, Any]:
    """Whether the gate is open, who closed it, why, and for how long where it is held."""
    gate = read_gate(state_dir)
    left_s = gate.seconds_left(Moment.now())
    return {
        "schema": SCHEMA,
        "open": gate.open,
        "by": gate.by,
        "why": gate.why,
        "seconds_left": None if left_s is None else round(left_s, 3),
    }


def blockers_document(blockers: Iterable[Blocker]) -> dict[str, Any]:
    """What is still in hand behind a closed gate, and who did not answer."""
    return {"schema": SCHEMA, "blockers": [asdict(blocker) for blocker in blockers]}
