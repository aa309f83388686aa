# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: one each, gone when nobody is in it, never while anybody is."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_router.integrations import run_folder
from rollout_router.integrations.run_folder import join_run, leave_run, make_run

JOIN = """
import sys
from pathlib import Path
from rollout_router.integrations.run_folder import join_run
join_run(Path(sys.argv[1]))
print("joined", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_folder, "PLACES", (folder / "missing", folder))
    return folder


def test_a_folder_is_private_and_named_by_its_service(place: Path) -> None:
    folder = make_run("a/service with a name " + "x" * 99)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent == place
    assert folder.name.startswith("rollout-router-run.a-service-with-a-name-xxx")
    assert len(folder.name) < 70
    leave_run(folder)


def test_the_next_run_removes_what_a_killed_one_left_and_spares_one_that_lives(
    place: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN, str(_left(place, "rollout-router-run.living"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        _left(place, "rollout-router-run.over")
        _left(place, "somebody else's")
        (place / "rollout-router-run.link").symlink_to(place / "somebody else's")
        folder = make_run("policy")
        assert {path.name for path in place.iterdir()} == {
            *("rollout-router-run.living", "rollout-router-run.link", "somebody else's"),
            folder.name,
        }
    leave_run(folder)
    leave_run(make_run("policy"))  # the living one is over by now
    assert {path.name for path in place.iterdir()} == {
        *("rollout-router-run.link", "somebody else's")
    }


def test_a_folder_outlives_its_maker_while_a_worker_is_in_it() -> None:
    folder = make_run("policy")
    command = [sys.executable, "-c", JOIN, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"joined\n"
        leave_run(folder)
        assert folder.exists()


def test_a_run_that_is_over_cannot_be_joined() -> None:
    folder = make_run("policy")
    leave_run(folder)
    with pytest.raises(FileNotFoundError):
        join_run(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_the_folder_of_another_user_is_spared_even_by_root(place: Path) -> None:
    theirs = _left(place, "rollout-router-run.theirs")
    os.chown(theirs, 54321, 54321)
    leave_run(make_run("policy"))
    assert list(place.iterdir()) == [theirs]


@pytest.fixture
def removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The first folder that is joined is removed by another run, between its open and its lock."""
    gone: list[Path] = []
    lock = fcntl.flock

    def lock_late(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not gone:
            gone.extend(place.iterdir())
            run_folder._remove_if_over(gone[0])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    return gone


def test_a_run_that_ends_while_its_lock_is_waited_for_cannot_be_joined(
    place: Path, removed: list[Path]
) -> None:
    folder = _left(place, "rollout-router-run.ending")
    for _ in range(2):  # nothing is kept of the first try
        with pytest.raises(FileNotFoundError):
            join_run(folder)
    assert removed == [folder]


def test_a_new_folder_that_another_run_takes_for_an_old_one_is_made_again(
    place: Path, removed: list[Path]
) -> None:
    folder = make_run("policy")
    assert list(place.iterdir()) == [folder]
    assert folder not in removed
    leave_run(folder)
    assert list(place.iterdir()) == []


def test_without_a_place_it_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "PLACES", (Path("/no/such/place"),))
    with pytest.raises(OSError, match="give state_dir and run_dir"):
        make_run("policy")


def _left(place: Path, name: str) -> Path:
    folder = place / name
    (folder / "state").mkdir(parents=True)
    return folder
