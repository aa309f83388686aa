# SPDX-License-Identifier: Apache-2.0
"""One call, its take-over and its owner's application are found by one id and one trace."""

import json
from collections.abc import Callable

from support.control import Control
from support.gateway import Gateway

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_r5_a_take_over_is_logged_under_the_id_and_trace_of_the_call_that_caused_it(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve("--log-level", "info", control=control.path)
    first = gateway.post("r1", b"{}")
    gateway.kill_worker(first.headers["rollout-worker"])

    marks = {"x-request-id": "call-7", "traceparent": TRACE}
    second = gateway.post("r1", b"{}", headers=marks)

    said = json.loads(gateway.wait_line("claim_taken_over"))
    assert (said["request_id"], said["traceparent"]) == ("call-7", TRACE)
    assert said["worker_id"] == second.headers["rollout-worker"]
    assert str(said["claim_epoch"]) == second.headers["rollout-claim-epoch"]
    assert said["from_worker"] == first.headers["rollout-worker"]
    assert control.runs("r1")[-1].headers["traceparent"] == TRACE
    assert gateway.stop() == 0
    for line in gateway.log:  # the supervisor's too
        assert json.loads(line)["level"] in {"info", "warning"}, line
