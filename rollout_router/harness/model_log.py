# SPDX-License-Identifier: Apache-2.0
"""What a model saw of a run, read from its own log. Pure.

The gateway's capture records tell the same from the other side; the two are compared.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rollout_router.harness.scenario import Fault

__all__ = ["Seen", "read_log"]

_OF_THE_HOP: Final = {
    "accept-encoding",  # the gateway's own: what it records is not compressed
    "connection",
    "content-length",  # the body is compared itself
    "host",
    "transfer-encoding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as the model saw it, and the id of the answer that it gave."""

    path: str  # from the dialect's part on: the same in every run
    headers: str  # a line each, in the order of their names; without those of the last hop
    request_sha256: str
    answer_id: str | None  # None: it answered with an error, or not at all


def read_log(lines: Iterable[str]) -> tuple[Seen, ...]:
    """Read the log of :class:`rollout_router.harness.model.ConformanceModel`, oldest first.

    Raises:
        ValueError, KeyError: a line has another form.
    """
    return tuple(map(_seen, lines))


def _seen(line: str) -> Seen:
    document = json.loads(line)
    answered = document["fault"] in {None, Fault.CUT}  # of a cut answer the beginning is recorded
    fields = [(name.lower(), value) for name, value in document["headers"]]
    fields.sort(key=lambda field: field[0])  # those of one name stay in their order, which counts
    return Seen(
        path="?".join(filter(None, (document["path"].rpartition("/v1/")[2], document["query"]))),
        headers="\n".join(f"{n}: {value}" for n, value in fields if n not in _OF_THE_HOP),
        request_sha256=document["sha256"],
        answer_id=document["answer_id"] if answered else None,
    )
