# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.client import Outgoing, Sent
from rollout_router.transport.sdk.decide import Asked, Pass, Sender, is_short

BODY = b'{"messages":["hello"]}'
JSON = ("Content-Type", "application/json")
NAMED = [
    ("/ng-rollout/r1/v1/x", [], "r1"),
    ("/sessions/r1/v1/x?a=b", ["other"], "r1"),
    ("/v1/x", ["r2"], "r2"),
    ("/v1/x", [], "given"),
    ("/v1/ng-rollout/r1/x", [], "given"),
    ("/ng-rollout/r%41/v1/x", [], "given"),
    ("/v1/x", ["no id"], None),
    ("/v1/x", ["r2", "r3"], None),
]


def asked(**changes: Any) -> Asked:
    like = Asked("POST", "http://gateway", "/ng-rollout/r1/v1/x", [JSON], BODY)
    return like._replace(**changes)


@pytest.mark.parametrize(("target", "named", "rollout"), NAMED, ids=str)
def test_a_rollout_is_named_by_path_then_header_then_setting(
    target: str, named: list[str], rollout: str | None
) -> None:
    sender = Sender(rollout="given", rollout_header="X-Run")
    headers = [JSON, *(("X-Run", value) for value in named)]
    plan = sender.plan(asked(target=target, headers=headers))
    assert isinstance(plan, Pass if rollout is None else Outgoing)
    assert list(sender.statistics()["rollouts"]) == ([rollout] if rollout else [])
    expected = ["given"] if rollout == "given" else named
    assert wire.header_values(plan.headers, "X-Run") == expected


def test_s4_an_eligible_body_is_asked_to_be_kept() -> None:
    plan = Sender(body_bytes_max=len(BODY)).plan(asked())
    assert isinstance(plan, Outgoing)
    assert plan.payload == BODY
    assert plan.headers == [JSON, ("Content-Length", str(len(BODY))), ("Rollout-History", "keep")]


def test_s4_what_one_origin_understands_is_not_sent_to_another() -> None:
    sender = Sender()
    body = BODY * 40
    plan = sender.plan(asked(body=body))
    assert isinstance(plan, Outgoing)
    sender.settle(plan, 200, [("Rollout-History", "kept=" + wire.sha256_hex(body))], b"")
    origins = ["http://gateway", "https://gateway", "http://gateway:8000"]
    sent = [sender.plan(asked(origin=origin, body=body)) for origin in origins]
    assert [isinstance(one, Outgoing) and one.sent for one in sent] == [
        Sent.FRAME,
        Sent.FULL,
        Sent.FULL,
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"body": b""},
        {"body": None},
        {"body": BODY + b" "},
        {"method": "PUT"},
        {"headers": [JSON, ("Content-Encoding", "gzip")]},
        {"headers": [JSON, ("Transfer-Encoding", "chunked")]},
        {"headers": [JSON, ("Rollout-History", "keep")]},
        {"headers": [JSON, JSON]},
        {"headers": [("Content-Type", wire.CONTENT_TYPE)]},
    ],
    ids=str,
)
def test_s4_what_is_not_eligible_passes_as_it_came(changes: dict[str, Any]) -> None:
    request = asked(**changes)
    assert Sender(body_bytes_max=len(BODY)).plan(request) == Pass(request.headers)


@pytest.mark.parametrize(
    ("body", "headers", "size"),
    [(BODY * 2, [], 2 * len(BODY)), (None, [("content-length", "7")], 7), (None, [], 0)],
    ids=["over-the-cap", "stream-with-a-length", "stream"],
)
def test_what_passes_is_counted(body: bytes | None, headers: wire.Headers, size: int) -> None:
    sender = Sender(body_bytes_max=len(BODY))
    sender.plan(asked(body=body, headers=headers))
    counted = {
        "calls": 1,
        "bytes_sent": size,
        "bytes_plain": size,
        "bytes_full": size,
        "resyncs": 0,
    }
    assert sender.statistics() == {"rollouts": {"r1": counted}}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"rollout": "no id"}, ValueError),
        ({"rollout_header": "no name"}, ValueError),
        ({"unknown": 1}, TypeError),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Sender(**settings)


@pytest.mark.parametrize(
    ("lengths", "short"),
    [(["0"], True), (["65536"], True), (["65537"], False), ([], None), (["1", "1"], None)],
)
def test_only_an_answer_with_one_small_length_is_read_to_be_dropped(
    lengths: list[str], *, short: bool | None
) -> None:
    assert is_short([("Content-Length", length) for length in lengths]) is short
