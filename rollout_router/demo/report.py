# SPDX-License-Identifier: Apache-2.0
"""What the performance comes to: totals, the verdict, and one JSON document. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rollout_router.demo.attempt import Holder
from rollout_router.demo.play import Performance, Played
from rollout_router.demo.processes import Tally

__all__ = ["SCHEMA", "document", "problems", "saved_percent", "total"]

SCHEMA: Final = 1


def saved_percent(tally: Tally) -> float:
    """The share of the bytes of full requests that was not sent; 0 where there were none."""
    return 100 * (1 - tally.bytes_sent / tally.bytes_full) if tally.bytes_full else 0.0


def total(rollouts: Sequence[Played]) -> Tally:
    """The sums over all rollouts."""
    tallies = [asdict(rollout.tally) for rollout in rollouts]
    return Tally(**{name: sum(tally[name] for tally in tallies) for name in Tally.__slots__})


def problems(performance: Performance) -> list[str]:
    """Everything that is not as it should be; none where the demonstration succeeded."""
    return [
        problem
        for rollout in performance.rollouts
        for problem in (*rollout.failures, *rollout.differences)
    ]


def document(performance: Performance, *, folder: str | None) -> dict[str, Any]:
    """All of it as JSON; *folder* is where the files were kept."""
    rollouts = performance.rollouts
    sums = total(rollouts)
    return {
        "schema": SCHEMA,
        "rollouts": [_row(rollout) for rollout in rollouts],
        "totals": {
            "rollouts": len(rollouts),
            "finished": sum(rollout.answered == rollout.calls for rollout in rollouts),
            "calls": sum(rollout.calls for rollout in rollouts),
            "again": sum(rollout.again for rollout in rollouts),
            "bytes_sent": sums.bytes_sent,
            "bytes_full": sums.bytes_full,
            "saved_percent": round(saved_percent(sums), 2),
            "resyncs": sums.resyncs,
        },
        "kills": [asdict(kill) for kill in performance.kills],
        "failures": [line for rollout in rollouts for line in rollout.failures],
        "differences": [line for rollout in rollouts for line in rollout.differences],
        "wall_s": round(performance.wall_s, 2),
        "folder": folder,
    }


def _row(rollout: Played) -> dict[str, Any]:
    return {
        "rollout_id": rollout.rollout_id,
        "dialect": rollout.dialect.value,
        "calls": rollout.calls,
        "answered": rollout.answered,
        "again": rollout.again,
        "bytes_sent": rollout.tally.bytes_sent,
        "bytes_full": rollout.tally.bytes_full,
        "saved_percent": round(saved_percent(rollout.tally), 2),
        "resyncs": rollout.tally.resyncs,
        "before": _holder(rollout.before),
        "after": _holder(rollout.after),
    }


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    return None if holder is None else asdict(holder)
