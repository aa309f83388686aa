# SPDX-License-Identifier: Apache-2.0
"""No command ends with a traceback, whatever was done to a store (C5, C7).

Each part of a store in turn, in each way; then every command, those that change it last.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollout_router.claims import FileClaimStore, Gate, LifeLock, new_nonce, write_gate
from rollout_router.cli.flags import ExitCode
from rollout_router.cli.main import main

NOBODY = 65534
HUGE_BYTES = 1 << 40  # sparse: whoever reads it all fails

COMMANDS = [
    "claims list",
    "claims list --json",
    "claims list --json --verdict dead --older-than 1s",
    "claims show r",
    "claims show r --json",
    "claims reap --json",
    "claims reap --owner-missing {gone} --json",
    "claims force r --reason x --json",
    "claims force r --reason x --expect-epoch {epoch}",
    "claims verify",
    "claims verify --json",
    "workers list",
    "workers list --json",
    "sessions list --json",
    "sessions show s --json",
    "admission status",
    "admission status --json",
    "claims reap --owner-missing {gone} --json --yes",
    "claims reap --json --yes",
    "claims force r --reason x --yes --json",
    "claims force r --reason x --expect-epoch {epoch} --yes",
    "claims verify --repair --json",
    "claims list --json",
]


class Broken:
    """A store with a claim of a dead worker and of one whose file is gone, to be broken."""

    def __init__(self, root: Path) -> None:
        self.store = FileClaimStore.open(root / "state", service="model")
        self.root = self.store.state_dir
        dead, gone, alive = (self._worker(root) for _ in range(3))
        taken = self.store.take("r", dead.owner)
        assert not hasattr(taken, "current")
        self.store.take("orphan", gone.owner)
        self.store.take("live", alive.owner)
        self.alive = alive
        dead.close()
        gone.close(remove=True)
        write_gate(self.root, Gate(open=True, by="operator", why=""))
        claim = self.store.read("r")
        assert claim
        self.names = {"gone": gone.owner.nonce, "epoch": str(claim.claim_epoch)}
        stripe = Path(self.store.path_of("r")).parent.name
        self.parts = {
            "claim": Path(self.store.path_of("r")),
            "stripe": self.root / "claims" / stripe,
            "lock": self.root / "locks" / stripe,
            "epoch": self.root / "epochs" / stripe,
            "owner": self.root / "owners" / dead.owner.nonce,
        }

    def _worker(self, root: Path) -> LifeLock:
        nonce = new_nonce()
        return LifeLock.acquire(self.store, nonce=nonce, socket=f"{root}/{nonce}.sock")

    def path(self, part: str) -> Path:
        return self.parts.get(part, self.root / part)


@pytest.fixture
def broken(folder: Path) -> Iterator[Broken]:
    one = Broken(folder)
    yield one
    one.alive.close()


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def truncate(path: Path) -> None:
    if path.is_dir():
        for one in sorted(path.iterdir())[:1]:
            remove(one)
    else:
        os.truncate(path, path.stat().st_size // 2)


def fill(path: Path) -> None:
    if path.is_dir():
        (path / os.fsdecode(b"\x1b[2J\xff")).write_bytes(b"\0\xff" * 9000)
    else:
        path.write_bytes(b"\xff\0{}" * 99)


def huge(path: Path) -> None:
    as_file(path)
    os.truncate(path, HUGE_BYTES)


def nested(path: Path) -> None:
    as_file(path)
    path.write_bytes(b"[" * 60_000)


def open_up(path: Path) -> None:
    path.chmod(0o777)


def as_file(path: Path) -> None:
    remove(path)
    path.write_bytes(b"x")


def as_directory(path: Path) -> None:
    remove(path)
    path.mkdir()


def as_link_to_itself(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def as_link_to_nothing(path: Path) -> None:
    remove(path)
    path.symlink_to("/nowhere/at/all")


def as_link_elsewhere(path: Path) -> None:
    moved = path.with_name(path.name + ".moved")
    path.rename(moved)
    path.symlink_to(moved)


def as_fifo(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


EVERYDAY = [remove, fill, as_directory, as_link_to_itself]
LONG = [
    *(truncate, huge, nested, open_up, as_file),
    *(as_link_to_nothing, as_link_elsewhere, as_fifo),
]
PARTS = [
    *("FORMAT", "gate", "locks", "owners", "epochs", "claims"),
    *("locks/format", "lock", "epoch", "stripe", "claim", "owner"),
]


def run(broken: Broken, command: str) -> Result:
    arguments = command.format(**broken.names).split()
    return CliRunner().invoke(main, [*arguments, "--state-dir", str(broken.root)])


def check_every_command(broken: Broken) -> None:
    for command in COMMANDS:
        done = run(broken, command)
        crashed = done.exception is not None and not isinstance(done.exception, SystemExit)
        assert not crashed, (command, done.exc_info)
        assert done.exit_code in set(ExitCode) - {ExitCode.USAGE}, (command, done.output)
        assert "Traceback" not in done.output
        assert "\x1b[2J" not in done.output
        if done.exit_code != ExitCode.FINE:
            assert done.stderr.startswith("rollout-router: "), command
        if "--json" in command and done.exit_code in {ExitCode.FINE, ExitCode.DAMAGE_FOUND}:
            json.loads(done.stdout)


@pytest.mark.parametrize(
    "damage",
    [*EVERYDAY, *(pytest.param(one, marks=pytest.mark.long) for one in LONG)],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.parametrize("part", PARTS)
def test_c5_no_damage_ends_a_command_with_a_traceback(
    broken: Broken, part: str, damage: Callable[[Path], None]
) -> None:
    damage(broken.path(part))
    check_every_command(broken)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything that a command imports: where that lies may be closed to another user."""
    whole = Broken(tmp_path_factory.mktemp("whole"))
    check_every_command(whole)
    whole.alive.close()


