# SPDX-License-Identifier: Apache-2.0
"""The model of the settings, as code makes it."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollout_router.routing import SessionSettings
from rollout_router.serve.config import ServeConfig


def test_a_value_made_in_code_reads_nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_ROUTER_PORT", "1")
    assert ServeConfig().port == 8000


def test_a_value_reaches_a_worker_as_it_was(folder: Path) -> None:
    config = ServeConfig(state_dir=folder, upstream="http://u:p@h/v1", owner_timeout_seconds=3)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own


def test_a_value_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ServeConfig().port = 1


def test_credentials_are_neither_shown_nor_printed() -> None:
    config = ServeConfig(upstream="http://user:secret@host/v1")
    assert config.shown()["upstream"] == "http://…@host/v1"
    assert "secret" not in repr(config)


def test_everything_that_the_router_is_told_is_the_settings(folder: Path) -> None:
    (keys := folder / "keys").write_text("0123456789abcdef")
    keys.chmod(0o600)
    settings = ServeConfig(
        state_dir=folder / "state",
        run_dir=folder / "run",
        service="agent",
        history_delta=False,
        route_always=True,
        history_rollouts=1,
        history_bytes=2,
        history_idle_seconds=3,
        rollout_header="X-R",
        session_header="X-S",
        rollout_keys=keys,
        placement="balanced",
        server_timing=True,
        allow_network_fs=True,
        drain_seconds=4,
        owner_timeout_seconds=5,
        sweep_seconds=6,
        connections_max=7,
        answer_stall_seconds=8,
    ).settings()
    bounds = settings.history
    assert (settings.state_dir, settings.run_dir) == (folder / "state", folder / "run")
    assert (settings.service, settings.history_delta, settings.route_always) == (
        "agent",
        False,
        True,
    )
    assert (bounds.rollouts_max, bounds.bytes_max, bounds.idle_s_max) == (1, 2, 3)
    assert settings.rollout_header == "X-R"
    assert settings.sessions == SessionSettings(header="X-S")
    assert settings.rollout_keys == b"0123456789abcdef"
    assert (settings.placement, settings.server_timing) == ("balanced", True)
    assert settings.allow_network_fs
    assert settings.refuse_invalid_ids
    assert (settings.drain_s_max, settings.owner_timeout_s, settings.sweep_s) == (4, 5, 6)
    assert settings.limits is not None
    assert (settings.limits.connections_max, settings.limits.answer_stall_s_max) == (7, 8)


WRONG: list[dict[str, Any]] = [
    {"upstream": "gopher://x"},
    {"app": ""},
    {"host": ""},
    {"service": ""},
    {"service": "a b"},
    {"port": -1},
    {"port": 65_536},
    {"workers": 0},
    {"workers": 257},
    {"ready_file": "/does/not/exist/ready"},
    {"ready_file": "/"},
    {"state_dir": "/dev/null"},
    {"run_dir": "/dev/null"},
    {"capture_dir": "/dev/null"},
    {"state_dir": ""},
    {"ready_file": ""},
    {"rollout_keys": "a\0b"},
    {"history_rollouts": -1},
    {"history_bytes": -1},
    {"history_idle_seconds": 0},
    {"rollout_header": "X Y"},
    {"session_cookie": "a b"},
    {"session_header": "a:b"},
    {"rollout_keys": "/does/not/exist"},
    {"rollout_keys": "/"},
    {"placement": "somewhere"},
    {"drain_seconds": -1},
    {"keep_alive_grace_seconds": -0.1},
    {"owner_timeout_seconds": 0},
    {"sweep_seconds": 0},
    {"connections_max": 0},
    {"answer_stall_seconds": float("inf")},
    {"admin_host": ""},
    {"admin_port": 65_536},
    {"log_format": "xml"},
    {"log_level": "loud"},
    {"no_such_setting": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_makes_no_sense_is_no_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ServeConfig(**wrong)
    assert [error["loc"] for error in refused.value.errors()] == [tuple(wrong)]


def test_each_setting_but_booleans_has_a_value_that_makes_no_sense() -> None:
    booleans = {
        name for name, field in ServeConfig.model_fields.items() if field.annotation is bool
    }
    assert {name for wrong in WRONG for name in wrong} - {"no_such_setting"} == (
        set(ServeConfig.model_fields) - booleans
    )


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"upstream": "http://x", "app": "a:b"}, {"upstream", "app"}),
        ({"session_cookie": "a", "session_header": "b"}, {"session_cookie", "session_header"}),
        ({"session_header": "x-session-id"}, {"session_header", "rollout_header"}),
        ({"session_cookie": "a", "history_delta": False}, {"session_cookie"}),
        ({"session_header": "a", "history_delta": False}, {"session_header"}),
    ],
    ids=lambda names: " ".join(sorted(names)),
)
def test_settings_that_do_not_agree_are_all_named(wrong: dict[str, Any], named: set[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        ServeConfig(**wrong)
    (error,) = refused.value.errors()
    said = str(error["ctx"]["error"])
    assert error["loc"] == ()
    assert {name for name in ServeConfig.model_fields if f"{{{name}}}" in said} == named


def test_relative_places_become_absolute(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    config = ServeConfig(state_dir=Path("state"), ready_file=Path("ready"))
    assert (config.state_dir, config.ready_file) == (folder / "state", folder / "ready")
