# SPDX-License-Identifier: Apache-2.0
"""What an operator can do to a store, with workers and without, and what a damaged one says."""

import json
import subprocess
from pathlib import Path

import pytest
from support.conversations import body_of, conversation
from support.gateway import COMMAND, Gateway

from rollout_router.claims import FileClaimStore, LifeLock, new_nonce

BODY = body_of(conversation(2))
ATTEMPTS_MAX = 500


def _command(state_dir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, *arguments, "--state-dir", str(state_dir)],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def store(folder: Path) -> FileClaimStore:
    return FileClaimStore.open(folder / "state", service="model")


def _die_with_a_claim(store: FileClaimStore) -> str:
    """A worker that took a rollout and then let go of its life."""
    life = LifeLock.acquire(store, nonce=new_nonce(), socket=str(store.state_dir / "x.sock"))
    store.take("r", life.owner)
    life.close()
    return life.owner.nonce


def test_c3_force_takes_a_rollout_from_a_living_owner(gateway: Gateway) -> None:
    before = gateway.post("r", BODY)
    epoch = before.headers["rollout-claim-epoch"]
    reason = ("--reason", "test")
    dry = _command(gateway.state_dir, "claims", "force", "r", "--expect-epoch", epoch, *reason)
    assert dry.returncode == 0
    assert gateway.claims()["r"]["claim_epoch"] == int(epoch)
    wrong = _command(
        gateway.state_dir, "claims", "force", "r", "--expect-epoch", "1", *reason, "--yes"
    )
    assert wrong.returncode == 4
    assert gateway.claims()["r"]["claim_epoch"] == int(epoch)
    done = _command(
        gateway.state_dir, "claims", "force", "r", "--expect-epoch", epoch, *reason, "--yes"
    )
    assert done.returncode == 0
    after = gateway.post("r", BODY)
    assert after.status_code == 200
    assert int(after.headers["rollout-claim-epoch"]) > int(epoch)


def test_c3_reap_frees_the_rollouts_of_the_dead_and_is_a_dry_run_first(
    store: FileClaimStore,
) -> None:
    nonce = _die_with_a_claim(store)
    dry = json.loads(_command(store.state_dir, "claims", "reap", "--json").stdout)
    assert (dry["done"], dry["freed"]) == (False, ["r"])
    assert store.read("r") is not None
    done = json.loads(_command(store.state_dir, "claims", "reap", "--json", "--yes").stdout)
    assert (done["done"], done["freed"]) == (True, ["r"])
    assert store.read("r") is None
    again = json.loads(_command(store.state_dir, "claims", "reap", "--json", "--yes").stdout)
    assert nonce in {*done["owners"], *again["owners"]}


def test_c3_reap_leaves_the_living_alone(shared: Gateway) -> None:
    shared.post("living", BODY)
    done = _command(shared.state_dir, "claims", "reap", "--json", "--yes")
    assert json.loads(done.stdout)["freed"] == []
    assert shared.claims()["living"]["verdict"] == "alive"


def test_c2_a_damaged_epoch_file_is_found_and_repaired_upwards(store: FileClaimStore) -> None:
    owner = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere")
    granted = store.take("r", owner.owner)
    stripe = next(p for p in store.state_dir.glob("claims/*") if list(p.iterdir())).name
    (store.state_dir / "epochs" / stripe).write_bytes(b"damaged")
    found = _command(store.state_dir, "claims", "verify")
    assert found.returncode == 3
    assert f"epochs/{stripe}" in found.stderr
    assert _command(store.state_dir, "claims", "verify", "--repair").returncode == 0
    again = store.take("r", owner.owner)
    owner.close()
    assert again.claim.claim_epoch > granted.claim.claim_epoch  # type: ignore[union-attr]  # granted


@pytest.mark.parametrize("command", ["claims list", "workers list", "claims verify", "claims reap"])
def test_c5_a_store_that_lost_a_stripe_is_named_without_a_traceback(
    store: FileClaimStore, command: str
) -> None:
    (store.state_dir / "claims" / "a5").rmdir()
    done = _command(store.state_dir, *command.split())
    assert done.returncode in {1, 3}
    assert "a5" in done.stderr
    assert "Traceback" not in done.stderr


def test_r6_admission_is_closed_and_opened_by_command(gateway: Gateway) -> None:
    gateway.post("r", BODY)
    closed = _command(gateway.state_dir, "admission", "close", "--why", "maintenance")
    assert closed.returncode == 0
    refused = _first_answer(gateway, 503)
    assert refused["error"]["code"] == "admission_closed"
    assert "maintenance" in refused["error"]["message"]
    status = gateway.json("admission", "status")
    assert (status["open"], status["why"]) == (False, "maintenance")
    assert _command(gateway.state_dir, "admission", "open").returncode == 0
    _first_answer(gateway, 200)


def test_admission_without_a_store_is_refused(folder: Path) -> None:
    done = _command(folder / "none", "admission", "close", "--why", "x")
    assert done.returncode == 4
    assert not (folder / "none").exists()


def _first_answer(gateway: Gateway, status: int) -> dict[str, dict[str, str]]:
    """Call until workers have seen the gate, each call being an event of its own."""
    for _ in range(ATTEMPTS_MAX):
        answer = gateway.post("r", BODY)
        if answer.status_code == status:
            document: dict[str, dict[str, str]] = answer.json()
            return document
    raise AssertionError(f"no answer was {status}")
