# SPDX-License-Identifier: Apache-2.0
"""The commands of a checkpoint, each a process of its own: what one leaves is what the next has."""

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from support.deployment import Deployment, asked
from support.gateway import COMMAND

from rollout_router.checkpoint.journal import Journal
from rollout_router.claims import read_gate


def command(*arguments: str | Path, code: int = 0) -> Any:
    """The document of a command, or what it says to people."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stderr


def test_a_checkpoint_moves_the_sessions_of_a_server_to_another(folder: Path) -> None:
    with closing(Deployment(folder / "old")) as old:
        old.act(asked, "r1")
        old.play("waiting", 1, ends=True)
        rows, outbox = old.rows("r1"), old.outbox("waiting")
    at = ("--journal", folder / "old" / "journal", "--state-dir", folder / "old" / "state")
    archive = ("--archive", folder / "old" / "archives")

    prepared = command("checkpoint", "prepare", "c1", *at, "--budget-seconds", "60", "--json")
    assert (prepared["phase"], prepared["blockers"]) == ("prepared", [])
    said = command("checkpoint", "prepare", "c2", *at, code=4)
    assert said == (
        "rollout-router: checkpoint c2: checkpoint c1 holds the gate [checkpoint_busy]\n"
    )
    manifest = command("checkpoint", "commit", "c1", *at, *archive, "--json")["manifest"]
    assert command("checkpoint", "resume", "c1", *at, "--json")["phase"] == "resumed"
    assert read_gate(folder / "old" / "state").open
    status = command("checkpoint", "status", *at, "--json")
    assert [one["phase"] for one in status["checkpoints"]] == ["resumed"]

    new = folder / "new" / "journal"
    new.parent.mkdir(0o700)
    named = ("--journal", new, "--state-dir", folder / "new" / "state", "--run", "run-1")
    restored = command("checkpoint", "restore", "c1", *named, *archive, "--json")
    assert restored["rollouts"] == {"open": 1, "completed": 1}
    assert not read_gate(folder / "new" / "state").open
    shown = command("sessions", "show", "r1", "--journal", new, "--json")
    assert (shown["session"]["claim_epoch"], shown["damage"]) == (0, None)
    assert len(shown["operations"]) == len(rows)
    with closing(Journal.existing(new)) as journal:
        assert journal.store_id not in (None, manifest["store_id"])
    with closing(Deployment(folder / "new")) as server:
        assert (server.rows("r1"), server.outbox("waiting")) == (rows, outbox)
