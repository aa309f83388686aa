# SPDX-License-Identifier: Apache-2.0
"""The proof: what the model server captured is what the SDK sent, byte for byte. Pure.

The accounting, for each rollout. Attempts are what the SDK wrote, each with its outcome; records
are the lines of the rollout's capture file. Both are compared as multisets of bodies, a body by its
length and the SHA-256 of its bytes, which is computed here on both sides. For every body:

    answered attempts <= completed records
    all records       <= answered attempts + lost attempts

So each answered attempt has a record of exactly its bytes; a record beyond those belongs to an
attempt whose answer was lost with its owner, at most one to each; a refused attempt leaves none;
and nothing was captured that was not sent. A call that was made again after a loss is another
attempt with the same bytes, and counts as one. Besides:

- each record's ``request_sha256`` is the digest of its own ``request_text``;
- the digest that each answer carries (``Scripted-Request-Sha256``) is that of its request;
- the shim counted the calls and the bytes that the SDK wrote, no more and no fewer.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_router.demo.attempt import Attempt, Outcome
from rollout_router.demo.processes import Tally

__all__ = ["Record", "compare", "differences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a capture record says of its request."""

    body_sha256: str  # computed from the captured bytes
    body_bytes: int
    request_sha256: str  # as the record says
    outcome: str


def compare(
    rollout_id: str, attempts: Sequence[Attempt], tally: Tally, *, capture_dir: Path
) -> list[str]:
    """Every difference in words; none where the proof holds. No file is no records."""
    path = capture_dir / f"{rollout_id}.jsonl"
    try:
        records = [_record(line) for line in path.read_bytes().splitlines()]
    except FileNotFoundError:
        records = []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"rollout {rollout_id}: {path.name} holds a line that is no record: {error!r}"]
    return differences(rollout_id, attempts, records, tally)


def differences(
    rollout_id: str, attempts: Sequence[Attempt], records: Sequence[Record], tally: Tally
) -> list[str]:
    """As :func:`compare`, of records that were read."""
    found = [*_bodies(attempts, records), *_digests(attempts, records), *_counts(attempts, tally)]
    return [f"rollout {rollout_id}: {difference}" for difference in found]


def _bodies(attempts: Sequence[Attempt], records: Sequence[Record]) -> Iterator[str]:
    answered = _count(attempts, Outcome.ANSWERED)
    lost = _count(attempts, Outcome.LOST)
    captured = Counter((r.body_sha256, r.body_bytes) for r in records)
    completed = Counter((r.body_sha256, r.body_bytes) for r in records if r.outcome == "completed")
    turns = {(a.body_sha256, a.body_bytes): a.turn + 1 for a in attempts}
    for body in answered | captured:
        name = f"call {turns[body]}" if body in turns else "a request that was never sent"
        name = f"{name} ({body[1]} bytes, sha256 {body[0][:12]}…)"
        if completed[body] < answered[body]:
            yield f"{name} was answered {answered[body]} times, captured {completed[body]} times"
        if captured[body] > answered[body] + lost[body]:
            yield (
                f"{name} was captured {captured[body]} times, and only {answered[body]} of its"
                f" attempts were answered and {lost[body]} lost"
            )


def _digests(attempts: Sequence[Attempt], records: Sequence[Record]) -> Iterator[str]:
    for number, record in enumerate(records, start=1):
        if record.request_sha256 != record.body_sha256:
            yield f"record {number} names the digest {record.request_sha256[:12]}…, not its own"
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


def _count(attempts: Sequence[Attempt], outcome: Outcome) -> Counter[tuple[str, int]]:
    return Counter((a.body_sha256, a.body_bytes) for a in attempts if a.outcome is outcome)


def _record(line: bytes) -> Record:
    document = json.loads(line)
    if "request_text" in document:
        body = document["request_text"].encode()
    else:
        body = base64.b64decode(document["request_base64"], validate=True)
    return Record(
        body_sha256=hashlib.sha256(body).hexdigest(),
        body_bytes=len(body),
        request_sha256=document["request_sha256"],
        outcome=document["outcome"],
    )
