# SPDX-License-Identifier: Apache-2.0
"""A race of real workers on one store; what each did is written down for a checker to judge.

Run as a program, never imported: ``race_process.py STATE RUN HISTORY SEED WORKERS STORE``. Until
its input ends it kills, stops, drains and replaces workers at random; an operator forces and
sweeps.

Each process writes a file of its own in the directory HISTORY, a line before each call and a line
after it, each with one write: a kill costs the answer of the call in flight and nothing else. A
time in a line was read before what the line tells of could happen, or after it had.

STORE names the store that takes part: the product's own, or one of the mutants at the end, which
are what a careless hand might have made of it. A mutant's pauses widen a gap that is there anyway.
"""

import json
import logging
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from rollout_router.claims import (
    Claim,
    ClaimUnreadable,
    FileClaimStore,
    ForceRefused,
    Grant,
    Host,
    Judgement,
    LifeLock,
    Moved,
    Owner,
    ProofOfDeath,
    StoreUnavailable,
    Verdict,
    files,
    new_nonce,
    sweep,
    verdict,
)
from rollout_router.claims.creation import create_or_open
from rollout_router.claims.epochs import floor_of

ROLLOUTS: Final = ("r2", "r7", "r6", "r3", "r4")  # the first two share a stripe
LOCK_TIMEOUT_S: Final = 60.0  # a stopped process may hold a stripe; no call fails for that here
TURN_S: Final = 0.005  # how long a worker listens between two calls: the load, and no more
GAP_S: Final = 0.003  # of a mutant
GONE_WRONG: Final = 3  # the exit code of a worker to which the store said no


class History:
    """What one process did."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.by = "operator"

    def note(self, **fields: Any) -> None:
        line = json.dumps({"at": time.monotonic_ns(), **fields}, separators=(",", ":"))
        os.write(self._fd, f"{line}\n".encode())

    def call(self, what: str, rollout: str, names: Claim | None, act: Callable[[], Any]) -> Any:
        """What *act* gives; None where the record could not be read, or an operator was refused."""
        self.note(what=what, by=self.by, rollout=rollout, names=_brief(names))
        try:
            answer = act()
        except ClaimUnreadable as error:
            self.note(unreadable=error.code)
            return None
        except ForceRefused:
            self.note(happened=False)
            return None
        match answer:
            case Grant():
                self.note(happened=True, epoch=answer.claim.claim_epoch)
            case Moved():
                self.note(happened=False, found=_brief(answer.current))
            case Claim() | None:
                self.note(happened=False, found=_brief(answer))
            case bool():
                self.note(happened=answer)
            case int():
                self.note(happened=True, epoch=answer)
        return answer


def _brief(claim: Claim | None) -> tuple[int, str] | None:
    return None if claim is None else (claim.claim_epoch, claim.owner.nonce)


class Noting(FileClaimStore):
    """Notes each reap: a sweep reaps from inside."""

    def __init__(self, state_dir: str, history: History) -> None:
        layout = create_or_open(
            Path(state_dir), service="model", host=Host.here(), allow_network_fs=False
        )
        super().__init__(layout, lock_timeout_s=LOCK_TIMEOUT_S)
        self.history = history

    def reap(self, seen: Claim, proof: ProofOfDeath) -> bool:
        act = super().reap
        return bool(self.history.call("reap", seen.rollout_id, seen, lambda: act(seen, proof)))


class Worker:
    """Does what a router does with claims, in no sensible order."""

    def __init__(self, store: Noting, dice: random.Random, run_dir: str) -> None:
        self.store, self.dice, self.run_dir = store, dice, run_dir
        self.history = store.history
        self.asked_to_leave = False
        signal.signal(signal.SIGTERM, self.ask_to_leave)

    def ask_to_leave(self, *_: object) -> None:
        self.asked_to_leave = True

    def run(self) -> NoReturn:
        while True:
            self.live()

    def live(self) -> None:
        """One worker's life, from its life lock to its leaving."""
        self.asked_to_leave, self.held = False, dict[str, Grant]()
        nonce = self.history.by = new_nonce()
        path = f"{self.run_dir}/{nonce}.sock"
        life = LifeLock.acquire(self.store, nonce=nonce, socket=path)
        self.owner = life.owner
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            while not self.asked_to_leave:
                self.turn()
                _accept(listener)
        for _ in range(20):  # it drains: nobody can connect, and it lives and works on
            self.turn()
            _pause(TURN_S)
        for grant in self.held.values():
            if self.dice.random() < 0.7:
                self.release(grant)
        self.history.note(doomed=nonce)
        life.close()

    def turn(self) -> None:
        rollout = self.dice.choice(ROLLOUTS)
        grant = self.held.get(rollout)
        if grant is None:
            self.acquire(rollout)
        elif self.dice.random() < 0.75:
            if not self.history.call(
                "use", rollout, grant.claim, partial(self.store.stands, grant)
            ):
                del self.held[rollout]
        else:
            del self.held[rollout]
            if self.dice.random() < 0.8:  # otherwise it forgets, and takes again what is its own
                self.release(grant)

    def release(self, grant: Grant) -> None:
        claim = grant.claim
        self.history.call("release", claim.rollout_id, claim, partial(self.store.release, grant))

    def acquire(self, rollout: str) -> None:
        call, store, taken = self.history.call, self.store, None
        seen = call("read", rollout, None, partial(store.read, rollout))
        if seen is None or seen.owner == self.owner:
            taken = call("take", rollout, None, partial(store.take, rollout, self.owner))
        elif proof := store.judge(seen.owner).proof:
            if self.dice.random() < 0.4:
                store.reap(seen, proof)
            else:
                act = partial(store.take_over, seen, self.owner, proof)
                taken = call("take_over", rollout, seen, act)
        if isinstance(taken, Grant):
            self.held[rollout] = taken


