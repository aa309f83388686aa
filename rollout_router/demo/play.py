# SPDX-License-Identifier: Apache-2.0
"""The performance: all rollouts through a real gateway, whose workers are killed meanwhile.

Each rollout plays the first half of its calls. Then every owner is killed by SIGKILL, one after the
other, each replaced before the next: from here on every rollout is another owner's, under a higher
claim epoch. Then the second halves are played, and twice more the owner of the most unfinished
rollouts is killed, now with calls in flight: it is stopped first (SIGSTOP), so that the calls of
its rollouts stay in flight until SIGKILL comes. ``claims list`` says who owns what.

A rollout of a single call has no middle: it ends before the kill. Each rollout has a shim of its
own, as each sandbox has; with more rollouts than SHIMS_MAX the same is done with one part of them
after the other. Whatever happens, everything that was started is ended before :func:`perform`
returns or raises.
"""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rollout_router.demo.agent import Agent, CallFailed
from rollout_router.demo.attempt import Attempt, Holder, Outcome
from rollout_router.demo.conversation import Dialect, Rollout, turns
from rollout_router.demo.processes import Gateway, Shim, Tally
from rollout_router.demo.proof import compare

__all__ = ["THREADS", "Kill", "Performance", "Played", "Watch", "perform"]

THREADS: Final = 6
SHIMS_MAX: Final = 40  # a shim takes some 20 MB of memory
KILLS_AT: Final = (0.25, 0.6)
"""When an owner is killed with calls in flight, as a share of the calls after the middle."""

FROZEN_S_MAX: Final = 1.0
"""A stopped worker is killed after that at the latest: what came to it to be forwarded hangs too,
so the calls that we wait for may never be made."""


class Watch(Protocol):
    """Told how the performance goes. ``called`` comes from several threads."""

    def called(self) -> None:
        """One more call has its answer."""

    def say(self, line: str) -> None:
        """Something happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One worker that was killed."""

    worker_id: str
    pid: int
    rollouts: int  # unfinished ones that it owned
    in_flight: int  # calls of its rollouts in flight as the signal was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of one rollout."""

    rollout_id: str
    dialect: Dialect
    calls: int  # its turns
    answered: int
    again: int  # attempts that got no answer, each followed by a new call
    tally: Tally
    before: Holder | None  # in the middle, before the kill
    after: Holder | None  # of the last answer
    failures: Sequence[str]  # why it did not finish, or did not lose its owner
    differences: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """All of it."""

    rollouts: Sequence[Played]
    kills: Sequence[Kill]
    wall_s: float


def perform(rollouts: Sequence[Rollout], *, folder: Path, watch: Watch) -> Performance:
    """Play *rollouts*.

    Args:
        rollouts: with different ids.
        folder: an empty directory; state, captures, statistics and logs are left in it.
        watch: told of every call and kill.

    Raises:
        ServiceFailed: a process of the product did not do what it was started for.
    """
    started_s = time.monotonic()
    board = _Board(watch)
    players = [_Player(r, n, board) for n, r in enumerate(rollouts)]
    kills: list[Kill] = []
    with ExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="rr-demo-"))
        gateway = stack.enter_context(Gateway(folder, Path(run_dir)))
        watch.say(f"the gateway serves at {gateway.url} with two workers")
        for start in range(0, len(players), SHIMS_MAX):
            kills += _play(players[start : start + SHIMS_MAX], gateway, board, folder=folder)
    # The gateway has ended: what it captured is complete.
    played = [player.played(gateway.capture_dir) for player in players]
    return Performance(rollouts=played, kills=kills, wall_s=time.monotonic() - started_s)


