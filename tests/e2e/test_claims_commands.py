# SPDX-License-Identifier: Apache-2.0
"""The commands about claims while workers run, while none runs, and on very many claims."""

import json
import os
import pty
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.conversations import body_of, conversation
from support.gateway import COMMAND, PATIENCE_S, Gateway, invoked

from rollout_router.claims import Claim, FileClaimStore, Grant, LifeLock, new_nonce
from rollout_router.claims.epochs import encode_highest
from rollout_router.claims.names import stripe_of
from rollout_router.claims.record import encode_claim

BODY = body_of(conversation(2))
MANY = 100_000
VERIFIED = 10
MEMORY = Path("/dev/shm")  # noqa: S108 - a test makes a private directory in it
READING = [
    *("claims list", "claims show r1", "claims reap", "claims verify"),
    *("sessions list", "workers list"),
]


def command(state_dir: Path, *arguments: str) -> Result:
    return invoked(*arguments, "--state-dir", str(state_dir))


def document(state_dir: Path, *arguments: str) -> dict[str, Any]:
    done = command(state_dir, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("reading", READING)
def test_c3_commands_that_read_work_beside_workers(shared: Gateway, reading: str) -> None:
    assert shared.post("r1", BODY).status_code == 200
    before = shared.claims()["r1"]
    done = subprocess.run(
        [COMMAND, *reading.split(), "--state-dir", str(shared.state_dir)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shared.claims()["r1"] == before
    assert shared.post("r1", BODY).headers["rollout-claim-epoch"] == str(before["claim_epoch"])


def test_c3_show_finds_the_process_of_a_living_owner(shared: Gateway) -> None:
    owner = shared.post("r2", BODY).headers["rollout-worker"]
    shown = document(shared.state_dir, "claims", "show", "r2")
    evidence = shown["evidence"]
    assert (shown["claim"]["worker_id"], shown["claim"]["verdict"]) == (owner, "alive")
    assert evidence["process"]["state"] == "running"
    assert "rollout_router" in evidence["process"]["command"]
    assert [one["pid"] for one in evidence["owner_file"]["holders"]] == [shown["claim"]["pid"]]


def test_c1_nothing_is_wrong_while_workers_take_and_release(serve: Callable[..., Gateway]) -> None:
    """With room for one rollout a worker, each call is a grant and a release."""
    gateway = serve("--history-rollouts", "1")
    done, answered, ended, found = threading.Event(), threading.Semaphore(0), [], []

    def load() -> None:
        with gateway.client() as client:
            for n in range(10_000):
                if done.is_set():
                    break
                client.post(f"/sessions/load-{n}/v1/responses", content=BODY)
                answered.release()
            ended.append(n)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(VERIFIED):
            assert answered.acquire(timeout=PATIENCE_S)
            found.append(command(gateway.state_dir, "claims", "verify"))
    finally:
        done.set()
        thread.join()
    assert [(one.exit_code, one.stderr) for one in found] == [(0, "")] * VERIFIED
    assert ended[0] >= VERIFIED


def test_c3_commands_work_while_no_worker_runs(gateway: Gateway) -> None:
    for rollout in ("r1", "r2"):
        assert gateway.post(rollout, BODY).status_code == 200
    gateway.kill_all()
    rows = document(gateway.state_dir, "claims", "list", "--verdict", "dead")["claims"]
    assert {row["rollout_id"] for row in rows} == {"r1", "r2"}
    shown = document(gateway.state_dir, "claims", "show", "r1")["evidence"]
    assert (shown["life_lock"], shown["process"]["state"]) == ("free", "gone")
    epoch = str(document(gateway.state_dir, "claims", "show", "r1")["claim"]["claim_epoch"])
    named = ("r1", "--expect-epoch", epoch, "--reason", "test")
    assert document(gateway.state_dir, "claims", "force", *named, "--yes")["done"]
    assert document(gateway.state_dir, "claims", "reap", "--yes")["freed"] == ["r2"]
    assert document(gateway.state_dir, "claims", "verify")["damaged"] == []
    assert document(gateway.state_dir, "workers", "list")["workers"] == []


def test_c3_a_living_owner_whose_file_is_gone_is_fenced_by_an_operator(gateway: Gateway) -> None:
    """It is stopped, so that it cannot notice and leave by itself first."""
    owner = gateway.post("r", BODY).headers["rollout-worker"]
    before = gateway.claims()["r"]
    os.kill(before["pid"], signal.SIGSTOP)
    try:
        (gateway.state_dir / "owners" / owner).unlink()
        wrong = command(gateway.state_dir, "claims", "verify")
        assert wrong.exit_code == 3
        assert f"claims reap --owner-missing {owner} --yes" in wrong.stderr
        free = ("claims", "reap", "--owner-missing", owner)
        assert document(gateway.state_dir, *free)["freed"] == ["r"]
        assert document(gateway.state_dir, *free, "--yes")["freed"] == ["r"]
        assert gateway.claims() == {}
    finally:
        os.kill(before["pid"], signal.SIGCONT)


def test_c3_show_names_a_stopped_process_that_holds_the_stripe(gateway: Gateway) -> None:
    gateway.post("r", BODY)
    lock = gateway.state_dir / "locks" / stripe_of("r")
    program = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        ["python3", "-c", program, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        stripe = document(gateway.state_dir, "claims", "show", "r")["evidence"]["stripe_lock"]
        holder.send_signal(signal.SIGCONT)
        holder.communicate()
    assert [one["pid"] for one in stripe["holders"]] == [holder.pid]
    assert "LOCK_EX" in stripe["holders"][0]["command"]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[FileClaimStore]:
    """A store with 100,000 claims of a dead worker, written as grants would; in memory."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        store = FileClaimStore.open(Path(folder) / "state", service="model")
        life = LifeLock.acquire(store, nonce=new_nonce(), socket=f"{folder}/x.sock")
        taken = store.take("first", life.owner)
        assert isinstance(taken, Grant)
        for n in range(MANY - 1):
            _write(store, replace(taken.claim, rollout_id=f"r{n}"))
        for path in (store.state_dir / "epochs").iterdir():
            path.write_bytes(encode_highest(taken.claim.claim_epoch))
        life.close()
        yield store


def _write(store: FileClaimStore, claim: Claim) -> None:
    path = Path(store.path_of(claim.rollout_id))
    path.touch(0o600)
    path.write_bytes(encode_claim(claim))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_c3_very_many_claims_are_read_under_a_bar(many: FileClaimStore) -> None:
    for reading, what, count in (
        ("list", "claims", MANY),
        ("verify", "damaged", 0),
        ("reap", "freed", MANY),
    ):
        found, said = _at_a_terminal("claims", reading, "--json", state_dir=many.state_dir)
        assert len(found[what]) == count
        assert f"/{MANY}" in said


def _at_a_terminal(*arguments: str, state_dir: Path) -> tuple[dict[str, Any], str]:
    """What a command prints, and what it says on a stderr that is a terminal."""
    terminal, its_end = pty.openpty()
    said: list[bytes] = []
    with subprocess.Popen(
        [COMMAND, *arguments, "--state-dir", str(state_dir)],
        stdout=subprocess.PIPE,
        stderr=its_end,
    ) as process:
        os.close(its_end)
        reader = threading.Thread(target=_read_to_the_end, args=(terminal, said))
        reader.start()
        assert process.stdout
        found: dict[str, Any] = json.loads(process.stdout.read())
    reader.join()
    os.close(terminal)
    assert process.returncode == 0
    return found, b"".join(said).decode()


def _read_to_the_end(terminal: int, said: list[bytes]) -> None:
    while True:
        try:
            said.append(os.read(terminal, 1 << 16))
        except OSError:  # EIO: nobody writes to this terminal any more
            return
