# SPDX-License-Identifier: Apache-2.0
"""The proof: what was captured of a rollout is what the SDK sent and what it was answered. Pure.

Attempts are what the SDK wrote, each with its outcome and what came back; records are the lines of
the rollout's capture file. A body is compared by its length and the SHA-256 of its bytes, which the
agent computes as they pass and this module from the text in the record. The accounting:

1.  Each answered attempt is matched with one completed record, and no record with two attempts.
    Matched means that all of this is the same:

        request body        as the SDK wrote it              ``request_text``
        worker and epoch    the answer's ``Rollout-…``       ``worker_id``, ``claim_epoch``
        status              of the answer                    ``status``
        answer              its raw bytes, streamed or not   ``response``

2.  A record that is not matched belongs to a lost attempt: of each request body there are at most
    as many of them as attempts with that body that were lost. So a refused attempt leaves no
    record, and nothing was captured that was not sent.
3.  From one record to the next in the file the claim epoch never falls, and while it stays the
    worker does: nothing of an owner follows a record of its successor (F1), and no two workers
    write under one epoch (C1).
4.  Each record's ``request_sha256`` is the digest of its own ``request_text``.
5.  The digest that each answer carries (``Scripted-Request-Sha256``) is that of its request (H1).
6.  The shim counted the calls and the bytes that the SDK wrote, no more and no fewer.

What it does not show: of a lost attempt only the request is known for certain, so in its record
only that and the claim epoch's order are checked. And where an attempt was lost and the next one,
with the same body, was answered alike by the same owner under the same epoch, a single record of
the two may be either's.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollout_router.demo.attempt import Attempt, Holder, Outcome
from rollout_router.demo.processes import Tally

__all__ = ["Record", "compare", "differences"]

_Body = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a capture record says; digests and lengths of bodies are computed from their text."""

    number: int  # its line, from 1
    body_sha256: str
    body_bytes: int
    request_sha256: str  # as the record says
    outcome: str
    holder: Holder
    status: int | None
    answer_sha256: str
    answer_bytes: int


def compare(
    rollout_id: str, attempts: Sequence[Attempt], tally: Tally, *, capture_dir: Path
) -> list[str]:
    """Every difference in words; none where the proof holds. No file is no records."""
    path = capture_dir / f"{rollout_id}.jsonl"
    records = []
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            records.append(_record(number, line))
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        place = f"line {len(records) + 1} of {path.name}"
        return [f"rollout {rollout_id}: {place} is no record of a routed call: {error!r}"]
    return differences(rollout_id, attempts, records, tally)


def differences(
    rollout_id: str, attempts: Sequence[Attempt], records: Sequence[Record], tally: Tally
) -> list[str]:
    """As :func:`compare`, of records that were read."""
    found = [
        *_matches(attempts, records),
        *_order(records),
        *_digests(attempts, records),
        *_counts(attempts, tally),
    ]
    return [f"rollout {rollout_id}: {difference}" for difference in found]


def _matches(attempts: Sequence[Attempt], records: Sequence[Record]) -> Iterator[str]:
    turns = {_body(attempt): attempt.turn + 1 for attempt in attempts}
    lost = Counter(_body(a) for a in attempts if a.outcome is Outcome.LOST)
    left = list(records)
    for attempt in attempts:
        if attempt.outcome is not Outcome.ANSWERED:
            continue
        match = next((r for r in left if r.outcome == "completed" and _same(attempt, r)), None)
        if match is None:
            name = _name(_body(attempt), turns)
            yield f"{name} was answered {_answer(attempt)}; no completed record of it says so"
        else:
            left.remove(match)
    for body, count in Counter(_body(record) for record in left).items():
        if count > lost[body]:
            theirs = [record for record in left if _body(record) == body]
            told = ", ".join(f"record {r.number} ({r.outcome}, {_answer(r)})" for r in theirs)
            yield (
                f"{_name(body, turns)} has records that match no answer: {told}; and of its"
                f" attempts {lost[body]} were lost"
            )


def _same(attempt: Attempt, record: Record) -> bool:
    return (
        _body(attempt) == _body(record)
        and attempt.holder == record.holder
        and attempt.status == record.status
        and (attempt.answer_sha256, attempt.answer_bytes)
        == (record.answer_sha256, record.answer_bytes)
    )


def _order(records: Sequence[Record]) -> Iterator[str]:
    for before, after in pairwise(records):
        low, high = after.holder.claim_epoch, before.holder.claim_epoch
        if low < high:
            yield (
                f"record {after.number} has claim epoch {low} and follows one of {high}: its owner"
                " had been replaced"
            )
        elif low == high and after.holder != before.holder:
            yield (
                f"records {before.number} and {after.number} have claim epoch {low} and two"
                f" workers, {before.holder.worker_id} and {after.holder.worker_id}"
            )


def _digests(attempts: Sequence[Attempt], records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if record.request_sha256 != record.body_sha256:
            yield (
                f"record {record.number} names the digest {record.request_sha256[:12]}…, not its"
                " own"
            )
    for attempt in attempts:
        if attempt.outcome is Outcome.ANSWERED and attempt.model_sha256 != attempt.body_sha256:
            yield (
                f"call {attempt.turn + 1}: the SDK wrote {attempt.body_sha256[:12]}…, and the model"
                f" was given {(attempt.model_sha256 or 'nothing that it names')[:12]}…"
            )


def _counts(attempts: Sequence[Attempt], tally: Tally) -> Iterator[str]:
    written = sum(attempt.body_bytes for attempt in attempts)
    if (tally.calls, tally.bytes_full) != (len(attempts), written):
        yield (
            f"the SDK wrote {len(attempts)} requests of {written} bytes, and the shim counted"
            f" {tally.calls} of {tally.bytes_full}"
        )


def _body(of: Attempt | Record) -> _Body:
    return of.body_sha256, of.body_bytes


def _name(body: _Body, turns: Mapping[_Body, int]) -> str:
    name = f"call {turns[body]}" if body in turns else "a request that was never sent"
    return f"{name} ({body[1]} bytes, sha256 {body[0][:12]}…)"


def _answer(of: Attempt | Record) -> str:
    who = (
        "by nobody that it names"
        if of.holder is None
        else f"by worker {of.holder.worker_id} under claim epoch {of.holder.claim_epoch}"
    )
    return (
        f"{who} with status {of.status} and {of.answer_bytes} bytes, sha256"
        f" {(of.answer_sha256 or 'unknown')[:12]}…"
    )


def _record(number: int, line: bytes) -> Record:
    document = json.loads(line)
    body = _bytes(document, "request_text", "request_base64")
    answer = _bytes(document, "response", "response_base64")
    worker_id, epoch = document["worker_id"], document["claim_epoch"]
    if not isinstance(worker_id, str) or type(epoch) is not int:
        raise ValueError(f"worker {worker_id!r} under claim epoch {epoch!r} is no owner")
    return Record(
        number=number,
        body_sha256=hashlib.sha256(body).hexdigest(),
        body_bytes=len(body),
        request_sha256=str(document["request_sha256"]),
        outcome=document["outcome"],
        holder=Holder(worker_id=worker_id, claim_epoch=epoch),
        status=document["status"],
        answer_sha256=hashlib.sha256(answer).hexdigest(),
        answer_bytes=len(answer),
    )


def _bytes(document: Mapping[str, Any], text_key: str, base64_key: str) -> bytes:
    if text_key in document:
        text: str = document[text_key]
        return text.encode()
    return base64.b64decode(document[base64_key], validate=True)
