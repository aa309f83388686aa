# SPDX-License-Identifier: Apache-2.0
"""Sessions and checkpoints in any order: what must hold is looked at after every step."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.deployment import Clock, Deployment
from support.folders import private_folder

from rollout_router.call import Call
from rollout_router.checkpoint import holding
from rollout_router.checkpoint.archive import read_archive
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.phases import ACTIVE
from rollout_router.checkpoint.restoring import kept_in
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.sessions import Sessions
from rollout_router.claims import FileClaimStore, read_gate
from rollout_router.operate import Blocker, hold_admission

STEPS = 70
IDS = [f"c{number}" for number in range(1, 9)]


class Gate:
    """The steps of a worker, at the gate of its store."""

    def __init__(self, world: "World", rollout_id: str) -> None:
        self._world, self._rollout_id = world, rollout_id

    def begin(self) -> bool:
        return self._world.place.gate_open

    def end(self) -> None:
        """Nothing is counted."""

    async def wait_open(self) -> None:
        await self._world.parked_at(self._rollout_id)


class World:
    """One agent server after another, with the sessions of a worker and its environments."""

    def __init__(self, folder: Path, stores: list[Path], seed: int) -> None:
        self.folder, self.stores = folder, stores
        self.random = random.Random(seed)  # noqa: S311 - the same sequence each time
        self.clock = Clock()
        self.lengths: dict[str, int] = {}  # of each rollout that was begun here
        self.results: dict[str, Any] = {}  # of those that were delivered here
        self.taken: set[str] = set()
        self.permits: dict[str, int] = {}  # operations that each may begin
        self.permitted: dict[str, asyncio.Event] = {}
        self.busy: set[str] = set()  # at work: neither parked nor waiting for a permit
        self.parked: set[str] = set()
        self.settled = asyncio.Event()
        self.calls: dict[str, asyncio.Future[Any]] = {}
        self.first: dict[str, Any] = {}  # manifest of each that was published
        self.held: dict[str, dict[str, Any]] = {}  # and what it kept
        self.given_up: set[str] = set()
        self.began = self.lives = 0
        self.blocked = False
        self.changed = asyncio.Event()
        self.tasks = asyncio.TaskGroup()

    async def parked_at(self, rollout_id: str) -> None:
        """Wait until something changed."""
        self.parked.add(rollout_id)
        self.idle(rollout_id)
        await self.changed.wait()

    def idle(self, rollout_id: str) -> None:
        self.busy.discard(rollout_id)
        self.settled.set()

    def tell(self) -> None:
        self.busy |= self.parked
        self.parked.clear()
        self.changed.set()
        self.changed = asyncio.Event()

    def permit(self, rollout_id: str, number: int) -> None:
        self.permits[rollout_id] += number
        if rollout_id not in self.parked and not self.calls[rollout_id].done():
            self.busy.add(rollout_id)
            self.permitted[rollout_id].set()

    async def turn(self, rollout_id: str) -> None:
        """Wait for a permit."""
        while not self.permits[rollout_id]:
            self.permitted[rollout_id].clear()
            self.idle(rollout_id)
            await self.permitted[rollout_id].wait()
        self.permits[rollout_id] -= 1

    async def quiet(self) -> None:
        """Until nothing is at work: all wait for a permit, for the gate, or are done."""
        while self.busy:
            self.settled.clear()
            await self.settled.wait()

    async def live(self) -> None:
        """Begin anew: another server, which knows nothing."""
        self.lives += 1
        store = self.stores[self.lives % 2]
        (store / "gate").unlink(missing_ok=True)
        self.place = Deployment(
            self.folder / str(self.lives),
            state=store,
            archives=self.folder / "archives",
            clock=self.clock,
        )
        self.place.server.loop = asyncio.get_running_loop()
        self.sessions = Sessions(self.place.journal, self.loop, loop_digest="loop")
        await self.sessions.__aenter__()

    async def die(self) -> None:
        await self.sessions.__aexit__(None, None, None)
        await asyncio.gather(*self.calls.values(), return_exceptions=True)
        self.place.close()
        self.calls.clear()

    async def loop(self, run: Run, task: Any) -> Any:
        value = None
        for number in range(task["length"]):
            await self.turn(run.rollout_id)
            value = await self.place.one(run, number)
        await self.turn(run.rollout_id)
        return value

    def call(self, rollout_id: str) -> Call:
        store_id = self.place.journal.store_id
        return Call(
            rollout_id=rollout_id,
            claim_epoch=self.lives,
            worker_id="w",
            store_id=store_id,
            steps=Gate(self, rollout_id),
        )

    async def play(self, rollout_id: str) -> None:
        """Have somebody wait for it, if nobody does."""
        if rollout_id not in self.calls:
            self.permits[rollout_id], self.permitted[rollout_id] = 0, asyncio.Event()
            self.busy.add(rollout_id)
            task = {"length": self.lengths[rollout_id]}
            work = self.sessions.run(self.call(rollout_id), task)
            self.calls[rollout_id] = self.tasks.create_task(self.delivered(rollout_id, work))
        await self.quiet()

    async def delivered(self, rollout_id: str, work: Awaitable[Any]) -> None:
        try:
            done = await work
        except CheckpointRefusal as refusal:
            if refusal.code != "operation_unavailable":  # its server ends
                raise
            return
        finally:
            self.parked.discard(rollout_id)
            self.idle(rollout_id)
        result = json.loads(done.payload)
        assert result == [f"{rollout_id} {n}" for n in range(self.lengths[rollout_id])]  # O1, O2
        assert self.results.setdefault(rollout_id, done.receipt) == done.receipt  # O3

    # What may happen

    async def start(self) -> None:
        if self.place.gate_open:  # else its call is refused before anything happens
            self.began += 1
            name = f"r{self.began}"
            self.lengths[name] = self.random.randrange(1, 4)
            await self.play(name)

    async def advance(self, permits: int = 1) -> None:
        if going_on := [one for one in self.lengths if one not in self.results]:
            name = self.random.choice(going_on)
            if self.place.gate_open or name in self.calls:
                await self.play(name)
                self.permit(name, permits)
                await self.quiet()

    async def finish(self) -> None:
        await self.advance(9)

    async def acknowledge(self) -> None:
        if self.place.gate_open and (waiting := sorted(self.results.keys() - self.taken)):
            name = self.random.choice(waiting)
            await self.sessions.acknowledge(self.call(name), self.results[name])
            self.taken.add(name)

    async def checkpoint(self, work: Callable[[str], Any], name: str) -> Any:
        """One command; a refusal of it changes nothing."""
        before = self.place.dump(), read_gate(self.place.state, now=self.clock)
        try:
            return await asyncio.to_thread(work, name)
        except CheckpointRefusal:
            assert (self.place.dump(), read_gate(self.place.state, now=self.clock)) == before
            return None

    async def prepare(self) -> None:
        self.blocked = self.random.random() < 0.3
        await self.checkpoint(self.place.prepare, self.named("preparing", "prepared"))

    def hold(self, *arguments: Any, **named: Any) -> tuple[Blocker, ...]:
        """Close the gate, as a worker that may have something in hand."""
        hold_admission(*arguments, **named)
        silent = Blocker(worker_id="w", rollout_id=None, claim_epoch=None, why="silent")
        return (silent,) if self.blocked else ()

    def named(self, *phases: str) -> str:
        """Mostly one in such a phase, if there is one, and any other now and then."""
        known = [one for one, phase in self.place.phases.items() if phase in phases]
        return self.random.choice(known if known and self.random.random() < 0.8 else IDS)

    async def commit(self) -> None:
        name = self.named("prepared", "committed", "resumed")
        was = self.place.phases.get(name)
        manifest = await self.checkpoint(self.place.commit, name)
        assert manifest is None or was in ("prepared", "committed", "resumed")
        if manifest is not None and name not in self.first:
            assert name not in self.given_up
            self.first[name] = manifest

    async def resume(self) -> None:
        name = self.named(*ACTIVE)
        await self.checkpoint(self.place.checkpoints.resume, name)

    async def expire(self) -> None:
        self.clock.forward(61)

    async def restore(self) -> None:
        """Another server takes the place of this one."""
        if not self.first:
            return
        name = self.random.choice(sorted(self.first))
        await self.die()
        await self.live()
        kept, self.blocked = self.held[name], False
        self.given_up.clear()  # by another journal
        await asyncio.to_thread(self.place.restore, name)
        told = {one: json.loads(it.rollout.task) for one, it in kept.items()}  # none once taken
        self.lengths = {
            one: it["length"] if it else self.lengths.get(one, 0) for one, it in told.items()
        }
        self.taken = {one for one, it in kept.items() if it.kind == "acknowledged"}
        self.results = {one: it.receipt for one, it in kept.items() if it.receipt}
        self.place.check_gate()
        await asyncio.to_thread(self.place.restore, name)
        await asyncio.to_thread(self.place.checkpoints.resume, name)

    async def step(self) -> None:
        chances = {
            self.start: 4,
            self.advance: 8,
            self.finish: 2,
            self.acknowledge: 2,
            self.prepare: 4,
            self.commit: 5,
            self.resume: 4,
            self.expire: 1,
            self.restore: 2,
        }
        (what,) = self.random.choices(list(chances), list(chances.values()))
        await what()
        self.tell()
        await self.quiet()
        self.check()

    def check(self) -> None:
        """What holds at any time."""
        place, phases = self.place, self.place.phases
        place.check_gate()  # O5
        assert {phases[name] for name in self.given_up} <= {"abandoned"}  # for good
        self.given_up |= {name for name, phase in phases.items() if phase == "abandoned"}
        for name, manifest in self.first.items():
            archive = read_archive(
                place.archives, instance="agent", run="run-1", checkpoint_id=name
            )
            assert archive.manifest == manifest  # O6
            if name not in self.held:
                self.held[name] = {one.rollout.rollout_id: one for one in kept_in(archive)}
                going_on = {one for one, it in self.held[name].items() if it.kind == "open"}
                assert not {one for one in going_on if place.outbox(one)}  # O8
        for name in self.given_up - self.first.keys():
            assert not (place.archives / "agent" / name / "manifest.json").exists()
        for name in self.lengths:
            status = place.rollout(name) and place.rollout(name).status
            held = place.outbox(name)
            assert (held is not None) == (status in ("completed", "acknowledged"))
            assert status != "quarantined"
            if status == "acknowledged":
                assert held is not None
                assert (held[1], place.rows(name)) == (None, ())  # O9

    async def end(self) -> None:
        """Every session comes to its end, and every checkpoint can be brought back."""
        self.clock.forward(61)
        self.blocked = False
        self.tell()
        for name in sorted(self.lengths.keys() - self.results.keys()):
            await self.play(name)
            self.permit(name, 9)
            await self.calls[name]
        assert self.results.keys() == self.lengths.keys()
        for name, kept in sorted(self.held.items()):
            await self.die()
            await self.live()
            restored = await asyncio.to_thread(self.place.restore, name)
            assert sum(restored.numbers.values()) == len(kept)
            for rollout_id, one in kept.items():
                assert self.place.rows(rollout_id) == one.rows
        await self.die()


@pytest.fixture(scope="module")
def stores() -> Iterator[list[Path]]:
    with private_folder() as folder:
        for name in ("a", "b"):
            FileClaimStore.open(folder / name, service="agent")
        yield [folder / "a", folder / "b"]


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(one, marks=pytest.mark.long) for one in range(3, 200))],
)
def test_any_sequence_of_sessions_and_checkpoints_keeps_what_must_hold(
    folder: Path, stores: list[Path], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = World(folder, stores, seed)
    monkeypatch.setattr(holding, "hold_admission", world.hold)

    async def lives() -> None:
        async with world.tasks:
            await world.live()
            for _ in range(STEPS):
                await world.step()
            await world.end()

    asyncio.run(lives())
