# SPDX-License-Identifier: Apache-2.0
"""Where a tool-using session stands, as a versioned record: a projection of its journal. Pure.

    pending_model     the environment is there or about to be, and the first turn comes
    pending_action    the model has spoken, and nothing of what it asked for was done
    action_complete   some of it was done, some was not
    turn_complete     all of it was done, and the next turn comes
    pending_close     no more turns come
    pending_verify    the environment is closed, and has to be verified

A completed session has no record: it has a result. Unknown fields and schemas are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self, get_args

from rollout_router.checkpoint.digests import digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.rows import Recorded, Rollout
from rollout_router.checkpoint.tool_session import Boundary, SessionTask, ToolSession

__all__ = ["SCHEMA", "BoundaryRecord", "boundary_of", "revisions_of", "session_of"]

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryRecord:
    """A session at one boundary; JSON as it is.

    Attributes:
        sequence: of the operation that comes next.
        output_items: what the model said and what came of it, in order.
        usage: of all its model calls together, in LLM tokens.
        cookies: of the model server.
        last_model_call_id: None before the first call.
        revisions: of each environment, by its id.
        budgets: what is left: ``steps_left``, in model calls.
        pending: of a turn under way: its ``actions``, the ``action_cursor`` of the next of them and
            the ``operation_id`` that performs it. None otherwise.
        agent: the state that is the agent's own: ``environment_id`` and ``stopped``.
        chain: the last link of the journal.
    """

    schema: int
    rollout_id: str
    claim_epoch: int
    attempt: int
    restarts: int
    sequence: int
    kind: Boundary
    output_items: list[Any]
    usage: dict[str, int]
    cookies: dict[str, str]
    last_model_call_id: str | None
    revisions: dict[str, int]
    budgets: dict[str, int]
    pending: dict[str, Any] | None
    agent: dict[str, str]
    task_digest: str
    loop_digest: str
    configuration_digest: str
    chain: str

    def document(self) -> dict[str, Any]:
        """It, for JSON."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read what :meth:`document` made.

        Raises:
            CheckpointRefusal: ``unknown_schema``: of another version, or not such a record.
        """
        found = document if isinstance(document, dict) else {}
        if found.get("schema") != SCHEMA:
            raise _unknown(f"schema {found.get('schema')!r}, not {SCHEMA}")
        names = {field.name: field for field in fields(cls)}
        if found.keys() != names.keys():
            raise _unknown(f"fields {sorted(found.keys() ^ names.keys())} are missing or unknown")
        for name, types in _TYPES.items():
            if type(found[name]) not in types:
                raise _unknown(f"{name} is {found[name]!r:.200}")
        for name, kind in _VALUES.items():
            if any(type(value) is not kind for value in found[name].values()):
                raise _unknown(f"{name} is {found[name]!r:.200}")
        for name, keys in _KEYS.items():
            if found[name] is not None and found[name].keys() != keys:
                raise _unknown(f"{name} is {found[name]!r:.200}")
        if found["kind"] not in get_args(Boundary):
            raise _unknown(f"kind {found['kind']!r}")
        return cls(**found)


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("schema", "claim_epoch", "attempt", "restarts", "sequence"), (int,)),
    **dict.fromkeys(("rollout_id", "kind", "chain", "task_digest", "loop_digest"), (str,)),
    **dict.fromkeys(("usage", "cookies", "revisions", "budgets", "agent"), (dict,)),
    "configuration_digest": (str,),
    "output_items": (list,),
    "last_model_call_id": (str, type(None)),
    "pending": (dict, type(None)),
}
_VALUES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("usage", "revisions", "budgets"), int),
    **dict.fromkeys(("cookies", "agent"), str),
}
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "budgets": frozenset({"steps_left"}),
    "agent": frozenset({"environment_id", "stopped"}),
    "pending": frozenset({"actions", "action_cursor", "operation_id"}),
}


def session_of(rows: Sequence[Recorded], task: SessionTask, environment_id: str) -> ToolSession:
    """The session that *rows*, whole and in order, were recorded by.

    Raises:
        CheckpointRefusal: ``unknown_schema``: they are not those of such a session.
    """
    session = ToolSession.begin(task, environment_id)
    for row in rows:
        if row.result is None:
            break
        try:
            session = session.after(row.kind, row.value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unknown(f"operation {row.sequence} ({row.kind}): {error!r}") from error
    return session


def boundary_of(
    rollout: Rollout, rows: Sequence[Recorded], task: SessionTask, environment_id: str
) -> BoundaryRecord:
    """The boundary at which *rollout* stands.

    Raises:
        CheckpointRefusal: ``unknown_schema``: it is no tool-using session that can go on.
    """
    session = session_of(rows, task, environment_id)
    phase = "pending_model" if session.phase == "pending_seed" else session.phase
    if phase == "finished":
        raise _unknown(f"rollout {rollout.rollout_id} is finished: it has a result, no boundary")
    pending = None
    if phase in ("pending_action", "action_complete"):
        pending = {
            "actions": list(session.actions),
            "action_cursor": session.cursor,
            "operation_id": f"{rollout.rollout_id}/{rollout.next}",
        }
    return BoundaryRecord(
        schema=SCHEMA,
        rollout_id=rollout.rollout_id,
        claim_epoch=rollout.claim_epoch,
        attempt=rollout.attempt,
        restarts=rollout.restarts,
        sequence=rollout.next,
        kind=phase,
        output_items=list(session.output),
        usage=dict(session.usage),
        cookies=dict(session.cookies),
        last_model_call_id=next(reversed(session.model_call_ids), None),
        revisions=revisions_of(rows),
        budgets={"steps_left": session.steps_left},
        pending=pending,
        agent={"environment_id": environment_id, "stopped": session.stopped},
        task_digest=digest(rollout.task),
        loop_digest=rollout.loop_digest,
        configuration_digest=rollout.configuration_digest,
        chain=rollout.head,
    )


def revisions_of(rows: Sequence[Recorded]) -> dict[str, int]:
    """The revision of each environment after what was recorded."""
    return {
        row.environment_id: row.revision
        for row in rows
        if row.environment_id is not None and row.revision is not None
    }


def _unknown(what: str) -> CheckpointRefusal:
    return CheckpointRefusal("unknown_schema", f"not a boundary of a tool-using session: {what}")
