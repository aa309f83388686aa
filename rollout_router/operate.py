# SPDX-License-Identifier: Apache-2.0
"""What an operator or a checkpoint asks of the running workers of one store (R6).

Synchronous: call it in a thread of a program with an event loop. A worker is asked over its private
socket, so only the user that runs the workers can. One that gives no answer is named, never passed
by: it may let requests in.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollout_router.claims import (
    AdmissionHeld,
    ClaimsError,
    FileClaimStore,
    Gate,
    Moment,
    OwnerIdentity,
    Unreadable,
    Verdict,
    hold_gate,
    release_gate,
    renew_gate,
    write_gate,
)

__all__ = [
    "ACKNOWLEDGE_S",
    "CHANGES_S",
    "WAIT_S_MAX",
    "AdmissionHeld",
    "Blocker",
    "WorkerSilent",
    "WorkerUnknown",
    "ask_admission",
    "changes_of",
    "check_budget",
    "close_admission",
    "drain",
    "hold_admission",
    "open_admission",
    "release_admission",
    "renew_admission",
    "status_of",
]

ACKNOWLEDGE_S: Final = 5.0
"""How long a worker has to answer: it takes milliseconds, unless it is stopped or overloaded."""

CHANGES_S: Final = 2.0
"""How long a worker has to say what changed. Shorter than an acknowledgement: it is asked twice a
second, and who asks does not wait for it when it ends."""

WAIT_S_MAX: Final = 3600.0
"""The longest wait that can be asked for, and the longest budget; workers answer after as much."""

GONE_POLL_S: Final = 0.05
ASKED_AT_ONCE_MAX: Final = 64
CONTROL_HEADERS: Final = {"Rollout-Control": "1", "Host": "worker"}


class WorkerSilent(Exception):  # noqa: N818 - named by what happened
    """A worker gave no answer, or none that can be understood; the message says which and why."""


class WorkerUnknown(WorkerSilent):
    """The store knows no worker of that id; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """What keeps a closed gate from being quiet.

    Attributes:
        worker_id: the worker that has the call in hand, or that is silent.
        rollout_id: of the call; None for a silent worker.
        claim_epoch: under which it runs; None for a silent worker, and where a claim is on its way.
        why: for people.
    """

    worker_id: str
    rollout_id: str | None
    claim_epoch: int | None
    why: str


def close_admission(
    state_dir: Path, *, by: str, why: str, wait_s: float = 0.0
) -> tuple[Blocker, ...]:
    """Close the gate of a service, whoever holds it; it stays closed whatever comes back.

    Returns once every live worker has read it and has nothing in hand, or after *wait_s*.

    Args:
        state_dir: the store of the service.
        by: who closes it, for those who are refused.
        why: said to them, at most 300 characters.
        wait_s: how long calls in flight may take to end, up to an hour.

    Returns:
        What is still in hand, and the workers that did not answer; nothing where all is quiet.

    Raises:
        StoreRefused, StoreUnavailable, ValueError: the gate is as it was.
    """
    _check_wait(wait_s)
    store = FileClaimStore.inspect(state_dir)
    write_gate(store.state_dir, Gate(open=False, by=by, why=why))
    return _blockers(store, wait_s)


def hold_admission(
    state_dir: Path,
    *,
    by: str,
    why: str,
    budget_s: float,
    wait_s: float = 0.0,
    now: Callable[[], Moment] = Moment.now,
) -> tuple[Blocker, ...]:
    """Close the gate for *budget_s*, after which it is open again; or renew what *by* holds.

    Returns as :func:`close_admission` does. A call that works in steps is in hand only while one
    runs. With the budget over nothing stays quiet: renew it in time, which may be done at any time.

    Args:
        state_dir: the store of the service.
        by: who holds it: a name that nobody else uses.
        why: said to those who are refused, at most 300 characters.
        budget_s: how long the gate stays closed without a renewal, above 0 and up to an hour.
        wait_s: how long what is in hand may take to end, up to *budget_s*.
        now: the present moment of this boot.

    Returns:
        What is still in hand, and the workers that did not answer; nothing where all is quiet.

    Raises:
        AdmissionHeld: somebody else closed it. The gate is as it was, as with all others.
        StoreRefused, StoreUnavailable, ValueError: see the message.
    """
    check_budget(budget_s, wait_s)
    store = FileClaimStore.inspect(state_dir)
    hold_gate(store.state_dir, by=by, why=why, budget_s=budget_s, now=now)
    return _blockers(store, wait_s)


