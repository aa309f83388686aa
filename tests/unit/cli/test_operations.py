# SPDX-License-Identifier: Apache-2.0
"""What an operator can do to a store while no worker runs (C1, C2, C3, R6)."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollout_router.claims import (
    WHY_LENGTH_MAX,
    FileClaimStore,
    Grant,
    LifeLock,
    new_nonce,
    read_gate,
)
from rollout_router.claims.layout import read_format, write_format
from rollout_router.claims.record import encode_identity
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


def test_admission_without_a_store_is_refused(folder: Path) -> None:
    done = _command(folder / "none", "admission", "close", "--why", "x")
    assert done.exit_code == 4
    assert not (folder / "none").exists()
