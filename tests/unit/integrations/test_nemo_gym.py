# SPDX-License-Identifier: Apache-2.0
"""What is derived from a gym server: the flag, the name, the folder of its run (R7)."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from rollout_router.integrations import run_folder
from rollout_router.integrations.nemo_gym import FLAG, RUN, WORKER, deltas_enabled, route_rollouts
from rollout_router.routing import Router, Settings, install

SETTINGS = Settings(state_dir=Path("/s"), run_dir=Path("/r"))


def config(*, top: Any = None, own: Any = None, agent: Any = None, uses: str = "policy") -> Any:
    def block(said: Any, **keys: Any) -> dict[str, Any]:
        return {"entrypoint": "app.py", **keys, **({} if said is None else {FLAG: said})}

    model = {"type": "responses_api_models", "name": uses}
    return {
        **({} if top is None else {FLAG: top}),
        "policy": {"responses_api_models": {"vllm_model": block(own)}},
        "agent": {"responses_api_agents": {"simple_agent": block(agent, model_server=model)}},
        "port_range_low": 10001,
    }


@pytest.mark.parametrize(
    ("said", "on"),
    [
        ({}, False),
        ({"top": True}, True),
        ({"top": False}, False),
        ({"agent": True}, True),
        ({"agent": True, "top": False}, True),
        ({"agent": False, "top": True}, True),
        ({"agent": True, "uses": "judge"}, False),
        ({"own": True}, True),
        ({"own": True, "top": False}, True),
        ({"own": False, "top": True, "agent": True}, False),
    ],
)
def test_r7_the_flag_stands_in_three_places_and_the_nearest_decides(
    said: dict[str, Any], *, on: bool
) -> None:
    assert deltas_enabled(config(**said), "policy") is on


@pytest.mark.parametrize("where", ["top", "own", "agent"])
@pytest.mark.parametrize("value", ["false", 0, 1, []])
def test_a_flag_that_is_neither_true_nor_false_is_refused(where: str, value: Any) -> None:
    said: dict[str, Any] = {where: value}
    with pytest.raises(ValueError, match=FLAG):
        deltas_enabled(config(**said), "policy")


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of runs are made; afterwards this process is in none."""
    monkeypatch.setattr(run_folder, "PLACES", (folder / "missing", folder))
    monkeypatch.delenv(WORKER, raising=False)
    monkeypatch.setenv(RUN, "of another server that started this one")
    return folder


def server(**said: Any) -> Any:
    client = SimpleNamespace(global_config_dict=config(**said))
    return SimpleNamespace(config=SimpleNamespace(name="policy"), server_client=client)


def started() -> FastAPI:
    app = FastAPI()
    app.middleware_stack = app.build_middleware_stack()
    return app


def settings_of(app: Any) -> Settings:
    router = app.build_middleware_stack()
    assert isinstance(router, Router)
    return router.settings


def test_a_run_has_one_folder_which_its_workers_find(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = settings_of(route_rollouts(server(top=True), FastAPI()))
    monkeypatch.setenv(WORKER, "1")
    worker = settings_of(route_rollouts(server(top=True), FastAPI()))
    assert worker == supervisor
    assert supervisor.history_delta
    assert supervisor.service == "policy"
    assert supervisor.state_dir.parent == supervisor.run_dir.parent == Path(os.environ[RUN])
    assert supervisor.state_dir.parent.parent == place
    run_folder.leave_run(supervisor.state_dir.parent)
    assert list(place.iterdir()) == []


def test_what_is_given_is_taken_and_no_folder_is_made(place: Path) -> None:
    given: dict[str, Any] = {"state_dir": place / "s", "run_dir": place / "r", "route_always": True}
    settings = settings_of(route_rollouts(server(), FastAPI(), **given))
    assert settings == Settings(service="policy", **given)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("app", "given", "error"),
    [
        (FastAPI(), {"placement": "nowhere"}, ValueError),
        (FastAPI(), {"run_dir": Path("/r"), "sweep_s": 0}, ValueError),
        (install(FastAPI(), SETTINGS), {}, ValueError),
        (started(), {}, RuntimeError),
    ],
)
def test_where_anything_is_refused_no_folder_is_made(
    place: Path, app: Any, given: dict[str, Any], error: type[Exception]
) -> None:
    run = os.environ[RUN]
    with pytest.raises(error):
        route_rollouts(server(), app, **given)
    assert list(place.iterdir()) == []
    assert os.environ[RUN] == run


def test_a_worker_whose_supervisor_did_not_call_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKER, "1")
    monkeypatch.delenv(RUN)
    with pytest.raises(ValueError, match="under no condition"):
        route_rollouts(server(), FastAPI())
    assert list(place.iterdir()) == []
