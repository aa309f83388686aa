# SPDX-License-Identifier: Apache-2.0
"""``serve --server-timing``: what the stages of a call took, local and forwarded."""

from collections.abc import Callable

import httpx
from support.conversations import FRAME_HEADERS, body_of, conversation, frame
from support.gateway import Gateway, client_of

LOCAL = {"claim", "admission", "read", "rebuild", "app"}
FULL = body_of(conversation(200))


def _stages(answer: httpx.Response) -> dict[str, float]:
    """Milliseconds by stage; the answer has the header once."""
    assert answer.status_code == 200
    (line,) = answer.headers.get_list("server-timing")
    assert not [name for name in answer.headers if name == "rollout-stages"]
    entries = (entry.split(";dur=") for entry in line.split(", "))
    return {stage: float(spent_ms) for stage, spent_ms in entries}


def test_a_call_says_what_its_stages_took_at_its_owner_and_over_a_hop(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--server-timing")
    path = "/sessions/timed/v1/responses"
    keep = {"content-type": "application/json", "rollout-history": "keep"}
    mine, other = (worker["id"] for worker in gateway.ready["workers"])
    with client_of(gateway, mine) as local, client_of(gateway, other) as forwarding:
        answers = [local.post(path, content=FULL, headers=keep)]
        delta = frame(FULL, body_of(conversation(201)))
        answers += [c.post(path, content=delta, headers=FRAME_HEADERS) for c in (local, forwarding)]
        unnamed = forwarding.post("/v1/responses", content=FULL, headers=keep)

    assert {answer.headers["rollout-worker"] for answer in answers} == {mine}
    full, rebuilt, forwarded = map(_stages, answers)
    assert full.keys() == rebuilt.keys() == LOCAL
    assert forwarded.keys() == LOCAL | {"hop"}
    for spent_ms in (full, rebuilt, forwarded):
        # A file, a digest, a socket, a model: nobody does one in less than half a microsecond.
        assert all(spent_ms[stage] > 0 for stage in spent_ms.keys() - {"admission", "read"})
    assert unnamed.status_code == 200
    assert "server-timing" not in unnamed.headers
