# SPDX-License-Identifier: Apache-2.0
"""Export, import and removal of one environment over HTTP, for who makes and restores checkpoints.

    GET     the document of what is recorded, in one read: state, reply and revision belong together
    PUT     record a document under its original id, where there is none: 201 with the name of the
            import; the same again is fine: 204
    DELETE  remove it for good; late repeats of its operations are refused. With ``?import=<name>``
            it is as if it never had been imported, unless it was used since

A document is checked whole before anything changes: its digest, its schema, each field and its
type; it has no other fields. With ``?store_id=`` it follows the claims of another store from then
on, from their first epoch; those of its own store are refused below the epoch that it met.

These paths are for the machine's own programs: whoever reaches them may remove an environment.
"""

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from rollout_router.asgi import Receive, Scope
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.environments import Environment, Environments, Last
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.held import Held
from rollout_router.checkpoint.replies import Reply, whole_body
from rollout_router.checkpoint.wire import IDENTIFIER
from rollout_router.errors import Refusal

__all__ = [
    "CONTROL_PATH",
    "DOCUMENT_BYTES_MAX",
    "EnvironmentControl",
    "document_of",
    "read_document",
]

CONTROL_PATH: Final = "/ng-control/v1/environments/"

DOCUMENT_BYTES_MAX: Final = 128 << 20
"""Of an imported document: the largest state and reply take 107 MiB in base64."""

_SCHEMA: Final = 1


class EnvironmentControl:
    """Answers the requests below :data:`CONTROL_PATH`."""

    def __init__(self, environments: Environments, held: Held) -> None:
        self._environments = environments
        self._held = held

    async def answer(self, scope: Scope, receive: Receive) -> Reply | None:
        """The answer; None where the client left before anything happened.

        Raises:
            Refusal: nothing changed.
        """
        environment_id = scope["path"].removeprefix(CONTROL_PATH)
        method = scope["method"]
        if IDENTIFIER.fullmatch(environment_id) is None:
            raise Refusal("bad_request", f"not an environment's id: {environment_id[:200]!r}")
        if method == "GET":
            return await self._export(environment_id)
        if method == "PUT":
            body = await whole_body(receive, bytes_max=DOCUMENT_BYTES_MAX)
            if body is None:
                return None
            return await self._import(environment_id, body, _named_in(scope, "store_id"))
        if method == "DELETE":
            return await self._forget(environment_id, _named_in(scope, "import"))
        raise Refusal("bad_request", f"an environment knows GET, PUT and DELETE, not {method}")

    async def _export(self, environment_id: str) -> Reply:
        found = await self._environments.look(environment_id)
        if not isinstance(found, Environment):
            raise CheckpointRefusal(
                "environment_unknown", f"there is no environment {environment_id} here"
            )
        if found.lost:
            raise CheckpointRefusal(
                "environment_lost",
                f"environment {environment_id} failed, and cannot be brought back",
                rollout_id=found.rollout_id,
            )
        document = await asyncio.to_thread(document_of, found)
        return _answer(200, document.encode())

    async def _import(self, environment_id: str, body: bytes, store_id: str | None) -> Reply:
        environment = await asyncio.to_thread(
            read_document, body, environment_id=environment_id, store_id=store_id
        )
        async with self._held.alone(environment_id):
            made = await self._environments.restore(environment)
        if made is None:
            return _answer(204, b"")
        return _answer(201, canonical({"import": made}).encode())

    async def _forget(self, environment_id: str, made: str | None) -> Reply:
        async with self._held.alone(environment_id):
            if made is None:
                await self._environments.forget(environment_id)
            else:
                await self._environments.take_back(environment_id, made)
            self._held.drop(environment_id)
        return _answer(204, b"")


def document_of(environment: Environment) -> str:
    """The JSON document of it. Pure."""
    reply = environment.last.reply
    state = environment.state
    document = {
        "schema": _SCHEMA,
        "environment_id": environment.environment_id,
        "rollout_id": environment.rollout_id,
        "store_id": environment.store_id,
        "claim_epoch": environment.claim_epoch,
        "revision": environment.revision,
        "last": {
            "sequence": environment.last.sequence,
            "request_digest": environment.last.request_digest,
            "reply": {
                "status": reply.status,
                "headers": [[_base64(name), _base64(value)] for name, value in reply.headers],
                "body": b64encode(reply.body).decode(),
            },
        },
        "state": None if state is None else b64encode(state).decode(),
        "restart_only": state is None,
    }
    return canonical({**document, "sha256": digest(canonical(document))})


