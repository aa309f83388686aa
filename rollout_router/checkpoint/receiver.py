# SPDX-License-Identifier: Apache-2.0
"""The receiver's half of a keyed operation: any environment server does each exactly once.

ASGI middleware. What it decides, in this order, alone with the environment:

    the fence       another store, or a lower claim epoch than it met: ``stale_attempt``
    whose it is     made by another rollout: ``operation_conflict``
    failed          it cannot be brought back: ``environment_lost``
    the sequence    the last one again: its reply, byte for byte; with another request:
                    ``operation_conflict``; a lower one: ``stale_operation``
    making          of one that is there: ``environment_exists``; an operation that makes none, on
                    one that is not: ``environment_unknown``, never a default
    held            not in this process, and not to be restored: ``environment_lost``
    otherwise       it is applied

Applied is: the application answers, its state is exported, and state, reply, sequence, fence and
revision are recorded in one transaction; then the answer leaves. Whatever fails before that leaves
the record as it was, and the application drops its copy: the next operation finds the recorded
state. A restart-only server has none, so the environment is lost.

A client that leaves ends nothing: what was begun is finished, and its repeat gets the reply. A
server that ends in between has recorded the whole operation or nothing of it.

The body is read before the lock is taken: a client that was stopped while it sends holds up nobody.

Several processes over one file are right, since each change names the row that it was decided on.
A restart-only server is one process: another does not hold what the first one made.

A request without an operation is passed on as it came where its method says that it changes
nothing, and refused where it does not: a transport would send it again, and it would happen twice.
It sees what the application holds, recorded or not.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.environment_control import CONTROL_PATH, EnvironmentControl
from rollout_router.checkpoint.environments import Environment, Environments, Forgotten, Last
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.held import HELD_MAX, Held, StatePort
from rollout_router.checkpoint.replies import (
    Declined,
    Reply,
    collect,
    refused,
    send_reply,
    whole_body,
)
from rollout_router.checkpoint.wire import ENVIRONMENT, FENCE, OPERATION, REVISION, Operation
from rollout_router.errors import Refusal

__all__ = [
    "OPERATIONS_MAX",
    "REPLY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "Apply",
    "Receiver",
    "Repeat",
    "decide",
]

OPERATIONS_MAX: Final = 1024
"""Operations in hand, those that wait for their environment too; more are refused."""

REQUEST_BYTES_MAX: Final = 16 << 20
"""Of one operation's body, which is held while it waits and works."""

REPLY_BYTES_MAX: Final = 16 << 20
"""Of one reply, which is kept until the next operation."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NAMES: Final = frozenset({OPERATION, FENCE, ENVIRONMENT})
_PASS_ON: Final = Reply(status=0, headers=(), body=b"")  # no answer: the application's to give
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """It was done: the reply is *recorded*'s, and the fence rises where it is behind."""

    recorded: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """It is to be done, on the environment as it is *recorded*; None: this operation makes it."""

    recorded: Environment | None


def decide(
    found: Environment | Forgotten | None,
    operation: Operation,
    *,
    request_digest: str,
    creates: bool,
    usable: bool,
) -> Repeat | Apply:
    """What an operation meets. Pure.

    Args:
        found: what is recorded of its environment.
        operation: as it is sent.
        request_digest: of its request.
        creates: whether it may make an environment.
        usable: whether the application holds *found*, or can be given it.

    Raises:
        CheckpointRefusal: why it is not done; nothing changed.
    """
    if found is not None:
        _check_owner(found, operation)
    if isinstance(found, Environment):
        last = found.last
        if found.lost:
            raise _refusal("environment_lost", operation, "failed, and cannot be brought back")
        if operation.sequence == last.sequence and request_digest == last.request_digest:
            return Repeat(recorded=found)
        if operation.sequence == last.sequence:
            raise _refusal(
                "operation_conflict", operation, "did this operation with another request"
            )
        _check_order(last.sequence, operation)
        if creates:
            raise _refusal("environment_exists", operation, "is there: make one of another id")
        if not usable:
            raise _refusal("environment_lost", operation, "went with the process that held it")
        return Apply(recorded=found)
    if found is not None:
        _check_order(found.sequence, operation, at_most=True)
    if not creates:
        raise _refusal("environment_unknown", operation, "is not here, and this does not make it")
    return Apply(recorded=None)


