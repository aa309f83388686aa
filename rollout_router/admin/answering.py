# SPDX-License-Identifier: Apache-2.0
"""How what went wrong is answered: one form, that of the router's errors."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rollout_router.admin.access import AdminRefusal
from rollout_router.claims import ClaimsError, ClaimUnreadable, ForceRefused, StoreRefused
from rollout_router.errors import Refusal
from rollout_router.operate import WorkerSilent, WorkerUnknown

__all__ = ["answer_errors"]

_CODES: Final[Mapping[type[Exception], str]] = {
    ForceRefused: "change_refused",
    ClaimUnreadable: "change_refused",
    StoreRefused: "store_refused",
    ClaimsError: "claim_store_unavailable",
    WorkerUnknown: "worker_unknown",
    WorkerSilent: "worker_silent",
    ValueError: "bad_request",
}
"""Of each kind of error, the most particular first."""


def answer_errors(app: FastAPI) -> None:
    """Have *app* answer so."""
    handlers: Mapping[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        Refusal: _refused,
        HTTPException: _unknown,
        RequestValidationError: _invalid,
        Exception: _failed,
        **dict.fromkeys(_CODES, _translated),
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, Refusal):
        raise error
    response = Response(error.body(), error.status)
    response.raw_headers = error.headers()
    return response


async def _translated(request: Request, error: Exception) -> Response:
    code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    return await _refused(request, AdminRefusal(code, str(error)))


async def _unknown(request: Request, error: Exception) -> Response:
    """404 and 405 of the routes."""
    if not isinstance(error, HTTPException):
        raise error
    known = error.status_code == 405  # noqa: PLR2004 - HTTP
    said = f"{request.method} {request.url.path}: {error.detail}"
    code = "not_supported" if known else "not_found"
    return await _refused(request, AdminRefusal(code, said))


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    said = "; ".join(
        f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()
    )
    return await _refused(request, AdminRefusal("bad_request", said))


async def _failed(request: Request, error: Exception) -> Response:
    """What nobody foresaw; the server logs it."""
    said = f"{request.method} {request.url.path} failed: {type(error).__name__}; see the log"
    return await _refused(request, AdminRefusal("application_failed", said))
