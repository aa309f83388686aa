# SPDX-License-Identifier: Apache-2.0
"""The model server: the paths of three dialects, in front of one model. FastAPI.

Each path is also served below ``/sessions/<id>`` and ``/ng-rollout/<id>``. The lifespan owns the
model. A call is given up when its client leaves, and its model is told so at once by cancellation;
that holds for plain answers as for streams.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.errors import Refusal
from rollout_router.gateway.bodies import whole_body
from rollout_router.gateway.model import (
    INLINE_BYTES_MAX,
    Dialect,
    Model,
    ModelAnswer,
    ModelRequest,
    problem,
)
from rollout_router.gateway.validation import BadRequest, check_call, read_call

__all__ = ["create_app"]

_PREFIXES: Final = ("", "/sessions/{rollout_id}", "/ng-rollout/{rollout_id}")
_OTHER_METHODS: Final = ("DELETE", "HEAD", "PATCH", "POST", "PUT")
_FROM_V1: Final = re.compile(r"(?:/(?:sessions|ng-rollout)/[^/]+)?(/v1/.*)", re.DOTALL)
_Endpoint = Callable[..., Awaitable[Response]]


def create_app(model: Model) -> FastAPI:
    """The application that serves *model*, which it opens at start-up and closes at the end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with model:
            yield

    app = FastAPI(
        title="rollout-router gateway",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.add_exception_handler(HTTPException, _tell)
    app.add_api_route("/healthz", _healthz, methods=["GET"])
    for prefix in _PREFIXES:
        router = APIRouter(prefix=prefix, redirect_slashes=False)
        for dialect in Dialect:
            router.add_api_route(dialect.value, _generation(model, dialect), methods=["POST"])
        router.add_api_route("/v1/{rest:path}", _look_up(model), methods=["GET"])
        router.add_api_route("/v1/{rest:path}", _not_found, methods=list(_OTHER_METHODS))
        app.include_router(router)
    return app


def _generation(model: Model, dialect: Dialect) -> _Endpoint:
    async def generate(request: Request) -> Response:
        try:
            messages = await whole_body(request.receive)
        except Refusal as refusal:
            answer = problem(413, str(refusal), code=refusal.code, dialect=dialect)
            return await _whole_response(answer)
        if messages is None:
            return Response(status_code=400)  # nobody reads it
        body = b"".join(message.get("body", b"") for message in messages)
        document = None
        # An encoded body is the model's to read; the bytes are not ours to change.
        if "content-encoding" not in request.headers:
            try:
                document = await _read(dialect, body, keep=model.reads_documents)
            except BadRequest as error:
                answer = problem(400, str(error), code="invalid_request", dialect=dialect)
                return await _whole_response(answer)
        asked = _asked(request, dialect.value)
        return _Relay(model, replace(asked, dialect=dialect, body=body, document=document))

    return generate


async def _read(dialect: Dialect, body: bytes, *, keep: bool) -> Mapping[str, Any] | None:
    read = read_call if keep else check_call
    if len(body) <= INLINE_BYTES_MAX:
        return read(dialect, body)
    return await asyncio.to_thread(read, dialect, body)


def _look_up(model: Model) -> _Endpoint:
    async def look_up(request: Request) -> Response:
        if request.headers.get("upgrade", "").lower() == "websocket":
            # Codex may try a websocket first: 426 makes it POST at once, 404 makes it retry.
            raise HTTPException(426, "no websocket here; send a POST")
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        match = _FROM_V1.fullmatch(raw.decode("latin-1"))
        if match is None:  # the route matched the decoded path, and the raw one says otherwise
            raise HTTPException(404, "Not Found")
        return _Relay(model, _asked(request, match[1]))

    return look_up


async def _not_found() -> Response:
    raise HTTPException(404, "Not Found")


def _asked(request: Request, path: str) -> ModelRequest:
    return ModelRequest(
        method=request.method,
        path=path,
        query=request.scope.get("query_string", b""),
        headers=request.headers.raw,
        body=b"",
        dialect=None,
        document=None,
    )


class _Relay(Response):
    """Runs the call and passes its answer on, until it ends or the client leaves."""

    def __init__(self, model: Model, request: ModelRequest) -> None:
        super().__init__()
        self._model = model
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        async with asyncio.TaskGroup() as tasks:
            calling = tasks.create_task(self._run(send))
            leaving = tasks.create_task(_client_leaves(receive))
            await asyncio.wait({calling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            calling.cancel()
            leaving.cancel()
        if not calling.cancelled() and (error := calling.result()) is not None:
            raise error

    async def _run(self, send: Send) -> Exception | None:
        """Return what went wrong: raised, it would leave the task group inside a group."""
        try:
            async with self._model.answer(self._request) as answer:
                head = {"status": answer.status, "headers": list(answer.headers)}
                await send({"type": "http.response.start", **head})
                async for part in answer.parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # noqa: BLE001 - raised by the caller, one line after the group
            return error
        return None


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _healthz() -> Response:
    # Of any other type FastAPI makes a model of pydantic, and imports pydantic.v1 to do so: 40 ms.
    return JSONResponse({"status": "ok"})


async def _tell(request: Request, error: Exception) -> Response:
    """404, 405 and 426 in the form that clients of models parse."""
    if not isinstance(error, HTTPException):
        raise error
    headers = [(k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items()]
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = "not_found" if error.status_code == 404 else "not_supported"  # noqa: PLR2004 - HTTP
    return await _whole_response(
        problem(error.status_code, message, code=code, dialect=None, headers=headers)
    )


async def _whole_response(answer: ModelAnswer) -> Response:
    response = Response(b"".join([part async for part in answer.parts]), answer.status)
    response.raw_headers = list(answer.headers)
    return response
