# SPDX-License-Identifier: Apache-2.0
"""What a service would find: an application, a store, a secret."""

from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import FileClaimStore, Gate, LifeLock, hold_gate, write_gate
from rollout_router.doctor import Status, service
from rollout_router.serve.config import ServeConfig


def config(folder: Path, **settings: Any) -> ServeConfig:
    return ServeConfig(**{"state_dir": folder / "state", "run_dir": folder / "run", **settings})


@pytest.fixture
def store(folder: Path) -> FileClaimStore:
    return FileClaimStore.open(folder / "state", service="model")


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("def app(): ...", Status.OK, "can be imported"),
        ("", Status.FAIL, "has no attribute 'app'"),
        ("app = 1", Status.FAIL, "cannot be called"),
        ("import no_such_module", Status.FAIL, "no_such_module"),
        ("1 / 0", Status.FAIL, "ZeroDivisionError: division by zero"),
        ("import os; os._exit(9)", Status.FAIL, "ended with 9"),
    ],
)
def test_an_application_is_imported_in_a_process_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, *, status: Status, said: str
) -> None:
    (folder / "served.py").write_text(source)
    monkeypatch.chdir(folder)
    found = service.application(config(folder, app="served:app"))
    assert (found.status, said in found.found) == (status, True)


def test_an_application_that_does_not_come_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "served.py").write_text("import signal; signal.pause()")
    monkeypatch.chdir(folder)
    found = service.application(config(folder, app="served:app"), patience_s=0.05)
    assert (found.status, "was not imported within" in found.found) == (Status.FAIL, True)
    assert service.application(config(folder)).status is Status.SKIPPED


def test_no_store_yet_is_fine_and_stays_so(folder: Path) -> None:
    found = service.store(config(folder))
    assert (found.status, "the first start makes it" in found.found) == (Status.OK, True)
    assert list(folder.iterdir()) == []


def test_a_store_that_stands_is_described(folder: Path, store: FileClaimStore) -> None:
    life = LifeLock.acquire(store, nonce="a", socket=str(folder / "a.sock"))
    found = service.store(config(folder))
    assert found.status is Status.OK
    for said in ("service model", "format 1", store.store_id, "1 living workers"):
        assert said in found.found
    life.close()


def test_a_store_of_another_service_fails(folder: Path, store: FileClaimStore) -> None:
    found = service.store(config(folder, service="agent"))
    assert (found.status, "'model', not of 'agent'" in found.found) == (Status.FAIL, True)
    assert store.service == "model"


def test_c5_a_damaged_store_fails(folder: Path, store: FileClaimStore) -> None:
    (store.state_dir / "FORMAT").write_text("{")
    found = service.store(config(folder))
    assert (found.status, "is damaged" in found.found) == (Status.FAIL, True)


def test_c2_a_store_that_lost_its_format_fails(folder: Path, store: FileClaimStore) -> None:
    LifeLock.acquire(store, nonce="a", socket=str(folder / "a.sock")).close()
    (store.state_dir / "FORMAT").unlink()
    found = service.store(config(folder))
    assert (found.status, "no FORMAT but was used" in found.found) == (Status.FAIL, True)


def test_r6_a_closed_gate_is_warned_of(folder: Path, store: FileClaimStore) -> None:
    write_gate(store.state_dir, Gate(open=False, by="ada", why="upkeep"))
    found = service.store(config(folder))
    assert (found.status, "closed by ada: upkeep" in found.found) == (Status.WARN, True)
    write_gate(store.state_dir, Gate(open=True))
    hold_gate(store.state_dir, by="ada", why="upkeep", budget_s=3600)
    assert "s more" in service.store(config(folder)).found


def test_what_dead_workers_left_is_warned_of(folder: Path, store: FileClaimStore) -> None:
    life = LifeLock.acquire(store, nonce="a", socket=str(folder / "a.sock"))
    life.close()
    found = service.store(config(folder))
    assert (found.status, "files of 1 dead ones" in found.found) == (Status.WARN, True)


@pytest.mark.parametrize(
    ("mode", "text", "status"),
    [
        (0o600, "0123456789abcdef", Status.OK),
        (0o640, "0123456789abcdef", Status.OK),
        (0o644, "0123456789abcdef", Status.FAIL),
        (0o600, "short", Status.FAIL),
    ],
)
def test_a_secret_that_a_start_would_refuse_fails(
    folder: Path, *, mode: int, text: str, status: Status
) -> None:
    (keys := folder / "keys").write_text(text)
    keys.chmod(mode)
    found = service.rollout_keys(config(folder, rollout_keys=keys))
    assert found.status is status
    assert text not in found.found + found.advice
    assert service.rollout_keys(config(folder)).status is Status.SKIPPED
