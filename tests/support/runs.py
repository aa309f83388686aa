# SPDX-License-Identifier: Apache-2.0
"""A good run of a harness with deltas, and the same in full: two calls, an owner killed between."""

from dataclasses import replace
from typing import Any

from rollout_router.harness.compare import Run
from rollout_router.harness.model_log import Seen
from rollout_router.harness.plan import Mode
from rollout_router.harness.port import Told
from rollout_router.harness.scenario import Scenario, Step
from rollout_router.harness.transcript import Ownership, Recorded, ToolCall, Transcript

__all__ = ["CALLS", "DELTAS", "FIRST", "FULL", "HEADERS", "LAST", "SCENARIO", "recorded", "seen"]

SCENARIO = Scenario(name="short", steps=(Step(),))
HEADERS = "accept: */*\nauthorization: Bearer k\ncontent-type: application/json"
FIRST, LAST = "conf_main_0_1", "conf_main_1_1"


def recorded(request: str, response: str, **changes: Any) -> Recorded:
    call = Recorded(
        path="responses",
        outcome="completed",
        status=200,
        request=request,
        request_sha256=f"sha of {request}",
        response=response,
    )
    return replace(call, **changes)


def seen(request_sha256: str, answer_id: str | None) -> Seen:
    return Seen(
        path="responses", headers=HEADERS, request_sha256=request_sha256, answer_id=answer_id
    )


CALLS = (recorded("go", f"call {FIRST}"), recorded(f"go, {FIRST}: x", f"done {LAST}"))
DELTAS = Run(
    scenario="short",
    mode=Mode.DELTAS_KILLED,
    wall_s=1.0,
    exit_code=0,
    killed="ada",
    told=Told(answer=f"done {LAST}", model_calls=2, usage={"output": 9}, problems=()),
    transcript=Transcript(
        calls=CALLS,
        look_ups=0,
        owners=(
            Ownership(worker_id="ada", claim_epoch=7, calls=1),
            Ownership(worker_id="bob", claim_epoch=8, calls=1),
        ),
        tool_calls={FIRST: ToolCall(name="bash", arguments='{"command":"ls"}', result="x\n")},
    ),
    seen=(
        seen(CALLS[0].request_sha256, FIRST),
        seen(CALLS[1].request_sha256, LAST),
    ),
    verified=(),
    calls=2,
    bytes_full=300,
    bytes_sent=200,
    bytes_plain=250,
    resyncs=1,
    timings=(),
)
FULL = replace(DELTAS, mode=Mode.FULL_KILLED, bytes_sent=300, bytes_plain=300, resyncs=0)
