# SPDX-License-Identifier: Apache-2.0
"""The loop of a tool-using agent: each operation of the session, performed where it belongs."""

from functools import partial
from typing import Any, Final

from rollout_router.checkpoint.client import Caller
from rollout_router.checkpoint.effects import Lost, Performed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.tool_session import Next, SessionTask, ToolSession
from rollout_router.checkpoint.wire import Operation, error_of

__all__ = ["Player"]

_OK: Final = 200
_SAMPLED: Final = frozenset({200, 400, 413, 422})
"""What ends a turn: an answer, or that the model does not take this conversation, which may be too
long. Another refusal, of a key or a path for one, is a failure of the world and never a sample."""


class Player:
    """Plays sessions with one model server and one environment server.

    Every call names its rollout in its path, so that a gateway routes it; a close is an operation
    like any other and never a matter of clean-up: what is cancelled here goes on elsewhere.
    """

    def __init__(self, model: Caller, environment: Caller) -> None:
        self._model = model
        self._environment = environment

    async def play(self, run: Run, document: Any) -> dict[str, Any]:
        """A loop of :class:`Sessions`: *document* is a :class:`SessionTask` as JSON."""
        session = ToolSession.begin(SessionTask.from_document(document), run.environment_id)
        while (asked := session.next()) is not None:
            value = await run.op(
                asked.kind,
                asked.request,
                partial(self._perform, session, asked),
                effect=asked.effect,
                environment_id=None if asked.kind == "model" else session.environment_id,
            )
            session = session.after(asked.kind, value)
        return session.result()

    async def _perform(self, session: ToolSession, asked: Next, operation: Operation) -> Performed:
        send = self._sample if asked.kind == "model" else self._act
        performed = await send(asked, operation)
        try:
            session.after(asked.kind, performed.value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Recorded, no attempt could ever go on from it.
            raise Lost(f"{asked.kind}: an answer of another form: {error!r}") from error
        return performed

    async def _act(self, asked: Next, operation: Operation) -> Performed:
        path = f"/ng-rollout/{operation.rollout_id}/{asked.kind}"
        answer = await self._environment.post(operation, path, asked.request)
        if answer.status != _OK:
            # Never an observation, and never a reward: the environment did not do it.
            raise Lost(f"{path}: {answer.status} {answer.document!r:.300}")
        return Performed(value=answer.document, revision=answer.revision)

    async def _sample(self, asked: Next, operation: Operation) -> Performed:
        path = f"/ng-rollout/{operation.rollout_id}/v1/responses"
        body, cookies = asked.request["body"], asked.request["cookies"]
        answer = await self._model.post(operation, path, body, cookies=cookies)
        if answer.status not in _SAMPLED:
            why = error_of(answer.document)[1] or repr(answer.document)
            raise CheckpointRefusal(
                "operation_unavailable",
                f"rollout {operation.rollout_id}: the model server refuses {path} with"
                f" {answer.status}: {why:.300}; the next call goes on from there",
                rollout_id=operation.rollout_id,
                claim_epoch=operation.claim_epoch,
            )
        value = {"status": answer.status, "cookies": dict(answer.cookies)}
        if answer.status == _OK:
            value["response"] = answer.document
        return Performed(value=value)
