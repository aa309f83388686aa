# SPDX-License-Identifier: Apache-2.0
"""What an operator can do to a store, with workers and without, and what a damaged one says."""

import json
from pathlib import Path

import httpx
from click.testing import Result
from support.conversations import body_of, conversation
from support.gateway import Gateway, invoked, wait_until

BODY = body_of(conversation(2))


def _command(state_dir: Path, *arguments: str) -> Result:
    return invoked(*arguments, "--state-dir", str(state_dir))


def test_c3_force_takes_a_rollout_from_a_living_owner(gateway: Gateway) -> None:
    before = gateway.post("r", BODY)
    epoch = before.headers["rollout-claim-epoch"]
    reason = ("--reason", "test")
    dry = _command(gateway.state_dir, "claims", "force", "r", "--expect-epoch", epoch, *reason)
    assert dry.exit_code == 0
    assert gateway.claims()["r"]["claim_epoch"] == int(epoch)
    wrong = _command(
        gateway.state_dir, "claims", "force", "r", "--expect-epoch", "1", *reason, "--yes"
    )
    assert wrong.exit_code == 4
    assert gateway.claims()["r"]["claim_epoch"] == int(epoch)
    done = _command(
        gateway.state_dir, "claims", "force", "r", "--expect-epoch", epoch, *reason, "--yes"
    )
    assert done.exit_code == 0
    after = gateway.post("r", BODY)
    assert after.status_code == 200
    assert int(after.headers["rollout-claim-epoch"]) > int(epoch)


def test_c3_reap_leaves_the_living_alone(shared: Gateway) -> None:
    shared.post("living", BODY)
    done = _command(shared.state_dir, "claims", "reap", "--json", "--yes")
    assert json.loads(done.stdout)["freed"] == []
    assert shared.claims()["living"]["verdict"] == "alive"


def test_r6_admission_is_closed_and_opened_by_command(gateway: Gateway) -> None:
    gateway.post("r", BODY)
    closed = _command(gateway.state_dir, "admission", "close", "--why", "maintenance")
    assert closed.exit_code == 0
    refused = _first_answer(gateway, 503)
    assert refused["error"]["code"] == "admission_closed"
    assert "maintenance" in refused["error"]["message"]
    status = gateway.json("admission", "status")
    assert (status["open"], status["why"]) == (False, "maintenance")
    assert _command(gateway.state_dir, "admission", "open").exit_code == 0
    _first_answer(gateway, 200)


def _first_answer(gateway: Gateway, status: int) -> dict[str, dict[str, str]]:
    """Call until workers have seen the gate, each call being an event of its own."""
    answers: list[httpx.Response] = []

    def answered() -> bool:
        answers.append(gateway.post("r", BODY))
        return answers[-1].status_code == status

    wait_until(answered, f"an answer is {status}")
    document: dict[str, dict[str, str]] = answers[-1].json()
    return document