class Receiver:
    """An environment server's middleware.

    Args:
        app: the server. An operation is one request; whatever it changes belongs to the environment
            that ``Operation-Environment`` names, under that very id.
        environments: its durable store; who made it closes it.
        state: the application's way to give state away; None: the server is restart-only.
        creates: whether a request may make its environment. An operation that failed may be sent
            again: what makes one makes it anew, whatever an earlier try left.
        held_max: environments in memory, besides those in use.
    """

    def __init__(
        self,
        app: App,
        environments: Environments,
        *,
        state: StatePort | None,
        creates: Callable[[Scope], bool],
        held_max: int = HELD_MAX,
    ) -> None:
        self._app = app
        self._environments = environments
        self._restart_only = state is None
        self._creates = creates
        self._held = Held(state, held_max=held_max)
        self._control = EnvironmentControl(environments, self._held)
        self._in_hand: set[asyncio.Task[Reply]] = set()
        self._reading = 0  # operations whose body is on its way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI scope. A WebSocket is refused: what it changes could not be recorded."""
        if scope["type"] == "lifespan":
            await self._app(scope, lambda: self._next_once_quiet(receive), send)
        elif scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            try:
                reply = await self._answer(scope, receive)
            except Refusal as refusal:
                reply = refused(refusal)
            if reply is _PASS_ON:
                await self._app(scope, receive, send)
            elif reply is not None:  # else its client left before anything happened
                await send_reply(reply, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply | None:
        if scope["path"].startswith(CONTROL_PATH):
            return await self._control.answer(scope, receive)
        if (operation := _named_in(scope)) is not None:
            return await self._operate(operation, scope, receive)
        if scope["method"] in _SAFE:
            return _PASS_ON
        raise CheckpointRefusal(
            "operation_required",
            f"{scope['method']} may change an environment: send {OPERATION}, {FENCE} and"
            f" {ENVIRONMENT} with it, so that a repeat is told from a new one",
        )

    async def _next_once_quiet(self, receive: Receive) -> Message:
        message = await receive()
        while message["type"] == "lifespan.shutdown" and self._in_hand:
            await asyncio.wait(self._in_hand)  # of clients that left
        return message

    async def _operate(self, operation: Operation, scope: Scope, receive: Receive) -> Reply | None:
        if len(self._in_hand) + self._reading >= OPERATIONS_MAX:
            raise _refusal(
                "environment_unavailable", operation, "waits behind too many operations: send again"
            )
        self._reading += 1
        try:
            body = await whole_body(receive, bytes_max=REQUEST_BYTES_MAX)
        finally:
            self._reading -= 1
        if body is None:
            return None
        work = self._perform(_Asked(operation, scope, body))
        task = asyncio.get_running_loop().create_task(work, name=f"operation {operation.id}")
        self._in_hand.add(task)
        task.add_done_callback(self._in_hand.discard)
        return await asyncio.shield(task)

    async def _perform(self, asked: "_Asked") -> Reply:
        environment_id, operation = asked.environment_id, asked.operation
        async with self._held.alone(environment_id):
            known = self._held.known(environment_id)
            found = await self._environments.look(environment_id, held=known)
            what = decide(
                found,
                operation,
                request_digest=asked.digest,
                creates=self._creates(asked.scope),
                usable=isinstance(found, Environment) and self._held.usable(found),
            )
            if isinstance(what, Repeat):
                if operation.claim_epoch > what.recorded.claim_epoch:
                    await self._environments.raise_fence(what.recorded, operation.claim_epoch)
                return _reply_of(what.recorded)
            try:
                done = await self._apply(what.recorded, asked)
            except Declined as declined:
                if not self._restart_only:  # what can be checked is: the next one is set back first
                    self._held.drop(environment_id)
                return declined.reply
            except BaseException as error:
                self._held.drop(environment_id)
                if not isinstance(error, Exception):
                    raise
                fate = "was not made"
                if what.recorded is not None:
                    fate = "is lost" if self._restart_only else "is as it was"
                    await self._lose(what.recorded)
                raise _failure(asked, error, fate) from error
            self._held.keep(done)
            return _reply_of(done)

    async def _apply(self, before: Environment | None, asked: "_Asked") -> Environment:
        if before is not None:
            self._held.bring_back(before)
        reply = await collect(self._app, asked.scope, asked.body, bytes_max=REPLY_BYTES_MAX)
        operation = asked.operation
        after = Environment(
            environment_id=asked.environment_id,
            rollout_id=operation.rollout_id,
            store_id=operation.store_id,
            claim_epoch=operation.claim_epoch,
            revision=1 if before is None else before.revision + 1,
            last=Last(sequence=operation.sequence, request_digest=asked.digest, reply=reply),
            state=self._held.export(asked.environment_id),
        )
        return await self._environments.record(before, after)

    async def _lose(self, before: Environment) -> None:
        """Record that a restart-only environment failed: its copy is half changed."""
        if self._restart_only:
            try:
                await self._environments.lose(before)
            except CheckpointRefusal as refusal:
                # This process holds it no longer, and no other ever did: it is lost all the same.
                _logger.warning("environment %s is lost: %s", before.environment_id, refusal)


class _Asked:
    """An operation with its whole request."""

    def __init__(self, operation: Operation, scope: Scope, body: bytes) -> None:
        if operation.environment_id is None:
            raise AssertionError("an operation without an environment came through")
        self.environment_id = operation.environment_id
        self.operation = operation
        self.scope = scope
        self.body = body
        path = scope.get("raw_path")  # as it was sent, where the server tells
        self.digest = digest(
            canonical(
                [
                    scope["method"],
                    scope["path"] if path is None else path.decode("latin-1"),
                    scope["query_string"].decode("latin-1"),
                    digest(body),
                ]
            )
        )


def _check_owner(found: Environment | Forgotten, operation: Operation) -> None:
    if operation.store_id != found.store_id:
        raise _refusal(
            "stale_attempt", operation, f"follows the claims of store {found.store_id} now"
        )
    if operation.claim_epoch < found.claim_epoch:
        raise _refusal(
            "stale_attempt", operation, f"met claim epoch {found.claim_epoch} of a later owner"
        )
    if operation.rollout_id != found.rollout_id:
        raise _refusal("operation_conflict", operation, "was made by another rollout")


def _check_order(last: int, operation: Operation, *, at_most: bool = False) -> None:
    if operation.sequence < last or (at_most and operation.sequence == last):
        raise _refusal("stale_operation", operation, f"has done operation {last} of its rollout")


def _named_in(scope: Scope) -> Operation | None:
    """The operation that a request names; None where it names none."""
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    named = [(name, value) for name, value in named if name in _NAMES]
    if not named:
        return None
    if {name for name, _ in named} != _NAMES or len(named) != len(_NAMES):
        raise CheckpointRefusal(
            "operation_invalid",
            f"{OPERATION}, {FENCE} and {ENVIRONMENT} belong together, once each",
        )
    try:
        return Operation.from_headers(dict(named))
    except ValueError as error:
        raise CheckpointRefusal("operation_invalid", f"no operation: {error}") from error


def _reply_of(environment: Environment) -> Reply:
    reply = environment.last.reply
    headers = [header for header in reply.headers if header[0].lower() != REVISION]
    headers.append((REVISION, str(environment.revision)))
    return replace(reply, headers=tuple(headers))


def _refusal(code: str, operation: Operation, what: str) -> CheckpointRefusal:
    return CheckpointRefusal(
        code,
        f"environment {operation.environment_id} {what} (operation {operation.id})",
        rollout_id=operation.rollout_id,
        claim_epoch=operation.claim_epoch,
    )


def _failure(asked: _Asked, error: Exception, fate: str) -> CheckpointRefusal:
    """What a failed operation is answered; what the application raised is logged."""
    if isinstance(error, CheckpointRefusal):
        return _refusal(error.code, asked.operation, f"{fate}: {error}")
    _logger.error("operation %s failed", asked.operation.id, exc_info=error)
    return _refusal("environment_failed", asked.operation, f"{fate}: it raised {error!r:.300}")
