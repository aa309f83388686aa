# SPDX-License-Identifier: Apache-2.0
"""The agent server: ``rollout-router serve --app rollout_router.checkpoint.example.agent:app``.

    POST …/run           the task; answers with the result and its receipt, as often as it is asked
    POST …/acknowledge   {"receipt"}: the taker has the result

below ``/ng-rollout/<id>`` or ``/sessions/<id>``. It is told by its environment:

    TOOL_AGENT_STATE_DIR         the claim store of this service, as ``serve --state-dir``
    TOOL_AGENT_JOURNAL           the journal file; by default journal.sqlite3 in a folder beside it
    TOOL_AGENT_INSTANCE          the name of this server; agent by default
    TOOL_AGENT_RUN               the name of the training or evaluation run
    TOOL_AGENT_MODEL_URL         the model server
    TOOL_AGENT_ENVIRONMENT_URL   the environment server
    TOOL_AGENT_ANSWER_SECONDS    how long either may take to answer; 3600 by default
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse

from rollout_router.call import CALL_KEY, Call
from rollout_router.checkpoint import tool_session
from rollout_router.checkpoint.client import Caller
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.example import loop
from rollout_router.checkpoint.example.ending import asking_to_end
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.sessions import Sessions, source_digest
from rollout_router.checkpoint.tool_session import SessionTask
from rollout_router.claims import FileClaimStore

__all__ = ["app", "create_agent", "journal_of"]

INSTANCE: Final = "agent"
ANSWER_S: Final = 3600.0
"""A slow model is the normal case; an answer that never comes may not hold a rollout for ever."""

_Result = TypeVar("_Result")


def journal_of(
    told: Mapping[str, str], *, on_poisoned: Callable[[], None] = lambda: None
) -> Journal:
    """The journal that the environment names.

    Raises:
        KeyError: a variable is missing.
        ClaimsError, CheckpointRefusal: the store or the journal cannot be used.
    """
    state_dir = Path(told["TOOL_AGENT_STATE_DIR"])
    path = Path(told.get("TOOL_AGENT_JOURNAL") or f"{state_dir}-journal.sqlite3")
    return Journal(
        path,
        instance=told.get("TOOL_AGENT_INSTANCE", INSTANCE),
        run=told["TOOL_AGENT_RUN"],
        store_id=FileClaimStore.inspect(state_dir).store_id,
        on_poisoned=on_poisoned,
    )


def create_agent(told: Mapping[str, str]) -> FastAPI:
    """The application; *told* is looked at when it starts."""

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            # One that can write no more must not keep its rollouts.
            journal = await asyncio.to_thread(journal_of, told, on_poisoned=asking_to_end())
            stack.push_async_callback(asyncio.to_thread, journal.close)
            answer_s = float(told.get("TOOL_AGENT_ANSWER_SECONDS", ANSWER_S))
            model, environment = [
                await stack.enter_async_context(Caller(told[name], timeout_s=answer_s))
                for name in ("TOOL_AGENT_MODEL_URL", "TOOL_AGENT_ENVIRONMENT_URL")
            ]

            async def release(environment_ids: Collection[str]) -> None:
                for environment_id in environment_ids:
                    await environment.forget(environment_id)

            running.state.sessions = await stack.enter_async_context(
                Sessions(
                    journal,
                    loop.Player(model, environment).play,
                    loop_digest=source_digest(loop, tool_session),
                    release=release,
                )
            )
            yield

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(CheckpointRefusal, _tell)
    for prefix in ("/ng-rollout/{rollout_id}", "/sessions/{rollout_id}"):
        app.add_api_route(f"{prefix}/run", _run, methods=["POST"])
        app.add_api_route(f"{prefix}/acknowledge", _acknowledge, methods=["POST"])
    return app


async def _run(request: Request) -> Response:
    call, sessions = _call_of(request), _sessions_of(request)
    task = await _document(request)
    try:
        SessionTask.from_document(task)
    except ValueError as error:
        raise _invalid(call, str(error)) from error
    done = await _while_there(request, sessions.run(call, task))
    if done is None:
        return Response(status_code=400)  # nobody reads it
    return Response(
        f'{{"receipt":"{done.receipt}","result":{done.payload}}}', media_type="application/json"
    )


async def _acknowledge(request: Request) -> Response:
    call, document = _call_of(request), await _document(request)
    receipt = document.get("receipt") if isinstance(document, dict) else None
    if not isinstance(receipt, str):
        why = 'an acknowledgement is {"receipt": "..."}'
        raise _invalid(call, why, code="acknowledgement_invalid")
    await _sessions_of(request).acknowledge(call, receipt)
    return JSONResponse({"acknowledged": receipt})


async def _while_there(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """What *work* returns; it is cancelled, and None, where the client leaves before."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def kept() -> _Result | CheckpointRefusal:
        try:
            return await work
        except CheckpointRefusal as refusal:  # raised in a group it would come out in a group
            return refusal

    async with asyncio.TaskGroup() as tasks:
        working, watching = tasks.create_task(kept()), tasks.create_task(watch())
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        watching.cancel()
    if working.cancelled():
        return None
    if isinstance(found := working.result(), CheckpointRefusal):
        raise found
    return found


async def _document(request: Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise _invalid(_call_of(request), f"the body is no JSON: {error}") from error


def _call_of(request: Request) -> Call:
    call: Call | None = request.scope.get(CALL_KEY)
    if call is None:
        raise CheckpointRefusal(
            "rollout_unclaimed",
            "no claim fences this rollout: serve the agent with `rollout-router serve --app`",
            rollout_id=request.path_params["rollout_id"],
        )
    return call


def _sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def _invalid(call: Call, why: str, *, code: str = "task_invalid") -> CheckpointRefusal:
    return CheckpointRefusal(
        code,
        f"rollout {call.rollout_id}: {why}",
        rollout_id=call.rollout_id,
        claim_epoch=call.claim_epoch,
    )


async def _tell(request: Request, refusal: Exception) -> Response:  # noqa: ARG001 - FastAPI's form
    if not isinstance(refusal, CheckpointRefusal):
        raise refusal
    response = Response(refusal.body(), refusal.status)
    response.raw_headers = refusal.headers()
    return response


app = create_agent(os.environ)