def operate(store: Noting, dice: random.Random) -> NoReturn:
    """Force now and then, whoever it hits, and clear what the dead left."""
    while True:
        _pause(dice.uniform(0.01, 0.1))
        if dice.random() < 0.3:
            sweep(store, now=datetime.now(UTC), tombstone_age_max=timedelta(days=1))
            continue
        force_what_stands(store, dice.choice(ROLLOUTS))


def force_what_stands(store: Noting, rollout: str) -> None:
    call = store.history.call
    if seen := call("read", rollout, None, partial(store.read, rollout)):
        act = partial(store.force, rollout, expect_epoch=seen.claim_epoch, reason="a race")
        call("force", rollout, seen, act)


def _pause(bound_s: float) -> None:
    threading.Event().wait(bound_s)


def _accept(listener: socket.socket) -> None:
    if select.select([listener], [], [], TURN_S)[0]:
        listener.accept()[0].close()


class Conductor:
    """Forks the crew and lets no member of it live in peace."""

    def __init__(self, arguments: list[str]) -> None:
        self.state_dir, self.run_dir, self.history_dir, self.seed, workers, name = arguments
        self.store_class = STORES[name]
        self.dice = random.Random(self.seed)  # noqa: S311 - a race is repeated, not hidden
        self.history = History(f"{self.history_dir}/conductor")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in the crew too, until a worker can leave
        self.started = 0
        self.crew: dict[int, int] = {}  # process id: number of its history
        self.stopped: set[int] = set()
        self.operator = self.spawn(operator=True)
        for _ in range(int(workers)):
            self.spawn(operator=False)

    def run(self) -> None:
        while not select.select([sys.stdin], [], [], self.dice.uniform(0.0, 0.06))[0]:
            self.look_for_failures()
            for pid in [pid for pid in sorted(self.stopped) if self.dice.random() < 0.4]:
                self.stopped.discard(pid)
                os.kill(pid, signal.SIGCONT)
            pid = self.dice.choice(sorted(self.crew))
            act = self.dice.choice(("kill", "kill", "stop", "stop", "drain"))
            if act == "kill":
                self.kill(pid)
                self.spawn(operator=pid == self.operator)
            elif act == "stop":
                self.stopped.add(pid)
                os.kill(pid, signal.SIGSTOP)
            elif pid != self.operator:
                os.kill(pid, signal.SIGTERM)
        for pid in list(self.crew):
            self.kill(pid)

    def spawn(self, *, operator: bool) -> int:
        self.started += 1
        pid = os.fork()
        if pid == 0:
            self.play(operator=operator)
        self.crew[pid] = self.started
        if operator:
            self.operator = pid
        return pid

    def play(self, *, operator: bool) -> NoReturn:
        """What a child does until it is killed."""
        code = 1
        history = History(f"{self.history_dir}/{self.started}")
        try:
            store = self.store_class(self.state_dir, history)
            dice = random.Random(f"{self.seed} {self.started}")  # noqa: S311 - as above
            if operator:
                operate(store, dice)
            Worker(store, dice, self.run_dir).run()
        except StoreUnavailable as error:
            history.note(failed=str(error), doomed=history.by)
            code = GONE_WRONG
        except BaseException:  # noqa: BLE001 - it must not go on as a second conductor
            traceback.print_exc()
        os._exit(code)

    def kill(self, pid: int) -> None:
        self.history.note(killing=self.crew[pid])
        os.kill(pid, signal.SIGKILL)
        self.bury(*os.waitpid(pid, 0))

    def look_for_failures(self) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            self.bury(pid, status)
            self.spawn(operator=pid == self.operator)

    def bury(self, pid: int, status: int) -> None:
        self.history.note(gone=self.crew.pop(pid))
        self.stopped.discard(pid)
        if os.waitstatus_to_exitcode(status) not in {-signal.SIGKILL, GONE_WRONG}:
            raise SystemExit(f"a member of the crew ended by itself: {status}")


