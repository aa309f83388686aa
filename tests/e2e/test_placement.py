# SPDX-License-Identifier: Apache-2.0
"""New rollouts behind clients whose connections stay with one worker each."""

import concurrent.futures
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from support.control import Control
from support.gateway import Gateway

WORKERS = 4
CLIENTS = 3
ROLLOUTS = 27  # of each client, one after the other on its one connection


@pytest.fixture
def threads() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield pool


def owners(client: httpx.Client, name: str) -> list[str]:
    answers = [
        client.post(f"/sessions/{name}-{n}/v1/responses", content=b"{}") for n in range(ROLLOUTS)
    ]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.headers["rollout-worker"] for answer in answers]


def owners_by_client(
    gateway: Gateway, threads: concurrent.futures.ThreadPoolExecutor
) -> list[list[str]]:
    """Who owns the rollouts of each client; the clients call at the same time."""
    one = httpx.Limits(max_connections=1)
    with ExitStack() as stack:
        clients = [stack.enter_context(gateway.client(limits=one)) for _ in range(CLIENTS)]
        names = [f"client-{n}" for n in range(CLIENTS)]
        return list(threads.map(owners, clients, names))


def test_by_default_a_rollout_stays_with_the_connection_that_it_came_on(
    serve: Callable[..., Gateway], control: Control, threads: concurrent.futures.ThreadPoolExecutor
) -> None:
    found = owners_by_client(serve(workers=WORKERS, control=control.path), threads)

    assert [len(set(one)) for one in found] == [1] * CLIENTS


def test_balanced_rollouts_spread_over_all_workers_whatever_the_connections(
    serve: Callable[..., Gateway], control: Control, threads: concurrent.futures.ThreadPoolExecutor
) -> None:
    gateway = serve("--placement", "balanced", workers=WORKERS, control=control.path)
    with ExitStack() as answering:
        for n in range(3 * WORKERS):  # each in hand before the next one comes: nobody guesses
            control.hold(f"held-{n}")
            threads.submit(gateway.post, f"held-{n}", b"{}")
            answering.callback(control.next_call(f"held-{n}").answer)
        in_hand = Counter(claim["worker_id"] for claim in gateway.claims().values())
        assert sorted(in_hand.values()) == [3] * WORKERS

    spread = Counter(owner for one in owners_by_client(gateway, threads) for owner in one)

    # Calls that overlap are counted when they come to their worker, so two clients may choose the
    # same one at one time; the even share is never missed by half.
    even = CLIENTS * ROLLOUTS / WORKERS
    assert len(spread) == WORKERS
    assert even / 2 < min(spread.values())
    assert max(spread.values()) < even * 3 / 2
    assert len(gateway.claims()) == 3 * WORKERS + CLIENTS * ROLLOUTS
