# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.deployment import code_of
from support.recording import begun

from rollout_router.checkpoint.boundary import boundary_of
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.environment_control import document_of
from rollout_router.checkpoint.environments import Environment, Last
from rollout_router.checkpoint.records import Kept, agree, parse
from rollout_router.checkpoint.replies import Reply
from rollout_router.checkpoint.rows import Recorded, Rollout, receipt_of
from rollout_router.checkpoint.tool_session import SessionTask

TASK = SessionTask(scenario="s", seed=1)
RESULTS: list[tuple[str, Any]] = [
    ("seed", {"tools": [], "observation": [{"role": "user", "content": "é"}]}),
    (
        "model",
        {
            "status": 200,
            "cookies": {"a": "1"},
            "response": {
                "id": "m1",
                "usage": {"input_tokens": 3},
                "output": [
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
                ],
            },
        },
    ),
]
BEGUN = replace(
    begun("r1"), claim_epoch=3, task=canonical({"scenario": "s", "seed": 1}), changed_at="now"
)


def recorded() -> tuple[Rollout, tuple[Recorded, ...]]:
    """A tool-using session before its first action."""
    rows, rollout = [], replace(BEGUN, head=BEGUN.genesis)
    for kind, value in RESULTS:
        keyed = kind == "seed"
        row = Recorded(
            sequence=rollout.next,
            claim_epoch=3,
            kind=kind,
            effect="keyed" if keyed else "resample",
            environment_id="e1" if keyed else None,
            request_digest=digest(kind),
            result=canonical(value),
            revision=1 if keyed else None,
            orphans=0,
            chain=None,
        )
        row = replace(row, chain=row.linked(rollout.head))
        rollout = replace(rollout, next=rollout.next + 1, head=row.chain or "")
        rows.append(row)
    return rollout, tuple(rows)


def environment(revision: int = 1, sequence: int = 1, environment_id: str = "e1") -> Any:
    last = Last(
        sequence=sequence,
        request_digest=digest("request"),
        reply=Reply(status=200, headers=(), body=b"{}"),
    )
    one = Environment(
        environment_id=environment_id,
        rollout_id="r1",
        store_id="store",
        claim_epoch=3,
        revision=revision,
        last=last,
        state=b"state",
    )
    return json.loads(document_of(one))


