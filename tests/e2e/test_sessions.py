# SPDX-License-Identifier: Apache-2.0
"""Stateful sessions of a real service: they stay with their owner, or they are lost (R3)."""

import concurrent.futures
import http.client
import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
from support.gateway import (
    PATIENCE_S,
    Gateway,
    client_at,
    connections,
    invoked,
    kill_and_wait,
    stopped,
    wait_until,
)
from support.stock import stock_uvicorn

from rollout_router.claims import Claim, FileClaimStore

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


def test_r3_a_login_in_flight_when_its_worker_leaves_is_answered_and_the_next_call_is_410(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS, workers=1)
    (worker,) = gateway.ready["workers"]
    address = gateway.url.removeprefix("http://")
    with (
        closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as login,
        gateway.client() as idle,
    ):
        login.putrequest("POST", "/open")
        login.putheader("expect", "100-continue")  # the application reads: its call is in flight
        login.putheader("content-length", "2")
        login.endheaders()
        assert login.sock.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        idle.post("/count")
        os.kill(worker["pid"], signal.SIGTERM)
        wait_until(
            lambda: idle.post("/count").headers.get("connection") == "close",
            "it has begun to leave",
        )
        login.send(b"{}")
        answer = login.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["pid"] == worker["pid"]
        session = str(answer.headers["set-cookie"]).removeprefix("sid=").partition(";")[0]

    assert_lost(call(gateway, session), "the worker that owned it left")


def test_r3_an_id_that_no_application_made_is_the_applications_to_refuse(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS)

    answers = [call(gateway, "invented") for _ in range(4)]

    assert {answer.status_code for answer in answers} == {404}
    assert gateway.stop() == 0  # waits for the releases
    assert gateway.claims() == {}


def command(gateway: Gateway, *arguments: str) -> str:
    done = invoked(*arguments, "--state-dir", str(gateway.state_dir))
    assert done.exit_code == 0, done.output
    return done.stdout


def claim_of(gateway: Gateway, session: str) -> Claim:
    claim = FileClaimStore.inspect(gateway.state_dir).read(f"session.{session}")
    assert claim is not None
    return claim


def test_r3_however_a_session_was_lost_it_is_410_with_its_reason_until_it_is_forgotten(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS, "--sweep-seconds", "0.1")
    reasons = {}

    drained, _ = open_session(gateway)
    command(gateway, "workers", "drain", claim_of(gateway, drained).owner.nonce, "--wait", "60")
    reasons[drained] = "the worker that owned it left"
    assert_lost(call(gateway, drained), reasons[drained])

    swept, pid = open_session(gateway)
    kill_and_wait(pid)
    wait_until(lambda: claim_of(gateway, swept).state == "lost", "another worker swept it")
    reasons[swept] = "the worker that owned it died"
    assert_lost(call(gateway, swept), reasons[swept])
    assert "swept" in gateway.wait_line(" 1 lost sessions")

    forced, _ = open_session(gateway)
    epoch = str(claim_of(gateway, forced).claim_epoch)
    named = (f"session.{forced}", "--expect-epoch", epoch)
    command(gateway, "claims", "force", *named, "--reason", "stuck in a tool", "--yes")
    reasons[forced] = "stuck in a tool"
    assert_lost(call(gateway, forced), reasons[forced])

    killed, _ = open_session(gateway)
    gateway.kill_all()
    reaped = json.loads(command(gateway, "claims", "reap", "--yes", "--json"))
    reasons[killed] = "the worker that owned it died"
    assert reaped["lost"] == [f"session.{killed}"]

    rows = json.loads(command(gateway, "sessions", "list", "--json"))["sessions"]
    assert {row["name"]: row["lost_because"] for row in rows} == {
        f"session.{session}": reason for session, reason in reasons.items()
    }
    after = serve(*FLAGS, state=gateway.folder)
    for session, reason in reasons.items():
        for _ in range(2):
            assert_lost(call(after, session), reason)

    command(after, "claims", "reap", "--tombstones-older-than", "0s", "--yes")
    assert {call(after, session).status_code for session in reasons} == {404}


def test_c3_the_session_of_a_stopped_owner_waits_for_it_and_is_not_lost(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(*FLAGS, "--sweep-seconds", "0.1")
    session, pid = open_session(gateway)
    private = gateway.json("sessions", "show", session)["session"]["socket"]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with stopped(pid):
            before = connections(private)
            asked = threads.submit(call, gateway, session)
            wait_until(lambda: connections(private) > before, "the call was forwarded")
            assert claim_of(gateway, session).state == "owned"
            assert not asked.done()
        answer = asked.result()

    assert (answer.status_code, answer.json()) == (200, {"pid": pid, "calls": 1})


def test_r3_installed_behind_another_server_a_session_of_a_dead_worker_is_410_too(
    folder: Path,
) -> None:
    def ask(url: str, path: str, session: str | None = None) -> httpx.Response:
        cookies = {} if session is None else {"sid": session}
        with client_at(url, cookies=cookies) as client:
            return client.post(path)

    with stock_uvicorn("support.session_app:installed", folder) as url:
        made = ask(url, "/open")
        session, pid = made.cookies["sid"], made.json()["pid"]
        answers = [ask(url, "/count", session) for _ in range(8)]
        assert {answer.json()["pid"] for answer in answers} == {pid}
        kill_and_wait(pid)
        for _ in range(4):
            assert_lost(ask(url, "/count", session), "the worker that owned it died")
        left = ask(url, "/open").cookies["sid"]

    store = FileClaimStore.inspect(folder / "state")
    tombstones = [store.read(f"session.{lost}") for lost in (session, left)]
    assert [claim.state for claim in tombstones if claim] == ["lost", "lost"]
