# SPDX-License-Identifier: Apache-2.0
"""Which ratios have grown since they were recorded, beyond the noise of both runs. Pure.

A ratio has grown where the middle half of its rounds lies above that of the recorded ones, and by
more than a margin: machines differ in more than speed.
"""

from collections.abc import Mapping
from typing import Any

from rollout_router.bench.measure import Measured

__all__ = ["grown", "recorded"]


def recorded(stages: Mapping[str, Measured]) -> dict[str, Any]:
    """What :func:`grown` needs of a run, as JSON: each ratio with the middle half of its rounds."""
    return {
        name: {"ratio": stage.ratio, "low": stage.spread[0], "high": stage.spread[1]}
        for name, stage in stages.items()
        if stage.ratio is not None and stage.spread is not None
    }


def grown(now: Mapping[str, Any], before: Mapping[str, Any], *, margin: float) -> list[str]:
    """A line for people for each ratio that has grown.

    Args:
        now: of :func:`recorded`.
        before: the same, of the run to compare with. What stands in one of them alone is passed
            over.
        margin: by how much a ratio may grow; 0.5: by half.

    Raises:
        ValueError: they have nothing in common.
    """
    common = [name for name in now if name in before]
    if not common:
        raise ValueError("none of the recorded ratios was measured now")
    return [
        f"{name}: {now[name]['ratio']:.3g}, recorded {before[name]['ratio']:.3g}; half of all "
        f"rounds {now[name]['low']:.3g} or more, then {before[name]['high']:.3g} or less"
        for name in common
        if now[name]["low"] > before[name]["high"] * (1 + margin)
        and now[name]["ratio"] > before[name]["ratio"] * (1 + margin)
    ]