ROLLOUT, ROWS = recorded()
BOUNDARY = boundary_of(ROLLOUT, ROWS, TASK, "e1").document()
OPEN = Kept(
    kind="open", rollout=ROLLOUT, rows=ROWS, environments=(environment(),), boundary=BOUNDARY
)
DONE = replace(ROLLOUT, status="completed")
PAYLOAD = canonical({"reward": 1.0})
COMPLETED = Kept(kind="completed", rollout=DONE, receipt=receipt_of(DONE, PAYLOAD), payload=PAYLOAD)
KEPT = {
    "open": OPEN,
    "without a boundary": replace(OPEN, boundary=None),
    "not begun": Kept(kind="open", rollout=replace(BEGUN, head=BEGUN.genesis)),
    "restart": Kept(kind="restart", rollout=ROLLOUT, reason="environment_lost"),
    "completed": COMPLETED,
    "acknowledged": Kept(
        kind="acknowledged",
        rollout=replace(ROLLOUT, status="acknowledged"),
        receipt=COMPLETED.receipt,
    ),
    "quarantined": Kept(kind="quarantined", rollout=ROLLOUT.set_aside("gap", 2), reason="gap"),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_line_is_read_as_it_was_written(kept: Kept) -> None:
    line = kept.line()
    assert line.isascii()
    assert b"\n" not in line
    assert parse(line).line() == line
    assert parse(line).rows == kept.rows


def changed(path: str, value: Any, kept: Kept = OPEN) -> bytes:
    """Its line with one field changed; ... takes it out."""
    document: Any = json.loads(kept.line())
    *above, name = [int(part) if part.isdigit() else part for part in path.split("/")]
    target = document
    for part in above:
        target = target[part]
    if value is ...:
        del target[name]
    else:
        target[name] = value
    return canonical(document).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 2),
        ("schema", True),
        ("schema", 1.0),
        ("schema", ...),
        ("kind", "finished"),
        ("kind", "completed"),
        ("kind", ["open"]),
        ("more", 1),
        ("reason", ...),
        ("reason", "environment_lost"),
        ("receipt", "a"),
        ("receipt", 7),
        ("rows", None),
        ("rows", {}),
        ("environments", {}),
        ("environments/0", 7),
        ("rollout", []),
        ("rollout/more", 1),
        ("rollout/attempt", ...),
        ("rollout/attempt", "1"),
        ("rollout/attempt", True),
        ("rollout/status", "completed"),
        ("rollout/status", "odd"),
        ("rows/0/effect", "twice"),
        ("rows/0/revision", "1"),
        ("rows/0/more", 1),
        ("rows/0/kind", ...),
        ("boundary/schema", 2),
        ("boundary/more", 1),
        ("boundary/kind", "finished"),
        ("boundary/kind", "pending_model"),
        ("boundary/usage", {"input_tokens": 4}),
        ("boundary/sequence", 4),
        ("boundary/chain", "0" * 64),
        ("boundary/agent", {}),
    ],
)
def test_a_line_with_another_field_type_or_schema_is_unknown(path: str, value: Any) -> None:
    assert code_of(parse, changed(path, value)) == "unknown_schema"


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b"7", b"\xff", b"[" * 100_000, b'{"schema":1}', b"NaN"],
)
def test_what_is_no_line_is_unknown(line: bytes) -> None:
    assert code_of(parse, line) == "unknown_schema"


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b'"attempt":1', b'"attempt": 1'),
        lambda line: line.replace(b'"attempt":1', b'"attempt":1,"attempt":1', 1),
        lambda line: line + b" ",
    ],
)
def test_a_line_has_one_form(change: Callable[[bytes], bytes]) -> None:
    assert code_of(parse, change(OPEN.line())) == "unknown_schema"


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("rows/0/result", "{}", "chain_broken"),
        ("rows/1/kind", "step", "chain_broken"),
        ("rows/1/chain", "0" * 64, "chain_broken"),
        ("rows/1/revision", 5, "chain_broken"),
        ("rows/1/result", None, "gap"),
        ("rows/1/sequence", 3, "gap"),
        ("rows/1", ..., "gap"),
        ("rows/0", ..., "gap"),
        ("rollout/next", 4, "gap"),
        ("rollout/head", "0" * 64, "chain_broken"),
        ("rollout/task", "{}", "chain_broken"),
        ("rollout/rollout_id", "r2", "chain_broken"),
        ("environments", [], "revision_mismatch"),
        ("environments/0", environment(2), "revision_mismatch"),
        ("environments/0", environment(environment_id="e2"), "revision_mismatch"),
        ("environments", [environment(), environment(environment_id="e2")], "revision_mismatch"),
        ("environments/0/state", "AAAA", "manifest_damaged"),
        ("environments/0/more", 1, "manifest_damaged"),
    ],
)
def test_what_was_changed_in_a_line_shows(path: str, value: Any, code: str) -> None:
    assert code_of(parse, changed(path, value)) == code


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("payload", '{"reward":2.0}', "receipt_mismatch"),
        ("rollout/head", "0" * 64, "receipt_mismatch"),
        ("rollout/rollout_id", "r2", "receipt_mismatch"),
        ("receipt", "0" * 64, "receipt_mismatch"),
        ("receipt", None, "unknown_schema"),
        ("payload", None, "unknown_schema"),
        ("kind", "acknowledged", "unknown_schema"),
        ("kind", "open", "unknown_schema"),
        ("rollout/status", "open", "unknown_schema"),
    ],
)
def test_a_result_that_is_not_that_of_its_receipt_is_refused(
    path: str, value: Any, code: str
) -> None:
    assert code_of(parse, changed(path, value, COMPLETED)) == code


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("reason", "", "unknown_schema"),
        ("reason", "divergence", "unknown_schema"),
        ("rollout/status", "open", "unknown_schema"),
        ("receipt", "0" * 64, "unknown_schema"),
        ("rollout/next", 4, "gap"),
        ("rollout/head", "0" * 64, "chain_broken"),
    ],
)
def test_what_is_set_aside_keeps_why_and_its_next_number(path: str, value: Any, code: str) -> None:
    assert code_of(parse, changed(path, value, KEPT["quarantined"])) == code


def test_an_environment_may_be_ahead_by_the_operation_that_comes_next() -> None:
    agree(ROLLOUT, ROWS, [environment(2, ROLLOUT.next)])
    parse(replace(OPEN, environments=(environment(2, ROLLOUT.next),)).line())


@pytest.mark.parametrize(
    "copies",
    [
        [],
        [environment(2)],  # ahead, and not by that
        [environment(1, ROLLOUT.next)],  # it did that, and did not count it
        [environment(3, ROLLOUT.next)],
        [environment(2, ROLLOUT.next + 1)],
        [environment(), environment(environment_id="e2")],
        [environment(environment_id="e2")],
    ],
)
def test_an_environment_elsewhere_does_not_agree(copies: list[Any]) -> None:
    assert code_of(agree, ROLLOUT, ROWS, copies) == "revision_mismatch"
