# SPDX-License-Identifier: Apache-2.0
"""The lines that a shim writes of its calls, read back."""

import json
from typing import Any

import pytest

from rollout_router.timings import by_rollout, stages_of


def call(**changes: Any) -> dict[str, Any]:
    times = {"local_hop_ms": 0.5, "delta_ms": 1.0, "other_ms": 0.25, "wait_ms": 4.0}
    return {"rollout": "r", **times, "server_timing": None, **changes}


def test_calls_stand_by_their_rollout_in_their_order() -> None:
    lines = [json.dumps(call(rollout=name, sha256=str(n))) for n, name in enumerate("aba")]
    found = {name: [one["sha256"] for one in calls] for name, calls in by_rollout(lines).items()}
    assert found == {"a": ["0", "2"], "b": ["1"]}


def test_a_gateway_that_tells_nothing_leaves_the_stages_of_the_sandbox() -> None:
    sandbox = {"sandbox local hop": 0.5, "sandbox delta": 1.0, "sandbox other": 0.25}
    assert stages_of(call()) == sandbox
    told = stages_of(call(server_timing="claim;dur=0.5, app;dur=3, miss, their;dur=9"))
    assert told == {**sandbox, "gym claim": 0.5, "gym other": 0.5}


def test_what_is_no_line_of_a_shim_is_an_error() -> None:
    with pytest.raises(KeyError):
        by_rollout(["{}"])
    with pytest.raises(KeyError):
        stages_of({})
