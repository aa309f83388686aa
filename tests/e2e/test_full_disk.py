# SPDX-License-Identifier: Apache-2.0
"""A worker leaves although its disk is full, and what it cannot give back it tries again (C7, R3).

Giving a rollout back needs no space. The tombstone of a session does: where it cannot be written
before the deadline, the claim stays as the evidence from which others write it.
"""

import concurrent.futures
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.control import Control
from support.conversations import body_of, conversation
from support.gateway import Gateway, wait_until
from support.small_disk import fill, mounted

from rollout_router.claims.names import stripe_of

BODY = body_of(conversation(2))
SESSIONS = ("--app", "support.session_app:app", "--session-cookie", "sid")


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """For state and captures: 256 epoch files, a page each, take 1 MiB of its 2."""
    with mounted(folder / "small", "size=2m") as disk:
        yield disk


def owner_files(gateway: Gateway) -> list[str]:
    return [path.name for path in (gateway.state_dir / "owners").iterdir()]


def open_session(gateway: Gateway) -> str:
    with gateway.client() as client:
        return str(client.post("/open").cookies["sid"])


def call_session(gateway: Gateway, session: str) -> tuple[int, str]:
    with gateway.client(cookies={"sid": session}) as client:
        answer = client.post("/count")
    return answer.status_code, answer.text


def test_c7_a_worker_on_a_full_disk_gives_everything_back_and_leaves(
    small_disk: Path, serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path, state=small_disk)
    for number in range(20):
        assert gateway.post(f"r{number}", b"{}").status_code == 200
    control.hold("held")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(gateway.post, "held", BODY)
        call = control.next_call("held")
        fill(small_disk)
        refused = gateway.post("new", BODY)
        assert len(gateway.claims()) == 21
        call.answer()  # before claims are given back: each makes room for a record
        unrecorded = waiting.result()
        gateway.process.send_signal(signal.SIGTERM)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "claim_store_unavailable"
    assert unrecorded.status_code == 502
    assert unrecorded.json()["error"]["code"] == "record_refused"
    assert gateway.wait_exit() == 0
    assert gateway.claims() == {}
    assert "Traceback" not in "".join(gateway.log)


def test_c7_a_release_that_failed_is_tried_again_while_its_worker_serves_on(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--history-rollouts", "1", workers=1)
    lock, away = misplace_lock(gateway, "r")
    assert gateway.post("other", BODY).status_code == 200  # there is no room for both
    for _ in range(2):
        assert "rollout r:" in gateway.wait_line("is tried again")
    away.rename(lock)
    wait_until(lambda: "r" not in gateway.claims(), "the claim is given back")
    assert gateway.post("r", BODY).status_code == 200


def test_c7_a_release_that_failed_is_tried_again_as_its_worker_leaves(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve(workers=1)
    lock, away = misplace_lock(gateway, "r")
    gateway.process.send_signal(signal.SIGTERM)
    assert "rollout r:" in gateway.wait_line("is tried again")
    away.rename(lock)
    assert gateway.wait_exit() == 0
    assert gateway.claims() == {}
    assert owner_files(gateway) == []


def test_c7_a_release_that_fails_until_the_deadline_leaves_the_proof_of_death(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--drain-seconds", "1", workers=1)
    lock, away = misplace_lock(gateway, "r")
    assert gateway.stop() == 0
    claim = gateway.claims()["r"]
    assert claim["verdict"] == "dead"
    assert owner_files(gateway) == [claim["worker_id"]]

    away.rename(lock)
    after = serve("--sweep-seconds", "0.1", workers=1, state=gateway.folder)
    after.wait_line("swept ")
    assert after.claims() == {}
    assert claim["worker_id"] not in owner_files(after)


def misplace_lock(gateway: Gateway, rollout_id: str) -> tuple[Path, Path]:
    """Let a rollout be claimed, and take away what its release needs: where it was, where it is."""
    assert gateway.post(rollout_id, BODY).status_code == 200
    lock = gateway.state_dir / "locks" / stripe_of(rollout_id)
    away = gateway.folder / "lock"
    lock.rename(away)
    return lock, away


def test_r3_a_tombstone_waits_for_space_while_its_worker_leaves(
    small_disk: Path, serve: Callable[..., Gateway]
) -> None:
    gateway = serve(*SESSIONS, workers=1, state=small_disk)
    session = open_session(gateway)
    filler = fill(small_disk)
    gateway.process.send_signal(signal.SIGTERM)
    for _ in range(2):  # it fails, and fails again
        assert f"session.{session}:" in gateway.wait_line("is tried again")
    assert gateway.claims()[f"session.{session}"]["state"] == "owned"
    filler.unlink()
    assert gateway.wait_exit() == 0
    assert gateway.claims()[f"session.{session}"]["state"] == "lost"
    assert owner_files(gateway) == []


def test_r3_without_space_to_the_end_the_next_start_writes_the_tombstone(
    small_disk: Path, serve: Callable[..., Gateway]
) -> None:
    gateway = serve(*SESSIONS, "--drain-seconds", "1", workers=1, state=small_disk)
    session = open_session(gateway)
    filler = fill(small_disk)
    assert gateway.stop() == 0
    claim = gateway.claims()[f"session.{session}"]
    assert (claim["state"], claim["verdict"]) == ("owned", "dead")
    assert owner_files(gateway) == [claim["worker_id"]]

    filler.unlink()
    after = serve(*SESSIONS, "--sweep-seconds", "0.1", workers=1, state=small_disk)
    after.wait_line("swept ")
    assert after.claims()[f"session.{session}"]["state"] == "lost"
    assert claim["worker_id"] not in owner_files(after)
    status, document = call_session(after, session)
    assert status == 410
    assert "session_owner_lost" in document
