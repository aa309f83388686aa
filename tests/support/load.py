# SPDX-License-Identifier: Apache-2.0
"""Clients that know what became of each of their calls, and what that allows to have run (R2)."""

import hashlib
import http.client
import json
import select
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from support.gateway import PATIENCE_S

from rollout_router.errors import ANSWERS
from rollout_router.transport.sandbox.wire import HISTORY_HEADER

__all__ = ["Caller", "Load", "Outcome", "Sent", "assert_each_ran_as_known", "forwarded", "totals"]


class Outcome(Enum):
    """What a client knows of a call, and how often it may have run then."""

    ANSWERED = "answered", {1}
    REFUSED = "refused: nothing happened", {0}
    NOT_SENT = "no connection", {0}
    LEFT_EARLY = "its client left within the body", {0}
    LEFT = "its client left before the answer", {0, 1}
    LOST = "502: it may have run", {0, 1}
    CUT = "its connection was cut", {0, 1}

    def __init__(self, words: str, runs: set[int]) -> None:
        self.words = words
        self.runs = runs


class Sent(NamedTuple):
    """One call as its client knows it."""

    rollout_id: str
    sha256: str
    outcome: Outcome
    code: str = ""  # of a refusal, or the error
    worker: str = ""
    claim_epoch: int = 0
    connection: object = None  # the same for calls over one; None where it is not known


class Caller:
    """One client, with one connection at a time. Not for several threads.

    Args:
        address: ``host:port`` of the service, asked for each new connection.
        keeps: keep the connection from call to call.

    Attributes:
        told: so many answers on a kept connection said that it ends.
        untold: so many kept connections were found closed although no answer had said so.
    """

    def __init__(self, address: Callable[[], str], *, keeps: bool) -> None:
        self._address = address
        self._keeps = keeps
        self._connection: http.client.HTTPConnection | None = None
        self.told = 0
        self.untold = 0

    def call(
        self, rollout_id: str, body: bytes, *, leave_after_s: float | None = None, part: float = 1
    ) -> Sent:
        """Call, and wait for the answer.

        Args:
            rollout_id: the rollout.
            body: the whole body; no two calls have the same.
            leave_after_s: close the connection when so much time has passed without an answer.
            part: of the body to send; less than 1: close the connection then.
        """
        sent = Sent(rollout_id, hashlib.sha256(body).hexdigest(), Outcome.NOT_SENT)
        try:
            connection = self._connected()
        except ConnectionError as error:
            return sent._replace(code=repr(error))
        sent = sent._replace(connection=connection)
        ends = True
        try:
            connection.putrequest("POST", f"/sessions/{rollout_id}/x")
            connection.putheader("Content-Length", str(len(body)))
            connection.putheader(HISTORY_HEADER, "keep")
            connection.endheaders(body[: int(len(body) * part)])
            if part < 1:
                return sent._replace(outcome=Outcome.LEFT_EARLY)
            if leave_after_s is not None:
                select.select([connection.sock], [], [], leave_after_s)
                return sent._replace(outcome=Outcome.LEFT)
            answer = connection.getresponse()
            text = answer.read()
            ends = answer.will_close
            self.told += ends
            return _heard(sent, answer, text)
        except (ConnectionError, http.client.HTTPException) as error:
            return sent._replace(outcome=Outcome.CUT, code=repr(error))
        finally:
            if ends or not self._keeps:
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> http.client.HTTPConnection:
        """The kept connection, or another where that is closed: nothing was written on it since."""
        if self._connection and select.select([self._connection.sock], [], [], 0)[0]:
            self.untold += 1
            self.close()
        if self._connection is None:
            connection = http.client.HTTPConnection(self._address(), timeout=PATIENCE_S)
            connection.connect()
            self._connection = connection
        return self._connection


class Load:
    """Clients that call without end, on the same rollouts; no body is sent twice.

    With more clients than rollouts, of most rollouts some calls are in flight at any time, and most
    of those are forwarded.

    Args:
        threads: one for each client.
        clients: each takes a rollout and a body, and calls.
        rollouts: so many.
        pause_s: between the calls of one client.
    """

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        clients: Sequence[Callable[[str, bytes], Sent]],
        *,
        rollouts: int,
        pause_s: float = 0.0,
    ) -> None:
        self._rollouts = rollouts
        self._pause_s = pause_s
        self._enough = threading.Event()
        self._running = [
            threads.submit(self._run, number, call) for number, call in enumerate(clients)
        ]

    def stop(self) -> list[Sent]:
        """End after the calls in flight; every call that was made."""
        self._enough.set()
        return [sent for client in self._running for sent in client.result()]

    def _run(self, client: int, call: Callable[[str, bytes], Sent]) -> list[Sent]:
        sent: list[Sent] = []
        while not self._enough.is_set():
            number = len(sent)
            body = f"call {number} of client {client}".encode()
            sent.append(call(f"r{(number + client) % self._rollouts}", body))
            self._enough.wait(self._pause_s)
        return sent


def _heard(sent: Sent, answer: http.client.HTTPResponse, text: bytes) -> Sent:
    """What an answer tells; one that nobody expects is an error."""
    code = "" if answer.status == 200 else str(json.loads(text)["error"]["code"])
    if not code:
        outcome = Outcome.ANSWERED
    elif code == "owner_lost_in_flight":
        outcome = Outcome.LOST
    elif ANSWERS[code].retry_after:
        outcome = Outcome.REFUSED
    else:
        raise AssertionError(f"unexpected: {answer.status} {text!r}")
    return sent._replace(
        outcome=outcome,
        code=code,
        worker=answer.headers.get("rollout-worker", ""),
        claim_epoch=int(answer.headers.get("rollout-claim-epoch", 0)),
    )


def assert_each_ran_as_known(calls: Iterable[Sent], executions: Path, why: str = "") -> None:
    """Every call ran as often as its client knows, and nothing ran that was not sent (R2).

    Args:
        calls: all that were made.
        executions: the file of ``support.app:counted``.
        why: said where it is wrong, as a seed.
    """
    runs = Counter(executions.read_text().split())
    wrong = [
        (call, runs[call.sha256]) for call in calls if runs[call.sha256] not in call.outcome.runs
    ]
    assert not wrong, (why, wrong)
    assert set(runs) <= {call.sha256 for call in calls}, why


def forwarded(calls: Iterable[Sent]) -> int:
    """So many answers at least came over a hop: a connection leads to one worker."""
    answers: dict[object, Counter[str]] = {}
    for call in calls:
        if call.outcome is Outcome.ANSWERED and call.connection is not None:
            answers.setdefault(call.connection, Counter())[call.worker] += 1
    return sum(workers.total() - max(workers.values()) for workers in answers.values())


def totals(calls: list[Sent], executions: Path) -> str:
    """For people: the calls by what their clients know, and how many of those ran."""
    ran = set(executions.read_text().split())
    lines = [f"{len(calls)} calls, at least {forwarded(calls)} forwarded"]
    for outcome in Outcome:
        if those := [call for call in calls if call.outcome is outcome]:
            codes = Counter(call.code.partition("(")[0] for call in those if call.code)
            what = f" {dict(codes)}" if codes else ""
            those_ran = sum(call.sha256 in ran for call in those)
            lines.append(f"{len(those):7} {outcome.words}, {those_ran} ran{what}")
    return "\n".join(lines)