class _Board:
    """What all agents are doing now."""

    def __init__(self, watch: Watch) -> None:
        self.stopping = threading.Event()
        self._watch = watch
        self._changed = threading.Condition()
        self._in_flight: set[str] = set()  # an agent makes one call at a time
        self._calls = 0

    @property
    def calls(self) -> int:
        """Calls that have their answer."""
        return self._calls

    def sent(self, rollout_id: str) -> None:
        with self._changed:
            self._in_flight.add(rollout_id)
            self._changed.notify_all()

    def settled(self, rollout_id: str) -> None:
        with self._changed:
            self._in_flight.discard(rollout_id)

    def called(self) -> None:
        with self._changed:
            self._calls += 1
            self._changed.notify_all()
        self._watch.called()

    def say(self, line: str) -> None:
        self._watch.say(line)

    def nudge(self, _: object = None) -> None:
        """Let who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait for something that changes with a call or a nudge; at most *timeout_s*."""
        with self._changed:
            self._changed.wait_for(holds, timeout_s)

    def in_flight(self, rollout_ids: AbstractSet[str]) -> int:
        return len(self._in_flight & rollout_ids)


class _Player:
    """One rollout with its agent and its shim."""

    def __init__(self, rollout: Rollout, number: int, board: _Board) -> None:
        self.rollout_id = rollout.rollout_id
        self.calls = len(turns(rollout.items))
        self.middle = max(1, self.calls // 2)
        self.before: Holder | None = None
        self._rollout = rollout
        self._board = board
        self._dialect = (Dialect.RESPONSES, Dialect.CHAT)[number % 2]
        self._place = ("sessions", "ng-rollout")[number // 2 % 2]
        self._shim: Shim | None = None
        self._agent: Agent | None = None
        self._tally = Tally(calls=0, bytes_sent=0, bytes_full=0, resyncs=0)
        self._failure: str | None = None

    @property
    def attempts(self) -> Sequence[Attempt]:
        return () if self._agent is None else self._agent.attempts

    @property
    def answered(self) -> int:
        return sum(attempt.outcome is Outcome.ANSWERED for attempt in self.attempts)

    def open(self, gateway: Gateway, folder: Path) -> None:
        self._shim = Shim(folder, self.rollout_id, gateway.url)
        url = f"{self._shim.url}/{self._place}/{self.rollout_id}/v1"
        self._agent = Agent(self._rollout, self._dialect, url, self._board)

    def play(self, numbers: range) -> None:
        if self._agent is None or self._failure is not None:
            return
        try:
            self._agent.play(numbers)
        except CallFailed as error:
            self._failure = str(error)

    def close(self) -> None:
        """End the shim and take its count. Again is harmless."""
        if self._agent is not None:
            self._agent.close()
        if self._shim is not None:
            shim, self._shim = self._shim, None
            self._tally = shim.count()

    def played(self, capture_dir: Path) -> Played:
        """All that there is to know; after the gateway has ended."""
        after = self._after()
        return Played(
            rollout_id=self.rollout_id,
            dialect=self._dialect,
            calls=self.calls,
            answered=self.answered,
            again=len(self.attempts) - self.answered,
            tally=self._tally,
            before=self.before,
            after=after,
            failures=[f"rollout {self.rollout_id}: {failure}" for failure in self._failures(after)],
            differences=compare(
                self.rollout_id, self.attempts, self._tally, capture_dir=capture_dir
            ),
        )

    def _after(self) -> Holder | None:
        for attempt in reversed(self.attempts):
            if attempt.outcome is Outcome.ANSWERED and attempt.turn >= self.middle:
                return attempt.holder
        return None

    def _failures(self, after: Holder | None) -> Iterator[str]:
        if self._failure is not None:
            yield self._failure
        if self.answered < self.calls:
            yield f"{self.answered} of its {self.calls} calls were answered"
        if after is None or self.before is None:
            if self.calls > 1:
                yield "it was not played on both sides of the kill"
        elif (
            after.worker_id == self.before.worker_id or after.claim_epoch <= self.before.claim_epoch
        ):
            yield f"its owner was killed, and its claim went from {self.before} to {after}"


def _play(
    players: Sequence[_Player], gateway: Gateway, board: _Board, *, folder: Path
) -> list[Kill]:
    """Play one part of the rollouts, first halves, kills, second halves; ends their shims."""
    longest_first = sorted(players, key=lambda player: -player.calls)
    shims = folder / "shims"
    shims.mkdir(exist_ok=True)
    with ExitStack() as stack:
        for player in players:
            stack.callback(player.close)
        pool = stack.enter_context(ThreadPoolExecutor(THREADS, thread_name_prefix="agent"))
        stack.callback(board.stopping.set)  # runs first: a failure here ends the agents

        def first_half(player: _Player) -> None:
            if board.stopping.is_set():
                return
            player.open(gateway, shims)
            player.play(range(player.middle))

        def second_half(player: _Player) -> None:
            player.play(range(player.middle, player.calls))

        for done in [pool.submit(first_half, player) for player in longest_first]:
            done.result()
        kills = _kill_all(players, gateway, board)
        halves = [pool.submit(second_half, player) for player in longest_first]
        for half in halves:
            half.add_done_callback(board.nudge)
        kills += _kill_in_flight(longest_first, gateway, board, halves)
        for half in halves:
            half.result()
        for _ in pool.map(_Player.close, players):
            pass
    board.stopping.clear()
    return kills


def _kill_all(players: Sequence[_Player], gateway: Gateway, board: _Board) -> list[Kill]:
    """In the middle: kill every owner, one after the other."""
    holders = gateway.holders()
    for player in players:
        player.before = holders.get(player.rollout_id)
    halfway = [player.before for player in players if player.calls > player.middle]
    held = Counter(holder.worker_id for holder in halfway if holder is not None)
    return [_kill(gateway, board, worker_id, rollouts=held[worker_id]) for worker_id in held]


def _kill_in_flight(
    players: Sequence[_Player], gateway: Gateway, board: _Board, halves: Sequence[Future[None]]
) -> list[Kill]:
    """At each of KILLS_AT: stop who owns the most unfinished rollouts, wait for calls, kill it.

    *halves* belong to *players*, one to each.
    """
    kills = []
    begun = board.calls
    left = sum(player.calls - player.middle for player in players)

    def over() -> bool:
        return all(half.done() for half in halves)

    for share in KILLS_AT:
        wanted = begun + round(share * left)
        board.wait_until(lambda wanted=wanted: board.calls >= wanted or over())  # type: ignore[misc]
        holders = gateway.holders()
        held: dict[str, set[str]] = {}
        for player, half in zip(players, halves, strict=True):
            if not half.done() and player.rollout_id in holders:
                held.setdefault(holders[player.rollout_id].worker_id, set()).add(player.rollout_id)
        if not held:
            break
        worker_id, theirs = max(held.items(), key=lambda item: len(item[1]))
        gateway.freeze(worker_id)

        def stuck(theirs: AbstractSet[str] = theirs) -> bool:
            running = {p.rollout_id for p, h in zip(players, halves, strict=True) if h.running()}
            return over() or 0 < len(running & theirs) <= board.in_flight(theirs)

        board.wait_until(stuck, FROZEN_S_MAX)
        kills.append(_kill(gateway, board, worker_id, rollouts=len(theirs), flying=theirs))
    return kills


def _kill(
    gateway: Gateway,
    board: _Board,
    worker_id: str,
    *,
    rollouts: int,
    flying: AbstractSet[str] = frozenset(),
) -> Kill:
    in_flight = board.in_flight(flying)
    pid = gateway.kill(worker_id)
    calls = f", {in_flight} of their calls in flight" if in_flight else ""
    board.say(f"killed worker {worker_id} (pid {pid}), which owned {rollouts} rollouts{calls}")
    return Kill(worker_id=worker_id, pid=pid, rollouts=rollouts, in_flight=in_flight)
