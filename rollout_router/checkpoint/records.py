# SPDX-License-Identifier: Apache-2.0
"""One line of an archive: what a checkpoint keeps of one rollout. Pure.

    open          it goes on: its operations, its environments, and the boundary where it stands
    restart       it begins again from its input: an environment cannot be carried over
    completed     its result waits to be acknowledged: it is delivered again, never run again
    acknowledged  its result was taken: it never runs again either
    quarantined   it is set aside, or was found damaged: it stays so, and none of it is kept but a
                  number that is above all that it used

Whatever is not exactly such a line is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from rollout_router.checkpoint.boundary import BoundaryRecord, boundary_of, revisions_of
from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.environment_control import read_document
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.rows import Recorded, Rollout, Status, check_whole, receipt_of
from rollout_router.checkpoint.tool_session import SessionTask

__all__ = ["Kept", "Kind", "agree", "parse"]

Kind = Literal["open", "restart", "completed", "acknowledged", "quarantined"]
SCHEMA: Final = 1
_FORMS: Final[Mapping[Kind, tuple[Status, frozenset[str]]]] = {
    "open": ("open", frozenset({"rows", "environments", "boundary"})),
    "restart": ("open", frozenset({"reason"})),
    "completed": ("completed", frozenset({"receipt", "payload"})),
    "acknowledged": ("acknowledged", frozenset({"receipt"})),
    "quarantined": ("quarantined", frozenset({"reason"})),
}
"""The status of a rollout of each kind, and what is kept of it besides; open: as far as it has."""

_Scalars = TypeVar("_Scalars", Rollout, Recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of one rollout."""

    kind: Kind
    rollout: Rollout
    rows: tuple[Recorded, ...] = ()
    environments: tuple[Mapping[str, Any], ...] = ()  # as their server exported them
    boundary: Mapping[str, Any] | None = None
    receipt: str | None = None
    payload: str | None = None
    reason: str = ""  # why it begins again or is set aside: a code
    schema: int = field(default=SCHEMA)

    def line(self) -> bytes:
        """Its line of an archive, without the end."""
        return canonical(asdict(self)).encode()


def parse(line: bytes) -> Kept:
    """Read what :meth:`Kept.line` wrote, and check that it is whole.

    Raises:
        CheckpointRefusal: ``unknown_schema``, ``gap``, ``chain_broken``, ``revision_mismatch``,
            ``receipt_mismatch`` or, of an environment, ``manifest_damaged``.
    """
    try:
        document = json.loads(line)
        if type(document["schema"]) is not int or document["schema"] != SCHEMA:
            raise _unknown(f"schema {document['schema']!r:.40}, not {SCHEMA}")
        kept = _kept(document)
        if kept.line() != line:
            raise _unknown("it is not in its one form")
        if kept.kind == "open":
            check_whole(kept.rollout, kept.rows)
            agree(kept.rollout, kept.rows, kept.environments)
            _check_boundary(kept)
        if kept.kind == "quarantined":
            check_whole(kept.rollout, ())
            if kept.reason != kept.rollout.reason:
                raise _unknown(f"set aside for {kept.reason!r:.40}, and not as its rollout says")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unknown(f"{error!r:.300}") from error
    if kept.kind == "completed" and kept.receipt != receipt_of(kept.rollout, kept.payload or ""):
        raise kept.rollout.refused(
            "receipt_mismatch",
            "its receipt is not that of its result",
        )
    return kept


def agree(
    rollout: Rollout, rows: Sequence[Recorded], environments: Sequence[Mapping[str, Any]]
) -> None:
    """Check that each environment stands where the journal says.

    One may be ahead by the operation that comes next: it was performed and its answer was lost, and
    whoever sends it again is answered from the environment's record.

    Raises:
        CheckpointRefusal: ``revision_mismatch``.
    """
    recorded = revisions_of(rows)
    found = {one["environment_id"]: one for one in environments}
    for environment_id, revision in recorded.items():
        one = found.pop(environment_id, None)
        there = None if one is None else one["revision"]
        ahead = one is not None and one["last"]["sequence"] == rollout.next
        if there != revision + ahead:
            raise rollout.refused(
                "revision_mismatch",
                f"environment {environment_id} is at revision"
                f" {there}, and its journal at {revision}",
            )
    if found:
        raise rollout.refused(
            "revision_mismatch",
            f"its journal knows nothing of {sorted(found)}",
        )


def _kept(document: Mapping[str, Any]) -> Kept:
    rows, environments = document["rows"], document["environments"]
    if not (isinstance(rows, list) and isinstance(environments, list)):
        raise _unknown("its rows and environments are no lists")
    kept = {
        **document,
        "rollout": _typed(Rollout, document["rollout"]),
        "rows": tuple(_typed(Recorded, row) for row in rows),
        "environments": tuple(environments),
    }
    if kept.keys() != {one.name for one in fields(Kept)} or kept["kind"] not in get_args(Kind):
        raise _unknown(f"a {kept.get('kind')!r} with {sorted(kept)}")
    for one in environments:
        read_document(canonical(one).encode(), environment_id=one["environment_id"])
    if kept["boundary"] is not None:
        BoundaryRecord.from_document(kept["boundary"])
    if not all(type(kept[name]) in (str, type(None)) for name in ("receipt", "payload", "reason")):
        raise _unknown("its receipt, payload or reason is no text")
    status, allowed = _FORMS[kept["kind"]]
    empty: Any = (None, (), "")
    names = ("rows", "environments", "boundary", "receipt", "payload", "reason")
    has = {name for name in names if kept[name] not in empty}
    complete = has == allowed or (kept["kind"] == "open" and has <= allowed)
    if kept["rollout"].status != status or not complete:
        raise _unknown(f"a {kept['kind']!r} that is {kept['rollout'].status}, with {sorted(has)}")
    return Kept(**kept)


def _check_boundary(kept: Kept) -> None:
    """Check that its boundary is what its operations make, and nothing that was written beside."""
    if kept.boundary is None:
        return
    task = SessionTask.from_document(json.loads(kept.rollout.task))
    environment_id = kept.boundary["agent"]["environment_id"]
    made = boundary_of(kept.rollout, kept.rows, task, environment_id)
    if canonical(made.document()) != canonical(kept.boundary):
        raise _unknown(f"the boundary of rollout {kept.rollout.rollout_id} is another")


def _typed(kind: type[_Scalars], document: Any) -> _Scalars:
    """*document* as *kind*: no field more or less, each of its type."""
    types = {one.name: one.type for one in fields(kind)}
    if not isinstance(document, dict) or document.keys() != types.keys():
        raise _unknown(f"a {kind.__name__} with other fields")
    for name, value in document.items():
        allowed = types[name]
        if get_origin(allowed) is Literal:
            fits = value in get_args(allowed)
        else:
            fits = type(value) in (get_args(allowed) or (allowed,))
        if not fits:
            raise _unknown(f"a {kind.__name__} whose {name} is {value!r:.100}")
    return kind(**document)


def _unknown(what: str) -> CheckpointRefusal:
    return CheckpointRefusal("unknown_schema", f"not a record of a checkpoint: {what}")
