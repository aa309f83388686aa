# SPDX-License-Identifier: Apache-2.0
"""Answers of the application that name a session: it is owned here before their head leaves (R3).

Whoever learns the id of a session may come back through any worker, so the claim must stand first.
An answer whose session cannot be claimed never leaves: a 502 takes its place. Its call ran, and is
a call of that session until it ends, also where its worker leaves: only then the session is lost.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from rollout_router.asgi import Message, Scope
from rollout_router.claims import Claim, ClaimsError
from rollout_router.errors import Refusal
from rollout_router.routing.decision import Lost
from rollout_router.routing.ownership import Held
from rollout_router.routing.sessions import SessionNames
from rollout_router.routing.worker import Worker

__all__ = ["CLOSE_KEY", "AnswerWatch", "close_session", "session_lost"]

CLOSE_KEY: Final = "rollout_router.close_session"
"""Where the ASGI scope of a session's request has the call that closes it."""


def close_session(scope: Scope) -> bool:
    """Say that the application is done with the session of this request.

    The claim is released when the last call of the session has ended, and makes room for another.
    From then on its id is one that nobody knows.

    Returns:
        False where the request came under no session that a worker owns; nothing changed.
    """
    close: Callable[[], None] | None = scope.get(CLOSE_KEY)
    if close is None:
        return False
    close()
    return True


class AnswerWatch:
    """Watches the answer to one request.

    Args:
        worker: who serves it; None where this process runs no worker.
        names: how sessions are named.
    """

    def __init__(self, worker: Worker | None, names: SessionNames) -> None:
        self._worker = worker
        self._names = names
        self._held: list[Held] = []  # what the answer named: the call counts as one of it
        self._over = False
        self.claim: Claim | None = None  # of the session that the answer names
        self.refusal: Refusal | None = None  # what the client gets in place of the answer

    async def passing(self, message: Message) -> None:
        """Called with each message of the answer, before it is sent.

        Raises:
            Refusal: this message must not leave, nor any later one.
        """
        if self.refusal is None and message["type"] == "http.response.start":
            name = self._names.in_answer(message.get("headers", []), now=datetime.now(UTC))
            if name is not None:
                await self._claim(name)
        if self._over or self.refusal is not None:
            self.end()
        if self.refusal is not None:
            raise self.refusal

    def end(self) -> None:
        """The call is over."""
        self._over = True
        while self._held and self._worker is not None:
            self._worker.ownership.end(self._held.pop())

    async def _claim(self, name: str) -> None:
        try:
            held = await self._taken(name)
        except ClaimsError as error:
            self.refusal = _refused(name, str(error))
        except Refusal as refusal:
            self.refusal = _refused(name, refusal.message)
        else:
            self.claim = held.grant.claim

    async def _taken(self, name: str) -> Held:
        worker = self._worker
        if worker is None or worker.closed:
            raise Refusal("draining", "no worker runs in this process, or it has left")
        await worker.ownership.wait_settled(name)
        held = worker.ownership.begin_held(name)
        is_new = held is None
        if held is None:
            worker.admission.check(name)
            taken = await worker.ownership.acquire(name, kind="session", ran=True)
            if not isinstance(taken, Held):
                raise Refusal("claim_store_unavailable", f"it {_standing(taken.current)}")
            held = taken
        self._held.append(held)
        if is_new:  # whoever closed the gate meanwhile was told that nothing is in hand
            worker.admission.check(name)
        worker.ownership.made(held)
        return held


def session_lost(lost: Lost) -> Refusal:
    """410: the state of the session is gone."""
    return Refusal(
        "session_owner_lost",
        f"{lost.claim.rollout_id} is lost: {lost.why}; its state is gone, begin a new session",
        rollout_id=lost.claim.rollout_id,
        claim_epoch=lost.claim.claim_epoch,
    )


def _standing(claim: Claim | None) -> str:
    if claim is None:
        return "was given back just now"
    whose = "belongs to" if claim.state == "owned" else "was lost by"
    return f"{whose} worker {claim.owner.nonce}"


def _refused(name: str, why: str) -> Refusal:
    return Refusal(
        "session_refused",
        f"{name}, which the application named in its answer, cannot be owned here: {why};"
        " the call ran, nothing of its answer was sent",
        rollout_id=name,
    )
