# SPDX-License-Identifier: Apache-2.0
"""What is asked of one worker over its private socket, by an operator or a checkpoint (R6).

    GET  /status             what it is, what it has in hand, and how its gate stands
    GET  /changes?after=N    its rollouts that changed since the cursor N, and what happened
    POST /admission?wait=S   read the gate now; answer once nothing is in hand, or after S seconds:
                             of a call that works in steps only its steps are
    POST /drain              end this process as SIGTERM does

The private directory lets only the user that runs the workers in, and only what comes over the
private socket is looked at: the same header on the public port means nothing.
"""

import asyncio
import http
import json
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.history import CallHandle
from rollout_router.routing import headers as wire
from rollout_router.routing.worker import Worker

__all__ = ["answer_control", "is_control"]

WAIT_S_MAX: Final = 3600.0
"""How long a worker keeps one who waits for it to have nothing in hand."""

SCHEMA: Final = 1


def is_control(told: Mapping[bytes, bytes]) -> bool:
    """Whether it is to the worker itself: no hop is, whatever a client wrote into it.

    Args:
        told: its headers, by name.
    """
    return wire.CONTROL in told and wire.HOP not in told


async def answer_control(worker: Worker | None, scope: Scope, receive: Receive, send: Send) -> None:
    """Do what is asked and answer with the worker's status; 404 for anything else, 503 without."""
    asked = scope["method"], scope["path"]
    status = http.HTTPStatus.OK
    if worker is None or worker.closed:
        status = http.HTTPStatus.SERVICE_UNAVAILABLE
    elif asked == ("POST", "/admission"):
        await worker.ownership.in_thread(worker.admission.refresh)
        await _quiet(worker, _wait_s(scope), receive)
    elif asked == ("POST", "/drain"):
        signal.raise_signal(signal.SIGTERM)  # ours, whoever had this pid before
    elif asked not in _TOLD:
        status = http.HTTPStatus.NOT_FOUND
    answer: dict[str, Any] = {}
    if worker is not None and status is http.HTTPStatus.OK:
        answer = _TOLD.get(asked, _status)(worker, scope)
    body = json.dumps(answer).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        # A connection that stays open would keep a leaver from leaving.
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _changes(worker: Worker, scope: Scope) -> dict[str, Any]:
    after = _asked(scope, "after")
    held, gate = worker.history.statistics(), worker.admission.gate
    status = {
        "leaving": worker.ownership.leaving,
        "claims": len(worker.ownership.grants),
        "sessions": worker.ownership.sessions,
        "in_flight": worker.in_hand.total(),
        "parked": len(worker.stepping.parked()),
        "bases": held.bases,
        "base_bytes": held.bytes,
        "lag_ms": round(1000 * worker.observed.lag_s(), 3),
        "started_at": worker.observed.started_at,
        "gate": {"open": gate.open, "by": gate.by, "why": gate.why},
    }
    known = re.fullmatch("[0-9]{1,18}", after) is not None
    changes = worker.observed.changes.since(int(after) if known else 0)
    return {"schema": SCHEMA, "id": worker.id, "pid": worker.pid, "status": status, **changes}


def _status(worker: Worker, _: Scope) -> dict[str, Any]:
    gate, now = worker.admission.gate, worker.history.clock()

    def called(call: CallHandle, since: float) -> dict[str, Any]:
        return {**call.key._asdict(), "seconds": round(now - since, 3)}

    return {
        "schema": SCHEMA,
        "id": worker.id,
        "pid": worker.pid,
        "leaving": worker.ownership.leaving,
        "claims": len(worker.ownership.grants),
        "gate": {"open": gate.open, "by": gate.by, "why": gate.why},
        "in_flight": [called(call, call.began_at) for call in worker.stepping.in_hand()],
        "parked": [called(call, since) for call, since in worker.stepping.parked()],
        "claims_changing": sorted(worker.ownership.busy),
    }


_TOLD: Final[Mapping[tuple[str, str], Callable[[Worker, Scope], dict[str, Any]]]] = {
    ("GET", "/status"): _status,
    ("GET", "/changes"): _changes,
}
"""What only tells; all else answers with the status."""


def _asked(scope: Scope, name: str) -> str:
    query: bytes = scope["query_string"]
    return parse_qs(query.decode("latin-1")).get(name, ["0"])[-1]


def _wait_s(scope: Scope) -> float:
    try:
        return min(max(float(_asked(scope, "wait")), 0.0), WAIT_S_MAX)
    except ValueError:
        return 0.0


async def _quiet(worker: Worker, wait_s: float, receive: Receive) -> None:
    """Wait until nothing is in hand and no claim on its way, or the time is over, or they left."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def quiet() -> None:
        while worker.stepping.in_hand() or worker.ownership.busy:
            worker.ownership.changed.clear()
            await worker.ownership.changed.wait()

    waiting = [
        worker.tasks.spawn(gone(), name="who asked"),
        worker.tasks.spawn(quiet(), name="quiet"),
    ]
    try:
        await asyncio.wait(waiting, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