class Paused(Noting):
    """No mutant: as slow as they are, and right."""

    @contextmanager
    def _transaction(self, rollout_id: str) -> Iterator[str]:
        _pause(GAP_S)
        with super()._transaction(rollout_id) as path:
            yield path

    def _raise_epoch(self, rollout_id: str, *, current: Claim | None) -> int:
        _pause(GAP_S)
        return super()._raise_epoch(rollout_id, current=current)


class NoSecondLook(Noting):
    """Compares with what it read before it had the lock."""

    _before: tuple[Claim | None] | None = None

    @contextmanager
    def _transaction(self, rollout_id: str) -> Iterator[str]:
        before = self.read(rollout_id)
        _pause(GAP_S)
        with super()._transaction(rollout_id) as path:
            self._before = (before,)
            try:
                yield path
            finally:
                self._before = None

    def read_file(self, path: str, rollout_id: str | None) -> Claim | None:
        return self._before[0] if self._before else super().read_file(path, rollout_id)


class NoLock(Noting):
    """Changes claims under no lock."""

    @contextmanager
    def holding_stripe(self, stripe: str) -> Iterator[None]:  # noqa: ARG002 - as the store's
        self._check_store()
        yield

    def _raise_epoch(self, rollout_id: str, *, current: Claim | None) -> int:
        _pause(GAP_S)
        return super()._raise_epoch(rollout_id, current=current)


class InPlace(Noting):
    """Writes a claim where it stands, without a temporary file and a rename."""

    def _grant(self, path: str, rollout_id: str, **arguments: Any) -> Grant:
        vars(files)["publish"] = _write_where_it_stands
        return super()._grant(path, rollout_id, **arguments)


def _write_where_it_stands(path: str, raw: bytes, *, durable: bool) -> os.stat_result:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, raw[:100])
        _pause(GAP_S)
        os.write(fd, raw[100:])
        if durable:
            os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


class DeadBySocket(Noting):
    """Takes a socket that is missing or refuses for a proof of death."""

    def judge(self, owner: Owner) -> Judgement:
        judgement, identity = super().judge(owner), self.owner(owner.nonce)
        if identity is None or verdict.probe_socket(identity.socket) not in verdict._SUSPICIOUS:
            return judgement
        proof = ProofOfDeath(owner=owner, evidence="life_lock_free", seal=verdict._SEAL)
        return replace(judgement, verdict=Verdict.DEAD, proof=proof)


class EpochOfTheClaim(Noting):
    """Counts on from the claim file, and from the start where there is none."""

    def _raise_epoch(self, rollout_id: str, *, current: Claim | None) -> int:  # noqa: ARG002
        return 1 + (current.claim_epoch if current else floor_of(self._format[1].generation))


STORES: Final[dict[str, type[Noting]]] = {
    "real": Noting,
    "paused": Paused,
    "no_second_look": NoSecondLook,
    "no_lock": NoLock,
    "in_place": InPlace,
    "dead_by_socket": DeadBySocket,
    "epoch_of_the_claim": EpochOfTheClaim,
}


if __name__ == "__main__":
    logging.disable()  # each force is a warning
    Conductor(sys.argv[1:]).run()
