# SPDX-License-Identifier: Apache-2.0
"""Stateful sessions of a real service: they stay with their owner, or they are lost (R3)."""

import concurrent.futures
from collections.abc import Callable

import httpx
from support.gateway import Gateway

FLAGS = ("--app", "support.session_app:app", "--session-cookie", "sid")
CALLS = 24


def open_session(gateway: Gateway) -> tuple[str, int]:
    """A session that the application made: its cookie, and the process that made it."""
    with gateway.client() as client:
        answer = client.post("/open")
    assert answer.status_code == 200
    return answer.cookies["sid"], answer.json()["pid"]


def call(gateway: Gateway, session: str, path: str = "/count") -> httpx.Response:
    """One call on a connection of its own, so that any worker may take it."""
    with gateway.client(cookies={"sid": session}) as client:
        return client.post(path)


def owner_of(gateway: Gateway, session: str) -> str:
    claim = gateway.claims()[f"session.{session}"]
    assert claim["state"] == "owned"
    return str(claim["worker_id"])


def assert_lost(answer: httpx.Response, reason: str) -> None:
    assert answer.status_code == 410
    error = answer.json()["error"]
    assert error["code"] == "session_owner_lost"
    assert reason in error["message"]
    assert "retry-after" not in answer.headers


def test_r3_every_call_of_two_parallel_sessions_reaches_the_worker_that_made_it(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS)
    sessions = [open_session(gateway) for _ in range(2)]

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        work = [threads.submit(call, gateway, *s[:1]) for _ in range(CALLS) for s in sessions]
        answers = [done.result() for done in work]

    assert {answer.status_code for answer in answers} == {200}
    for number, (session, pid) in enumerate(sessions):
        own = [answer.json() for answer in answers[number :: len(sessions)]]
        assert {said["pid"] for said in own} == {pid}
        assert sorted(said["calls"] for said in own) == list(range(1, CALLS + 1))
        assert gateway.pid_of(owner_of(gateway, session)) == pid


def test_r3_the_session_of_a_killed_owner_is_410_also_after_a_restart_of_all(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS)
    session, _ = open_session(gateway)
    gateway.kill_worker(owner_of(gateway, session))

    for _ in range(4):
        assert_lost(call(gateway, session), "the worker that owned it died")
    assert gateway.claims()[f"session.{session}"]["state"] == "lost"

    assert gateway.stop() == 0
    after = serve(*FLAGS, state=gateway.folder)
    for _ in range(4):
        assert_lost(call(after, session), "the worker that owned it died")
    other, _ = open_session(after)
    assert call(after, other).json()["calls"] == 1


def test_r3_after_a_kill_of_everything_sessions_are_410_at_the_next_start(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS)
    session, _ = open_session(gateway)
    gateway.kill_all()

    after = serve(*FLAGS, state=gateway.folder)

    assert_lost(call(after, session), "the worker that owned it died")


def test_r3_a_session_is_lost_when_its_worker_leaves(serve: Callable[..., Gateway]) -> None:
    gateway = serve(*FLAGS)
    sessions = [open_session(gateway)[0] for _ in range(8)]
    closed, _ = open_session(gateway)
    assert call(gateway, closed, "/close").status_code == 200
    assert gateway.stop() == 0

    after = serve(*FLAGS, state=gateway.folder)

    for session in sessions:
        assert_lost(call(after, session), "the worker that owned it left")
    assert call(after, closed).status_code == 404


def test_r3_an_id_that_no_application_made_is_the_applications_to_refuse(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS)

    answers = [call(gateway, "invented") for _ in range(4)]

    assert {answer.status_code for answer in answers} == {404}
    assert gateway.stop() == 0  # waits for the releases
    assert gateway.claims() == {}
