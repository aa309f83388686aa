# SPDX-License-Identifier: Apache-2.0
"""The grants of a worker, against the files on disk (C1, C4, C6, H3)."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from support.routing import PausedStore, Rig

from rollout_router.claims import (
    Claim,
    ForceRefused,
    Grant,
    Moved,
    Owner,
    StoreUnavailable,
    stripe_of,
)
from rollout_router.history import Bounds, History, Key
from rollout_router.routing.ownership import Held, Ownership
from rollout_router.routing.tasks import Tasks

FULL = StoreUnavailable("writing", 28)
DIGEST = "0" * 64


@dataclass(eq=False)
class Bench:
    """One ownership over a real store, without a worker around it."""

    rig: Rig
    store: PausedStore
    owner: Owner
    history: History
    ownership: Ownership
    tasks: Tasks
    now_s: list[float] = field(default_factory=lambda: [0.0])

    async def acquire(self, rollout_id: str = "r1") -> Held:
        held = await self.ownership.acquire(rollout_id)
        assert isinstance(held, Held)
        return held

    async def settled(self) -> None:
        """Wait until no acquisition or release runs, and none is about to."""
        idle_turns = 0  # a task that ended has callbacks yet, which may begin a release
        while idle_turns < 3:
            if self.ownership._busy:
                await asyncio.wait(list(self.ownership._busy.values()))
                idle_turns = 0
            await asyncio.sleep(0)
            idle_turns += 1

    @property
    def on_disk(self) -> dict[str, int]:
        return {
            claim.rollout_id: claim.claim_epoch
            for claim in self.rig.store.survey()
            if isinstance(claim, Claim) and claim.owner == self.owner
        }

    @property
    def in_memory(self) -> dict[str, int]:
        grants = self.ownership.grants
        return {rollout_id: grant.claim.claim_epoch for rollout_id, grant in grants.items()}

    def check(self) -> None:
        """C6: memory, disk and history say the same; nothing is counted that does not run."""
        assert self.in_memory == self.on_disk
        assert set(self.history._entries) == {Key(*item) for item in self.in_memory.items()}


@asynccontextmanager
async def bench(rig: Rig, **bounds: float) -> AsyncIterator[Bench]:
    scripted = rig.owner(None)
    store = PausedStore.of(rig.state_dir)
    now_s, tasks = [0.0], Tasks()
    history = History(Bounds(**bounds), clock=lambda: now_s[0])  # type: ignore[arg-type] # ints
    ownership = Ownership(store, scripted.life.owner, history=history, tasks=tasks)
    made = Bench(
        rig=rig,
        store=store,
        owner=scripted.life.owner,
        history=history,
        ownership=ownership,
        tasks=tasks,
        now_s=now_s,
    )
    try:
        yield made
    finally:
        await tasks.cancel()
        ownership.close()


async def test_c6_a_grant_has_an_entry_and_a_file(rig: Rig) -> None:
    async with bench(rig) as own:
        held = await own.acquire()

        own.check()
        assert own.in_memory == {"r1": held.grant.claim.claim_epoch}
        assert own.history.statistics().in_flight == 1
        own.ownership.end(held)
        assert own.history.statistics().in_flight == 0
        own.check()


async def test_c6_many_callers_share_one_acquisition(rig: Rig) -> None:
    async with bench(rig) as own:
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(own.acquire()) for _ in range(5)]

        epochs = {caller.result().grant.claim.claim_epoch for caller in callers}
        assert len(epochs) == 1
        assert own.history.statistics().in_flight == 5
        own.check()


async def test_c6_over_the_bound_entries_in_use_stay_and_go_with_their_last_call(rig: Rig) -> None:
    async with bench(rig, rollouts_max=1) as own:
        first, second = await own.acquire("a"), await own.acquire("b")
        own.ownership.release_overdue()
        assert set(own.in_memory) == {"a", "b"}

        own.ownership.end(first)
        await own.settled()
        own.check()
        assert set(own.in_memory) == {"b"}
        own.ownership.end(second)
        await own.settled()
        assert set(own.in_memory) == {"b"}


async def test_c6_an_idle_entry_gives_its_claim_back(rig: Rig) -> None:
    async with bench(rig, idle_s_max=10) as own:
        own.ownership.end(await own.acquire())
        own.now_s[0] = 10.0
        own.ownership.release_overdue()
        assert "r1" in own.in_memory

        own.now_s[0] = 10.1
        own.ownership.release_overdue()
        await own.settled()
        own.check()
        assert own.on_disk == {}


async def test_h3_bytes_are_free_before_the_file_is(rig: Rig) -> None:
    async with bench(rig, rollouts_max=0) as own:
        held = await own.acquire()
        assert own.ownership.keep(held, DIGEST, b"base")
        pause = own.store.pause("release")
        own.ownership.end(held)
        await pause.reached.wait()

        assert own.history.statistics().bytes == 0
        assert own.in_memory == {}
        assert set(own.on_disk) == {"r1"}
        pause.go()
        await own.settled()
        own.check()


async def test_c6_an_entry_that_goes_for_another_ones_bytes_takes_its_claim_along_at_once(
    rig: Rig,
) -> None:
    async with bench(rig, bytes_max=4) as own:
        first = await own.acquire("a")
        assert own.ownership.keep(first, DIGEST, b"1234")
        own.ownership.end(first)
        second = await own.acquire("b")
        assert own.ownership.keep(second, "1" * 64, b"5678")

        # No request may find a grant of "a" without its entry.
        assert own.ownership.begin_held("a") is None
        again = await own.acquire("a")
        assert again.grant.claim.claim_epoch > first.grant.claim.claim_epoch
        own.check()


async def test_c6_a_release_that_fails_leaves_the_claim_held_and_is_tried_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(rig, rollouts_max=0) as own:
        own.store.fail("release", FULL)
        held = await own.acquire()
        own.ownership.end(held)
        await own.settled()
        own.check()
        assert own.in_memory == {"r1": held.grant.claim.claim_epoch}
        assert "stays held, its release is tried again" in caplog.text
        assert not own.ownership.is_clear

        again = own.ownership.begin_held("r1")  # it can be used meanwhile
        assert again is not None
        assert again.grant is held.grant
        own.ownership.end(again)
        await own.settled()
        own.check()
        assert own.in_memory == {}
        assert own.ownership.is_clear


async def test_c6_a_request_waits_for_a_running_release_and_then_takes_anew(rig: Rig) -> None:
    async with bench(rig, rollouts_max=1) as own:
        first = await own.acquire("a")
        other = await own.acquire("b")
        pause = own.store.pause("release")
        own.ownership.end(first)
        await pause.reached.wait()
        own.ownership.end(other)

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(own.acquire("a"))
            hop = group.create_task(own.ownership.wait_settled("a"))
            await asyncio.sleep(0)
            assert not waiting.done()
            assert not hop.done()
            pause.go()

        assert waiting.result().grant.claim.claim_epoch > first.grant.claim.claim_epoch
        own.ownership.end(waiting.result())
        await own.settled()
        own.check()


async def test_c6_an_acquisition_whose_caller_left_is_kept_as_an_empty_entry(rig: Rig) -> None:
    async with bench(rig) as own:
        pause = own.store.pause("take")
        caller = own.tasks.spawn(own.acquire(), name="caller")
        await pause.reached.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        pause.go()
        await own.settled()
        await asyncio.sleep(0)

        own.check()
        assert set(own.in_memory) == {"r1"}
        assert own.history.statistics().in_flight == 0
        assert own.history.statistics().bases == 0


async def test_c6_a_caller_that_leaves_as_its_acquisition_ends_is_counted_out(rig: Rig) -> None:
    async with bench(rig) as own:
        pause = own.store.pause("take")
        caller = own.tasks.spawn(own.acquire(), name="caller")
        await pause.reached.wait()
        taking = own.ownership._busy["r1"]
        taking.add_done_callback(lambda _: caller.cancel())  # between the result and its reader
        pause.go()
        await asyncio.wait([caller])
        await asyncio.sleep(0)

        assert caller.cancelled()
        own.check()
        assert own.history.statistics().in_flight == 0


async def test_c6_one_caller_leaving_does_not_take_the_claim_from_the_others(rig: Rig) -> None:
    async with bench(rig) as own:
        pause = own.store.pause("take")
        leaver = own.tasks.spawn(own.acquire(), name="leaver")
        await pause.reached.wait()
        stayer = own.tasks.spawn(own.acquire(), name="stayer")
        await asyncio.sleep(0)
        leaver.cancel()
        pause.go()

        held = await stayer
        await asyncio.sleep(0)
        assert own.history.statistics().in_flight == 1
        own.ownership.end(held)
        own.check()


async def test_c7_an_acquisition_that_fails_holds_nothing_and_works_again_afterwards(
    rig: Rig,
) -> None:
    async with bench(rig) as own:
        own.store.fail("take", FULL)
        with pytest.raises(StoreUnavailable):
            await own.acquire()
        own.check()
        assert own.in_memory == {}
        # The grant may have been renamed into place before it failed.
        assert not own.ownership.is_clear

        await own.acquire()
        own.check()


async def test_c2_a_claim_in_the_workers_name_that_memory_does_not_hold_is_taken_higher(
    rig: Rig,
) -> None:
    async with bench(rig) as own:
        lost = own.store.take("r1", own.owner)
        assert isinstance(lost, Grant)

        held = await own.acquire()

        assert held.grant.claim.claim_epoch > lost.claim.claim_epoch
        own.check()


async def test_c1_a_claim_that_was_forced_away_is_not_used_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(rig) as own:
        held = await own.acquire()
        assert own.ownership.stands(held.grant)
        rig.force()

        assert not own.ownership.stands(held.grant)
        assert "was taken away" in caplog.text
        assert own.ownership.begin_held("r1") is None
        own.check()
        again = await own.acquire()
        assert again.grant.claim.claim_epoch > held.grant.claim.claim_epoch

        # H5: the end of the old call touches nothing of the new grant.
        own.ownership.end(held)
        assert not own.ownership.keep(held, DIGEST, b"base")
        assert own.history.statistics().in_flight == 1
        own.check()


async def test_c4_of_two_takers_of_a_free_claim_one_holds_it(rig: Rig) -> None:
    async with bench(rig) as ada, bench(rig) as bob:
        first, second = ada.store.pause("take"), bob.store.pause("take")
        async with asyncio.TaskGroup() as group:
            racers = [group.create_task(own.ownership.acquire("r1")) for own in (ada, bob)]
            await first.reached.wait()
            await second.reached.wait()
            second.go()
            await asyncio.wait([racers[1]])
            first.go()

        winner, loser = racers[1].result(), racers[0].result()
        assert isinstance(winner, Held)
        assert isinstance(loser, Moved)
        assert loser.current == winner.grant.claim
        ada.check()
        bob.check()


@pytest.mark.parametrize("order", [(0, 1), (1, 0), None])
async def test_c4_of_two_takers_of_a_dead_owners_claim_one_holds_it(
    rig: Rig, order: tuple[int, int] | None
) -> None:
    dead = rig.owner("r1")
    dead.die()
    claim = rig.claim()
    proof = rig.store.proof_of_death(claim.owner)
    assert proof is not None
    async with bench(rig) as ada, bench(rig) as bob:
        pauses = [own.store.pause("take_over") for own in (ada, bob)]
        async with asyncio.TaskGroup() as group:
            racers = [
                group.create_task(own.ownership.acquire("r1", dead=(claim, proof)))
                for own in (ada, bob)
            ]
            for pause in pauses:
                await pause.reached.wait()
            for number in order or ():
                pauses[number].go()
                await asyncio.wait([racers[number]])
            for pause in pauses:
                pause.go()

        results = [racer.result() for racer in racers]
        (won,) = [result for result in results if isinstance(result, Held)]
        (lost,) = [result for result in results if isinstance(result, Moved)]
        assert won.grant.claim == rig.claim() == lost.current
        assert won.grant.claim.claim_epoch > claim.claim_epoch
        ada.check()
        bob.check()


async def test_a_leaver_gives_idle_rollouts_back_now_and_the_others_with_their_last_call(
    rig: Rig,
) -> None:
    async with bench(rig) as own:
        own.ownership.end(await own.acquire("idle"))
        calls = [await own.acquire("used") for _ in range(2)]
        own.ownership.leave()
        async with asyncio.TaskGroup() as group:
            left = group.create_task(own.ownership.wait_released())
            await own.settled()
            assert set(own.on_disk) == {"used"}
            own.ownership.end(calls[0])
            await own.settled()
            assert set(own.on_disk) == {"used"}
            assert not left.done()
            own.ownership.end(calls[1])

        own.check()
        assert own.on_disk == {}
        assert own.ownership.is_clear


async def test_a_leaver_gives_back_what_it_acquired_for_a_caller_that_left(rig: Rig) -> None:
    async with bench(rig) as own:
        pause = own.store.pause("take")
        caller = own.tasks.spawn(own.acquire(), name="caller")
        await pause.reached.wait()
        own.ownership.leave()
        caller.cancel()
        pause.go()

        await own.ownership.wait_released()
        assert own.on_disk == {}


@pytest.mark.parametrize("method", ["take", "release"])
@pytest.mark.parametrize("after", [True, False])
async def test_c3_a_change_that_was_cut_short_is_not_taken_for_a_clear_disk(
    rig: Rig, method: str, *, after: bool
) -> None:
    async with bench(rig, rollouts_max=0) as own:
        pause = own.store.pause(method, after=after)
        acquiring = own.tasks.spawn(own.acquire(), name="caller")
        if method == "release":
            own.ownership.end(await acquiring)
        await pause.reached.wait()
        await own.tasks.cancel()

        assert not own.ownership.is_clear
        pause.go()


async def test_waiting_for_a_change_that_was_cancelled_before_it_began_ends(rig: Rig) -> None:
    async with bench(rig, rollouts_max=0) as own:
        own.ownership.end(await own.acquire())
        await own.tasks.cancel()  # the release has not had its first step

        await own.ownership.wait_settled("r1")
        assert set(own.on_disk) == {"r1"}
        assert not own.ownership.is_clear


NAMES = "a", "b", "c", next(f"x{n}" for n in range(9999) if stripe_of(f"x{n}") == stripe_of("a"))
"""The last one shares its stripe with the first."""


class _Walk:
    """Random steps over one ownership, with the laws checked whenever nothing runs."""

    def __init__(self, own: Bench, seed: int) -> None:
        self.own = own
        self.random = random.Random(seed)  # noqa: S311 - a repeatable walk, nothing secret
        self.calls: list[Held] = []
        self.callers: list[asyncio.Task[None]] = []
        self.pauses: list[Callable[[], None]] = []
        self.epochs: dict[str, int] = {}

    def rollout(self) -> str:
        return self.random.choice(NAMES)

    def start(self) -> None:
        rollout_id = self.rollout()

        async def caller() -> None:
            try:
                held = await self.own.ownership.acquire(rollout_id)
            except StoreUnavailable:
                return
            assert isinstance(held, Held)
            epoch = held.grant.claim.claim_epoch
            assert epoch >= self.epochs.get(rollout_id, 0)  # C2
            self.epochs[rollout_id] = epoch
            self.calls.append(held)

        self.callers.append(self.own.tasks.spawn(caller(), name=f"caller of {rollout_id}"))

    def cancel(self) -> None:
        if self.callers:
            self.random.choice(self.callers).cancel()

    def end(self) -> None:
        if self.calls:
            self.own.ownership.end(self.calls.pop(self.random.randrange(len(self.calls))))

    def keep(self) -> None:
        if self.calls:
            digest = f"{self.random.randrange(9):064x}"
            self.own.ownership.keep(self.random.choice(self.calls), digest, b"x" * 3)

    def tick(self) -> None:
        self.own.now_s[0] += self.random.choice((1, 6, 11))
        self.own.ownership.release_overdue()

    def force(self) -> None:
        rollout_id = self.rollout()
        claim = self.own.store.read(rollout_id)
        if claim is None:
            return
        with suppress(ForceRefused):  # a thread was quicker
            self.own.store.force(rollout_id, expect_epoch=claim.claim_epoch, reason="a step")
        held = self.own.ownership.begin_held(rollout_id)  # the re-check learns of it
        if held is not None:
            self.calls.append(held)

    def hold(self) -> None:
        method = self.random.choice(("take", "release"))
        error = self.random.choice((None, None, FULL))
        after = error is None and self.random.random() < 0.5
        pause = self.own.store.pause(method, after=after, error=error)
        self.pauses.append(pause.go)

    def go(self) -> None:
        if self.pauses:
            self.pauses.pop(0)()

    async def settle(self) -> None:
        for go in self.pauses:
            go()
        self.pauses.clear()
        self.own.store._pauses.clear()
        if self.callers:
            await asyncio.wait(self.callers)
        self.callers.clear()
        await self.own.settled()
        for rollout_id in NAMES:  # learn of what was forced away while nothing was asked
            grant = self.own.ownership.grants.get(rollout_id)
            if grant is not None:
                self.own.ownership.stands(grant)
        self.own.check()
        live = sum(
            self.own.ownership.grants.get(c.grant.claim.rollout_id) is c.grant for c in self.calls
        )
        assert self.own.history.statistics().in_flight == live


@pytest.mark.parametrize("seed", range(12))
async def test_c6_memory_history_and_disk_agree_after_any_interleaving(rig: Rig, seed: int) -> None:
    async with bench(rig, rollouts_max=2, bytes_max=7, idle_s_max=10) as own:
        walk = _Walk(own, seed)
        steps = [
            *[walk.start] * 4,
            *[walk.end] * 3,
            *[walk.keep] * 2,
            *[walk.hold, walk.go] * 2,
            walk.cancel,
            walk.tick,
            walk.force,
        ]
        for number in range(120):
            walk.random.choice(steps)()
            for _ in range(walk.random.randrange(3)):
                await asyncio.sleep(0)
            if number % 15 == 14:
                await walk.settle()
        await walk.settle()
        own.ownership.leave()
        while walk.calls:
            walk.end()
        await own.ownership.wait_released()
        own.check()
        assert own.on_disk == {}