def check_budget(budget_s: float, wait_s: float = 0.0) -> None:
    """Check what :func:`hold_admission` would be asked.

    Raises:
        ValueError: they are out of their bounds.
    """
    _check_wait(wait_s)
    if not (0 < budget_s <= WAIT_S_MAX and wait_s <= budget_s):
        raise ValueError(
            f"a budget is above 0, at least the wait ({wait_s} s) and at most {WAIT_S_MAX:.0f}"
            f" seconds, not {budget_s}"
        )


def ask_admission(state_dir: Path, *, wait_s: float = 0.0) -> tuple[Blocker, ...]:
    """Wait until nothing is in hand behind a gate that somebody closed, and change nothing.

    Returns as :func:`close_admission` does. A worker that lets requests in is silent.

    Raises:
        StoreRefused, StoreUnavailable, ValueError: see the message.
    """
    _check_wait(wait_s)
    return _blockers(FileClaimStore.inspect(state_dir), wait_s)


def renew_admission(
    state_dir: Path, *, by: str, budget_s: float, now: Callable[[], Moment] = Moment.now
) -> bool:
    """Begin the budget of what *by* holds anew, asking nobody: whether it held it without a break.

    Raises:
        StoreRefused, StoreUnavailable, ValueError: the gate is as it was.
    """
    check_budget(budget_s)
    state_dir = FileClaimStore.inspect(state_dir).state_dir
    return renew_gate(state_dir, by=by, budget_s=budget_s, now=now)


def release_admission(state_dir: Path, *, by: str) -> bool:
    """Let requests in again where *by* holds the gate; workers notice within a second.

    Returns:
        Whether it was so. A gate that was open, also as the budget was over, is open; one that
        somebody else closed stays closed.

    Raises:
        StoreRefused, StoreUnavailable: the gate is as it was.
    """
    return release_gate(FileClaimStore.inspect(state_dir).state_dir, by=by)


def open_admission(state_dir: Path, *, by: str) -> None:
    """Let requests in again, whoever holds the gate; workers notice within a second.

    Raises:
        StoreRefused, StoreUnavailable: the gate is as it was.
    """
    store = FileClaimStore.inspect(state_dir)
    write_gate(store.state_dir, Gate(open=True, by=by))


def drain(state_dir: Path, worker_id: str, *, wait_s: float = 0.0) -> bool:
    """Have one worker end as SIGTERM ends it: it finishes what it has and gives its rollouts back.

    Args:
        state_dir: the store of its service.
        worker_id: the worker.
        wait_s: how long to wait until it is gone, up to an hour.

    Returns:
        Whether it is gone. It has heard it in any case.

    Raises:
        StoreRefused: there is no store.
        WorkerUnknown: there is no such worker.
        WorkerSilent: it did not answer.
        ValueError: *wait_s* is out of its bounds; nothing was asked.
    """
    _check_wait(wait_s)
    store = FileClaimStore.inspect(state_dir)
    try:
        identity = store.owner(worker_id)
    except ClaimsError as error:
        raise WorkerUnknown(f"worker {worker_id} cannot be found: {error}") from error
    if identity is None:
        raise WorkerUnknown(f"there is no worker {worker_id}: see `rollout-router workers list`")
    _ask(identity, "POST", "/drain", timeout_s=ACKNOWLEDGE_S)
    ends_at = time.monotonic() + wait_s
    pause = threading.Event()  # never set: a wait with a bound
    while not (gone := _is_gone(store, identity)) and time.monotonic() < ends_at:
        pause.wait(GONE_POLL_S)
    return gone


def status_of(identity: OwnerIdentity) -> dict[str, Any]:
    """What a worker says of itself now.

    Raises:
        WorkerSilent: it did not answer.
    """
    return _ask(identity, "GET", "/status", timeout_s=ACKNOWLEDGE_S)


