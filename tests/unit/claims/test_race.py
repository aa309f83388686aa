# SPDX-License-Identifier: Apache-2.0
"""Real processes that want the same thing at the same time (C1, C2, C4)."""

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rollout_router.claims import FileClaimStore, Grant, LifeLock, Moved

Spawn = Callable[..., Any]
Live = Callable[[], LifeLock]


def test_c4_of_racing_takers_of_a_dead_owner_exactly_one_wins(
    store: FileClaimStore, spawn: Spawn
) -> None:
    rollouts = [f"r{n}" for n in range(40)]
    victim, racers = spawn().start(), [spawn().start() for _ in range(3)]
    before = {rollout: victim.ask("take", rollout=rollout)["epoch"] for rollout in rollouts}
    victim.kill()

    for rollout in rollouts:
        assert all(racer.ask("prepare", rollout=rollout) for racer in racers)
        for racer in racers:
            racer.tell("take_over")
        answers = [racer.hear()["ok"] for racer in racers]

        standing = store.read(rollout)
        assert standing
        winners = [n for n, answer in enumerate(answers) if "epoch" in answer]
        assert len(winners) == 1
        assert standing.owner == racers[winners[0]].owner
        assert answers[winners[0]]["epoch"] == standing.claim_epoch > before[rollout]
        losers = [answer for answer in answers if "moved" in answer]
        assert losers == [{"moved": standing.owner.nonce}] * 2


def test_c1_no_two_workers_are_ever_granted_one_epoch(spawn: Spawn) -> None:
    """And a worker's own epochs rise in the order in which it was given them (C2)."""
    rollouts, rounds = ["r1", "r2", "r3"], 90
    workers = [spawn().start() for _ in range(3)]
    for worker in workers:
        worker.tell("take_and_release", rollouts=rollouts, rounds=rounds)
    grants = [worker.hear()["ok"] for worker in workers]

    everybody = [tuple(grant) for own in grants for grant in own]
    assert len(everybody) == len(set(everybody))
    assert len(everybody) >= rounds
    for own in grants:
        by_rollout = defaultdict(list)
        for rollout, epoch in own:
            by_rollout[rollout].append(epoch)
        assert all(epochs == sorted(epochs) for epochs in by_rollout.values())


def test_c4_of_threads_that_take_one_rollout_exactly_one_wins(
    store: FileClaimStore, live: Live
) -> None:
    owners = [live().owner for _ in range(6)]
    start = threading.Barrier(len(owners))
    taken: list[Grant | Moved] = []

    def take(number: int) -> None:
        start.wait()
        taken.append(store.take("r1", owners[number]))

    threads = [threading.Thread(target=take, args=(n,)) for n in range(len(owners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (grant,) = [answer for answer in taken if isinstance(answer, Grant)]
    assert store.stands(grant)
    assert [answer.current for answer in taken if isinstance(answer, Moved)] == [grant.claim] * 5


def test_c1_readers_see_whole_records_while_writers_replace_them(
    store: FileClaimStore, live: Live
) -> None:
    """C5 under load: no read fails and no epoch is seen to go back."""
    owner = live().owner
    store.take("r1", owner)
    done = threading.Event()

    def write() -> None:
        for _ in range(300):
            store.take("r1", owner)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    epochs = []
    while not done.is_set():
        claim = store.read("r1")
        assert claim
        epochs.append(claim.claim_epoch)
    writer.join()

    assert epochs == sorted(epochs)
