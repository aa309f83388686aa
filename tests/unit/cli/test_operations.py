# SPDX-License-Identifier: Apache-2.0
"""What an operator can do to a store while no worker runs (C1, C2, C3, R6)."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollout_router.claims import (
    WHY_LENGTH_MAX,
    FileClaimStore,
    Gate,
    Grant,
    LifeLock,
    hold_gate,
    new_nonce,
    read_gate,
    write_gate,
)
from rollout_router.claims.creation import write_format
from rollout_router.claims.layout import read_format
from rollout_router.claims.record import encode_claim, encode_identity
from rollout_router.cli.main import main


def _command(state_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--state-dir", str(state_dir)])


@pytest.fixture
def store(folder: Path) -> FileClaimStore:
    return FileClaimStore.open(folder / "state", service="model")


def _die_with_a_claim(store: FileClaimStore) -> str:
    """A worker that took a rollout and then let go of its life."""
    life = LifeLock.acquire(store, nonce=new_nonce(), socket=str(store.state_dir / "x.sock"))
    store.take("r", life.owner)
    life.close()
    return life.owner.nonce


def test_c3_a_dry_force_ends_as_the_real_one_would(store: FileClaimStore) -> None:
    life = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere")
    taken = store.take("r", life.owner)
    life.close()
    assert isinstance(taken, Grant)
    cases = [
        ("nobody", "1", "has no claim"),
        ("r", "1", "is at claim epoch"),
        ("r", None, f"--expect-epoch {taken.claim.claim_epoch}"),
    ]
    for rollout, epoch, said in cases:
        _assert_refused_alike(store.state_dir, rollout, epoch, said)
    dry = _force(store.state_dir, "r", str(taken.claim.claim_epoch))
    assert dry.exit_code == 0
    assert life.owner.nonce in dry.stdout
    Path(store.path_of("r")).write_bytes(b"")
    _assert_refused_alike(store.state_dir, "r", "1", "leave out --expect-epoch")
    dry = _force(store.state_dir, "r", None)
    assert dry.exit_code == 0
    assert "unreadable" in dry.stdout
    assert Path(store.path_of("r")).exists()
    assert _force(store.state_dir, "r", None, "--yes").exit_code == 0
    assert store.read("r") is None


def _force(state_dir: Path, rollout: str, epoch: str | None, *more: str) -> Result:
    named = () if epoch is None else ("--expect-epoch", epoch)
    return _command(state_dir, "claims", "force", rollout, *named, "--reason", "test", *more)


def _assert_refused_alike(state_dir: Path, rollout: str, epoch: str | None, said: str) -> None:
    dry = _force(state_dir, rollout, epoch)
    done = _force(state_dir, rollout, epoch, "--yes")
    assert (dry.exit_code, dry.stdout) == (4, "")
    assert said in dry.stderr
    # Only what opens a store to change it also warns of where it lies.
    assert (done.exit_code, done.stderr.splitlines()[-1:]) == (4, dry.stderr.splitlines())


READING = ["claims list", "claims verify", "claims reap", "workers list", "admission status"]


@pytest.mark.parametrize("command", [*READING, "claims verify --repair", "claims reap --yes"])
def test_c2_no_command_makes_a_store(folder: Path, command: str) -> None:
    empty = folder / "empty"
    empty.mkdir(mode=0o700)
    done = _command(empty, *command.split())
    assert done.exit_code == 4
    assert "no claim store" in done.stderr
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("command", [*READING, "claims show r", "claims force r --reason x"])
def test_c2_commands_that_read_change_nothing_after_a_boot(
    store: FileClaimStore, command: str
) -> None:
    _die_with_a_claim(store)
    earlier = replace(read_format(store.state_dir), boot_id="earlier")
    write_format(store.state_dir, earlier)
    before = _tree(store.state_dir)
    done = _command(store.state_dir, *command.split())
    assert done.exit_code in {0, 4}
    assert "Traceback" not in done.stderr
    assert _tree(store.state_dir) == before


@pytest.mark.parametrize("part", [".", "owners"])
def test_c1_verify_says_what_a_start_would_refuse(store: FileClaimStore, part: str) -> None:
    (store.state_dir / part).chmod(0o755)
    done = _command(store.state_dir, "claims", "verify")
    assert done.exit_code == 3
    assert "chmod 700" in done.stderr
    assert _command(store.state_dir, "claims", "verify", "--repair").exit_code == 4


def _tree(state_dir: Path) -> dict[str, tuple[int, int]]:
    """Every name, and when its file was last changed in any way."""
    found = ((str(path), path.lstat()) for path in state_dir.rglob("*"))
    return {path: (status.st_ino, status.st_ctime_ns) for path, status in found}


def test_c3_a_dry_reap_after_a_boot_knows_who_is_dead(store: FileClaimStore) -> None:
    """The life lock is held, but the owner file is of another boot: that alone is the proof."""
    life = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere")
    store.take("r", life.owner)
    path = store.state_dir / "owners" / life.owner.nonce
    path.write_bytes(encode_identity(replace(life.identity, boot_id="earlier")))
    write_format(store.state_dir, replace(read_format(store.state_dir), boot_id="earlier"))
    dry = json.loads(_command(store.state_dir, "claims", "reap", "--json").stdout)
    life.close()
    assert (dry["freed"], dry["owners"]) == (["r"], [life.owner.nonce])


def test_c3_reap_names_the_sockets_that_go(store: FileClaimStore, folder: Path) -> None:
    nonce = new_nonce()
    path = folder / f"{nonce}.sock"
    life = LifeLock.acquire(store, nonce=nonce, socket=str(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    life.close()
    assert "sockets: 1" in _command(store.state_dir, "claims", "reap").stdout
    assert path.exists()
    done = json.loads(_command(store.state_dir, "claims", "reap", "--json", "--yes").stdout)
    assert (done["owners"], done["sockets"]) == ([nonce], [str(path)])
    assert not path.exists()


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


def test_c2_a_damaged_epoch_file_is_found_and_repaired_upwards(store: FileClaimStore) -> None:
    owner = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere")
    granted = store.take("r", owner.owner)
    stripe = next(p for p in store.state_dir.glob("claims/*") if list(p.iterdir())).name
    (store.state_dir / "epochs" / stripe).write_bytes(b"damaged")
    found = _command(store.state_dir, "claims", "verify")
    assert found.exit_code == 3
    assert f"epochs/{stripe}" in found.stderr
    assert _command(store.state_dir, "claims", "verify", "--repair").exit_code == 0
    again = store.take("r", owner.owner)
    owner.close()
    assert again.claim.claim_epoch > granted.claim.claim_epoch  # type: ignore[union-attr]  # granted


def test_r6_a_reason_that_is_too_long_is_an_error_of_usage(store: FileClaimStore) -> None:
    why = "a" * (WHY_LENGTH_MAX + 1)
    done = _command(store.state_dir, "admission", "close", "--why", why)
    assert done.exit_code == 2
    assert f"at most {WHY_LENGTH_MAX} characters" in done.stderr
    assert "Traceback" not in done.stderr
    assert read_gate(store.state_dir).open


def test_r6_the_page_closes_and_opens_the_gate_from_code(folder: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "cli.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    FileClaimStore.open(folder / "claims", service="model")

    subprocess.run([sys.executable, "-c", example], cwd=folder, check=True)

    gate = read_gate(folder / "claims")
    assert (gate.open, gate.by) == (True, "nightly")


def test_admission_without_a_store_is_refused(folder: Path) -> None:
    done = _command(folder / "none", "admission", "close", "--why", "x")
    assert done.exit_code == 4
    assert not (folder / "none").exists()


@pytest.fixture
def lost(store: FileClaimStore) -> Iterator[str]:
    """A living worker with a rollout and a session that it lost 25 hours ago; its nonce."""
    life = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere")
    store.take("r", life.owner)
    grant = store.take("s", life.owner, kind="session")
    assert isinstance(grant, Grant)
    assert store.lose(grant, reason="its worker left\x1b[2J")
    before = datetime.now(UTC) - timedelta(hours=25)
    at = before.isoformat(timespec="microseconds").replace("+00:00", "Z")
    tombstone = store.read("s")
    assert tombstone
    Path(store.path_of("s")).write_bytes(encode_claim(replace(tombstone, at=at)))
    yield life.owner.nonce
    life.close()


@pytest.mark.usefixtures("lost")
def test_r3_a_reap_forgets_no_lost_session_unless_it_is_told_how_old(store: FileClaimStore) -> None:
    def reap(*more: str, **environment: str) -> list[str]:
        arguments = ["claims", "reap", "--json", *more, "--state-dir", str(store.state_dir)]
        done = CliRunner().invoke(main, arguments, env=environment)
        assert done.exit_code == 0, done.output
        forgotten: list[str] = json.loads(done.stdout)["forgotten"]
        return forgotten

    assert reap() == reap("--yes") == reap("--yes", "--tombstones-older-than", "26h") == []
    assert reap(ROLLOUT_ROUTER_TOMBSTONES_OLDER_THAN="1d") == ["s"]
    assert reap("--tombstones-older-than", "999999999d") == []
    assert reap("--tombstones-older-than", "1d") == ["s"]
    assert store.read("s")
    assert reap("--tombstones-older-than", "1d", "--yes") == ["s"]
    assert store.read("s") is None
    assert store.read("r")


def test_r3_lost_sessions_are_not_freed_with_the_claims_of_a_missing_owner(
    store: FileClaimStore, lost: str
) -> None:
    both = ("--owner-missing", lost, "--tombstones-older-than", "1d")
    done = _command(store.state_dir, "claims", "reap", *both)
    assert (done.exit_code, "exclude each other" in done.stderr) == (2, True)


def test_r3_a_lost_session_is_no_claim_of_a_worker(store: FileClaimStore, lost: str) -> None:
    listed = json.loads(_command(store.state_dir, "workers", "list", "--json").stdout)
    assert [(one["id"], one["claims"]) for one in listed["workers"]] == [(lost, 1)]
    rows = json.loads(_command(store.state_dir, "claims", "list", "--json").stdout)["claims"]
    assert {row["rollout_id"]: row["verdict"] for row in rows} == {"r": "alive", "s": None}
    for verdict in ("alive", "dead", "unknown"):
        only = _command(store.state_dir, "claims", "list", "--json", "--verdict", verdict)
        found = {row["rollout_id"] for row in json.loads(only.stdout)["claims"]}
        assert found == ({"r"} if verdict == "alive" else set())
    table = _command(store.state_dir, "claims", "list").stdout
    assert "2 claims: owners 1 alive; 1 lost sessions" in table


def test_r3_show_says_why_and_when_a_session_was_lost(store: FileClaimStore, lost: str) -> None:
    (store.state_dir / "owners" / lost).unlink()
    document = json.loads(_command(store.state_dir, "claims", "show", "s", "--json").stdout)
    claim, evidence = document["claim"], document["evidence"]
    assert (claim["verdict"], claim["lost_because"]) == (None, "its worker left\x1b[2J")
    when, why = claim["claimed_at"], claim["lost_because"]
    assert evidence["reason"] == f"the session was lost at {when}: {why}"
    assert evidence["age_s"] > timedelta(hours=24).total_seconds()
    assert [evidence[key] for key in ("connect", "life_lock", "owner_file")] == [None] * 3
    text = _command(store.state_dir, "claims", "show", "s").stdout
    assert "owner file" not in text
    assert "its worker left\\x1b[2J" in text
    assert "\x1b[2J" not in text


def test_c1_a_repair_is_refused_while_a_worker_lives_and_a_lock_file_is_missing(
    store: FileClaimStore,
) -> None:
    life = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere")
    (store.state_dir / "locks" / "07").unlink()
    done = _command(store.state_dir, "claims", "verify", "--repair")
    assert (done.exit_code, life.owner.nonce in done.stderr) == (4, True)
    life.close()
    assert _command(store.state_dir, "claims", "verify", "--repair").exit_code == 3  # the dead one
    assert (store.state_dir / "locks" / "07").exists()


def test_c5_nothing_that_a_gate_says_acts_on_a_terminal(store: FileClaimStore) -> None:
    write_gate(store.state_dir, Gate(open=False, by="\x1b]0;x\x07", why="a\nb\x1b[2J"))
    done = _command(store.state_dir, "admission", "status")
    assert done.stdout == "closed by \\x1b]0;x\\x07: a\\nb\\x1b[2J\n"
    closed = _command(store.state_dir, "admission", "close", "--why", "\x1b[2J")
    assert closed.stdout == "admission is closed: \\x1b[2J\n"


def test_r6_status_says_who_holds_the_gate_and_for_how_long(store: FileClaimStore) -> None:
    def said() -> tuple[str, dict[str, object]]:
        document = _command(store.state_dir, "admission", "status", "--json").stdout
        return _command(store.state_dir, "admission", "status").stdout, json.loads(document)

    hold_gate(store.state_dir, by="nightly", why="a checkpoint", budget_s=3600)
    text, document = said()
    assert re.fullmatch(r"closed by nightly for \d+ s more: a checkpoint\n", text)
    left_s = document.pop("seconds_left")
    assert isinstance(left_s, float)
    assert 0 < left_s <= 3600
    assert document == {"schema": 1, "open": False, "by": "nightly", "why": "a checkpoint"}

    assert _command(store.state_dir, "admission", "close", "--why", "upkeep").exit_code == 0
    assert said() == (
        "closed by operator: upkeep\n",
        {**document, "by": "operator", "why": "upkeep", "seconds_left": None},
    )
    assert _command(store.state_dir, "admission", "open").exit_code == 0
    assert said() == (
        "open\n",
        {"schema": 1, "open": True, "by": "operator", "why": "", "seconds_left": None},
    )


def test_c5_no_path_that_ends_a_command_acts_on_a_terminal(folder: Path) -> None:
    done = _command(folder / "\x1b[2Jnone", "claims", "list")
    assert (done.exit_code, "\x1b" in done.stderr) == (4, False)
    assert "\\x1b[2Jnone" in done.stderr


@pytest.mark.parametrize("wait", ["inf", "nan", "-1", "3601"])
@pytest.mark.parametrize("command", ["workers drain x", "admission close --why x"])
def test_r6_a_wait_that_is_none_is_an_error_of_usage(
    store: FileClaimStore, command: str, wait: str
) -> None:
    done = _command(store.state_dir, *command.split(), "--wait", wait)
    assert done.exit_code == 2
    assert read_gate(store.state_dir).open