def changes_of(identity: OwnerIdentity, after: int) -> dict[str, Any]:
    """What became of a worker's rollouts since it gave the cursor *after*; 0 asks for all.

    At most a thousand rows at a time: where the answer has ``more``, ask again with its ``cursor``.
    With ``reset`` it begins anew: whatever was known of this worker is to be forgotten first.

    Raises:
        WorkerSilent: it did not answer in ``CHANGES_S``.
    """
    return _ask(identity, "GET", f"/changes?after={after}", timeout_s=CHANGES_S)


def _check_wait(wait_s: float) -> None:
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise ValueError(f"a wait has 0 to {WAIT_S_MAX:.0f} seconds, not {wait_s}")


def _is_gone(store: FileClaimStore, identity: OwnerIdentity) -> bool:
    """Its owner file went with it, or stayed, with a claim that it could not give back."""
    proof = store.proof_of_death(identity.owner)
    return proof is not None or not (store.state_dir / "owners" / identity.nonce).exists()


def _living(store: FileClaimStore) -> Iterator[OwnerIdentity | Unreadable]:
    """The workers that are not proven dead, and owner files that cannot be read."""
    for found in store.owners():
        if isinstance(found, Unreadable) or (store.judge(found.owner).verdict is not Verdict.DEAD):
            yield found


def _blockers(store: FileClaimStore, wait_s: float) -> tuple[Blocker, ...]:
    """Ask all after the gate was written: one not listed yet reads it, and starts closed."""
    workers = list(_living(store))
    with ThreadPoolExecutor(ASKED_AT_ONCE_MAX) as threads:
        found = threads.map(lambda worker: _blockers_at(worker, wait_s), workers)
        return tuple(blocker for blockers in found for blocker in blockers)


def _blockers_at(worker: OwnerIdentity | Unreadable, wait_s: float) -> list[Blocker]:
    if isinstance(worker, Unreadable):
        return [_silent(Path(worker.path).name, f"its owner file is unreadable ({worker.code})")]
    try:
        status = _ask(worker, "POST", f"/admission?wait={wait_s}", timeout_s=wait_s + ACKNOWLEDGE_S)
        gate_open: bool = status["gate"]["open"]
        calls = [
            (call["rollout_id"], call["claim_epoch"], call["seconds"])
            for call in status["in_flight"]
        ]
        changing = [str(rollout_id) for rollout_id in status["claims_changing"]]
    except WorkerSilent as error:
        return [_silent(worker.nonce, str(error))]
    except (KeyError, TypeError) as error:
        return [_silent(worker.nonce, f"its answer cannot be understood: {error!r}")]
    if gate_open:
        why = "it read the gate and lets requests in: somebody opened it, or its budget is over"
        return [_silent(worker.nonce, why)]
    return [
        Blocker(
            worker_id=worker.nonce,
            rollout_id=rollout_id,
            claim_epoch=claim_epoch,
            why=f"a call is in flight for {seconds:.1f} s",
        )
        for rollout_id, claim_epoch, seconds in calls
    ] + [
        Blocker(
            worker_id=worker.nonce,
            rollout_id=rollout_id,
            claim_epoch=None,
            why="its claim is being taken or given back",
        )
        for rollout_id in changing
    ]


def _silent(worker_id: str, why: str) -> Blocker:
    return Blocker(worker_id=worker_id, rollout_id=None, claim_epoch=None, why=why)


class _ToSocket(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        super().__init__("worker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask(identity: OwnerIdentity, method: str, path: str, *, timeout_s: float) -> dict[str, Any]:
    connection = _ToSocket(identity.socket, timeout_s=timeout_s)
    try:
        connection.request(method, path, headers=CONTROL_HEADERS)
        response = connection.getresponse()
        content = response.read()
        answer = json.loads(content)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise WorkerSilent(
            f"worker {identity.nonce} (pid {identity.pid}) gave no answer: {error!r}"
        ) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK or not isinstance(answer, dict):
        raise WorkerSilent(
            f"worker {identity.nonce} (pid {identity.pid}) answered {response.status}:"
            f" {content[:200]!r}"
        )
    return answer