@pytest.fixture
def unprivileged(folder: Path, imported: None) -> Iterator[Broken]:  # noqa: ARG001 - used by being run first
    """A store of an ordinary user, which this process is until the test ends."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user and comes back")
    os.chown(folder, NOBODY, -1)
    os.seteuid(NOBODY)
    try:
        one = Broken(folder)
        yield one
        one.alive.close()
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("part", PARTS)
def test_c7_what_is_closed_to_a_user_ends_no_command_with_a_traceback(
    unprivileged: Broken, part: str
) -> None:
    path = unprivileged.path(part)
    path.chmod(0)
    check_every_command(unprivileged)
    if path.exists():  # an unreadable claim was forced away
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert run(unprivileged, "claims list").exit_code == ExitCode.FINE


@pytest.mark.parametrize("damage", [truncate, fill, huge, as_directory, as_fifo, remove])
def test_c2_a_damaged_format_is_refused_by_every_command(
    broken: Broken, damage: Callable[[Path], None]
) -> None:
    damage(broken.root / "FORMAT")
    for command in COMMANDS:
        done = run(broken, command)
        assert done.exit_code == ExitCode.REFUSED, command
        assert "FORMAT" in done.stderr or "no claim store" in done.stderr


@pytest.mark.parametrize("damage", [remove, fill, as_directory, as_fifo])
def test_c5_the_other_rollouts_of_a_damaged_store_are_listed(
    broken: Broken, damage: Callable[[Path], None]
) -> None:
    damage(broken.path("claim"))
    listed = run(broken, "claims list --json")
    document = json.loads(listed.stdout)
    assert {"orphan", "live"} <= {claim["rollout_id"] for claim in document["claims"]}
    if damage is not remove:
        assert listed.exit_code == ExitCode.DAMAGE_FOUND
        assert [bad["rollout_id"] for bad in document["unreadable"]] == ["r"]