def read_document(text: bytes, *, environment_id: str, store_id: str | None = None) -> Environment:
    """What a document says, to be recorded. Pure.

    Args:
        text: as :func:`document_of` wrote it.
        environment_id: that it must be of.
        store_id: of the claims that it follows from now on; None: its own.

    Raises:
        CheckpointRefusal: ``manifest_damaged``: it is not one, or of another environment.
    """
    try:
        return _read(json.loads(text), environment_id, store_id)
    except (ValueError, RecursionError) as error:  # JSON's, Unicode's and base64's are ValueErrors
        raise CheckpointRefusal(
            "manifest_damaged",
            f"the document of environment {environment_id} is no use: {error}; export it again",
        ) from error


def _read(document: Any, environment_id: str, store_id: str | None) -> Environment:
    _check(document, _DOCUMENT, "the document")
    said = document.pop("sha256")
    if said != digest(canonical(document)):
        raise ValueError("its sha256 is another")
    if document["environment_id"] != environment_id:
        raise ValueError(f"it is of environment {document['environment_id']}")
    last, reply = document["last"], document["last"]["reply"]
    state = None if document["state"] is None else b64decode(document["state"], validate=True)
    if document["restart_only"] is not (state is None):
        raise ValueError("its restart_only and its state contradict each other")
    own = store_id in (None, document["store_id"])
    return Environment(
        environment_id=environment_id,
        rollout_id=document["rollout_id"],
        store_id=store_id or document["store_id"],
        claim_epoch=document["claim_epoch"] if own else 0,
        revision=document["revision"],
        last=Last(
            sequence=last["sequence"],
            request_digest=last["request_digest"],
            reply=Reply(
                status=reply["status"],
                headers=tuple((_text(name), _text(value)) for name, value in reply["headers"]),
                body=b64decode(reply["body"], validate=True),
            ),
        ),
        state=state,
    )


def _check(value: Any, fields: Mapping[str, Any], what: str) -> None:
    """Check that *value* has just these fields; a rule is a predicate, or a table of fields."""
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise ValueError(f"{what} has other fields than {', '.join(fields)}")
    for name, rule in fields.items():
        if isinstance(rule, Mapping):
            _check(value[name], rule, name)
        elif not rule(value[name]):
            raise ValueError(f"{name} of {what} has another form")


def _number(lowest: int, highest: int = (1 << 63) - 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and lowest <= value <= highest


def _matches(form: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and form.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_headers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list) and [type(part) for part in one] == [str, str] for one in value
    )


_DIGEST: Final = _matches(re.compile("[0-9a-f]{64}"))
_ID: Final = _matches(IDENTIFIER)
_DOCUMENT: Final[Mapping[str, Any]] = {
    "schema": _number(_SCHEMA, _SCHEMA),
    "environment_id": _ID,
    "rollout_id": _ID,
    "store_id": _ID,
    "claim_epoch": _number(0),
    "revision": _number(1),
    "last": {
        "sequence": _number(1),
        "request_digest": _DIGEST,
        "reply": {"status": _number(200, 499), "headers": _are_headers, "body": _is_text},
    },
    "state": lambda value: value is None or isinstance(value, str),
    "restart_only": lambda value: isinstance(value, bool),
    "sha256": _DIGEST,
}


def _base64(text: str) -> str:
    return b64encode(text.encode("latin-1")).decode()


def _text(base64: str) -> str:
    return b64decode(base64, validate=True).decode("latin-1")


def _named_in(scope: Scope, name: str) -> str | None:
    """What a query gives *name*.

    Raises:
        Refusal: ``bad_request``: it has another form, or the query says anything else.
    """
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    values = query.pop(name, [])
    if query or len(values) > 1 or not all(IDENTIFIER.fullmatch(one) for one in values):
        raise Refusal("bad_request", f"this takes ?{name}=<id>, once, and nothing else")
    return values[0] if values else None


def _answer(status: int, body: bytes) -> Reply:
    named = (("content-type", "application/json"), ("content-length", str(len(body))))
    return Reply(status=status, headers=named if body else (), body=body)
