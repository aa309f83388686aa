# SPDX-License-Identifier: Apache-2.0
"""Flags over environment over a file over defaults; what is wrong is named by where it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from rollout_router.serve.config import ServeConfig
from rollout_router.serve.settings_table import env_of, flag_of, settings_table
from rollout_router.serve.sources import CONFIG_BYTES_MAX, SettingsRefused, Told, read_settings
from rollout_router.serve.twins import CONFIG_TWIN


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "service.toml"


def told(file: Path, text: str, **flags: Any) -> Told:
    file.write_text(text)
    return read_settings(flags, config_file=file)


def refused(file: Path | None, text: str = "", **flags: Any) -> list[str]:
    if file is not None:
        file.write_text(text)
    with pytest.raises(SettingsRefused) as error:
        read_settings(flags, config_file=file)
    return str(error.value).splitlines()


def test_flags_stand_over_environment_over_file_over_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUT_ROUTER_PORT", "2")
    monkeypatch.setenv("ROLLOUT_ROUTER_WORKERS", "3")
    found = told(file, "port = 1\nworkers = 1\ndrain_seconds = 1", port="4")
    assert (found.config.port, found.config.workers, found.config.drain_seconds) == (4, 3, 1)
    assert found.config.sweep_seconds == 5
    assert found.origins == {
        "port": "--port",
        "workers": "ROLLOUT_ROUTER_WORKERS",
        "drain_seconds": str(file),
    }


EACH = {
    "upstream": "http://h/v1",
    "app": "a:b",
    "service": "s",
    "host": "::1",
    "port": "1",
    "workers": "3",
    "ready_file": "/tmp/ready",  # noqa: S108 - nothing is written
    "state_dir": "/x/state",
    "run_dir": "/x/run",
    "capture_dir": "/x/capture",
    "allow_network_fs": "true",
    "history_delta": "false",
    "route_always": "1",
    "history_rollouts": "5",
    "history_bytes": "6",
    "history_idle_seconds": "7.5",
    "rollout_header": "X-R",
    "session_cookie": "c",
    "session_header": "X-S",
    "rollout_keys": "/dev/null",
    "placement": "balanced",
    "hand_over": "yes",
    "drain_seconds": "8",
    "keep_alive_grace_seconds": "9",
    "owner_timeout_seconds": "10",
    "sweep_seconds": "11",
    "connections_max": "12",
    "answer_stall_seconds": "13",
    "admin_host": "::1",
    "admin_port": "0",
    "log_format": "json",
    "log_level": "debug",
    "server_timing": "on",
}
NEEDS = {
    "session_cookie": {"route_always": True},
    "session_header": {"route_always": True},
}


def test_each_setting_is_tried() -> None:
    assert set(EACH) == set(ServeConfig.model_fields)


@pytest.mark.parametrize("name", EACH)
def test_each_setting_can_be_said_by_flag_variable_and_file(
    name: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {row.name: row.type for row in settings_table()}[name]
    by_flag = read_settings({name: EACH[name]}, config_file=None)
    monkeypatch.setenv(env_of(name), EACH[name])
    by_variable = read_settings({}, config_file=None)
    monkeypatch.delenv(env_of(name))
    value = {"true": "true", "1": "true", "yes": "true", "on": "true"}.get(EACH[name], "false")
    if kind in {"integer", "number"}:
        value = EACH[name]
    elif kind != "boolean":
        value = f'"{EACH[name]}"'
    by_file = told(file, f"{name} = {value}")

    assert by_flag.config == by_variable.config == by_file.config
    assert getattr(by_flag.config, name) != getattr(ServeConfig(), name)
    assert [one.origins for one in (by_flag, by_variable, by_file)] == [
        {name: flag_of(name)},
        {name: env_of(name)},
        {name: str(file)},
    ]


@pytest.mark.parametrize(
    ("said", "place"), [("state", "here/state"), ("../state", "here/../state"), ("/s", "/s")]
)
def test_a_path_in_a_file_is_relative_to_its_folder(folder: Path, said: str, place: str) -> None:
    (folder / "here").mkdir()
    found = told(folder / "here" / "c.toml", f'state_dir = "{said}"')
    assert found.config.state_dir == folder / place


def test_a_home_in_a_file_is_this_users(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert told(file, 'state_dir = "~/state"').config.state_dir == Path("/home/ada/state")


def test_an_empty_path_in_a_file_names_nothing(file: Path) -> None:
    assert refused(file, 'state_dir = ""') == [f"{file}: state_dir: an empty path names nothing"]


def test_a_path_that_may_not_be_looked_at_is_left_to_who_opens_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.stat", closed)
    assert read_settings({"state_dir": file / "x"}, config_file=None).config.state_dir == file / "x"


def test_a_path_needs_not_be_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_ROUTER_STATE_DIR", "/x/\udcff")
    config = read_settings({}, config_file=None).config
    assert (config.state_dir, config.shown()["state_dir"]) == (Path("/x/\udcff"), "/x/\udcff")


def test_a_path_on_the_command_line_is_relative_to_the_current_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert read_settings({"state_dir": Path("s")}, config_file=None).config.state_dir == (
        folder / "s"
    )


def test_the_environment_can_name_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 5")
    monkeypatch.setenv(CONFIG_TWIN, str(file))
    assert read_settings({}, config_file=None).config.port == 5
    (other := file.with_name("other.toml")).write_text("port = 6")
    assert read_settings({}, config_file=other).config.port == 6


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_ROUTER_PORT", "")
    monkeypatch.setenv(CONFIG_TWIN, "")
    assert read_settings({}, config_file=None).origins == {}


def test_no_dotenv_file_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text("ROLLOUT_ROUTER_PORT=1")
    monkeypatch.chdir(folder)
    assert read_settings({}, config_file=None).config.port == 8000


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("state_dri", "state_dir"), ("state-dir", "state_dir"), ("PORT", "port"), ("zzz", None)],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    file: Path, key: str, nearest: str | None
) -> None:
    advice = f"; did you mean {nearest}?" if nearest else ""
    assert refused(file, f"{key} = 1") == [f"{file}: {key}: no such setting{advice}"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ROLLOUT_ROUTER_STATE_DRI", "ROLLOUT_ROUTER_STATE_DIR"),
        ("ROLLOUT_ROUTER_CONFIGS", CONFIG_TWIN),
        ("rollout_router_port", "ROLLOUT_ROUTER_PORT"),
        ("ROLLOUT_ROUTER_ZZZZZZZZZZZZZZZZZZZZZZZ", None),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known_one(
    name: str, nearest: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    advice = f"; did you mean {nearest}?" if nearest else ""
    assert refused(None) == [f"{name}: no such setting{advice}"]


@pytest.mark.parametrize(
    "name",
    [
        "ROLLOUT_ROUTER_JSON",
        "ROLLOUT_ROUTER_CACHE",
        "ROLLOUT_ROUTER_GYM_PYTHON",
        "ROLLOUT_ROUTER_SHIM_PORT",
    ],
)
def test_a_variable_of_another_part_is_none_of_these(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert read_settings({}, config_file=None).origins == {}


def test_wrong_values_are_named_by_where_they_stand(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUT_ROUTER_WORKERS", "none")
    lines = refused(file, 'port = 70000\nrollout_header = "X Y"', drain_seconds="nan")
    assert {line.split(": it")[0].split(": '")[0] for line in lines} == {
        f"{file}: port",
        f"{file}: rollout_header",
        "ROLLOUT_ROUTER_WORKERS",
        "--drain-seconds",
    }


def test_settings_that_do_not_agree_are_named_by_where_each_stands(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUT_ROUTER_APP", "a:b")
    assert refused(file, 'upstream = "http://x"') == [
        f"{file}: upstream and ROLLOUT_ROUTER_APP exclude each other"
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('port = "8000"', "port: takes a value of type integer, not text"),
        ("port = true", "port: takes a value of type integer, not boolean"),
        ("port = 1.0", "port: takes a value of type integer, not number"),
        ("history_delta = 1", "history_delta: takes a value of type boolean, not integer"),
        ("drain_seconds = true", "drain_seconds: takes a value of type number, not boolean"),
        ("[host]", "host: takes a value of type text, not table"),
        ("state_dir = ['a']", "state_dir: takes a value of type path, not array"),
        ("placement = 2026-01-01", "placement: takes a value of type choice, not date"),
    ],
)
def test_a_value_of_another_type_is_wrong_and_not_shown(file: Path, text: str, wrong: str) -> None:
    assert refused(file, text) == [f"{file}: {wrong}"]


def test_a_password_is_in_no_message(file: Path) -> None:
    said = refused(file, 'upstream = "ftp://user:secret@host"')
    said += refused(file, 'upstream = ["http://user:secret@host"]')
    assert "secret" not in "".join(said)
    assert "ftp://…@host" in said[0]


@pytest.mark.parametrize("text", ["port = ", "port = 1\nport = 2", "\udcff", "a = " + "[" * 5000])
def test_what_is_no_toml_is_named(file: Path, text: str) -> None:
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(SettingsRefused, match=f"{file} is no TOML: "):
        read_settings({}, config_file=file)


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    for place, why in (
        (folder / "none", "cannot be read: No such file or directory"),
        (folder, "is no plain file: --config takes a TOML file"),
    ):
        with pytest.raises(SettingsRefused, match=f"^{place} {why}$"):
            read_settings({}, config_file=place)


def test_a_file_has_a_bound(file: Path) -> None:
    file.write_text("#" * CONFIG_BYTES_MAX)
    assert read_settings({}, config_file=file).origins == {}
    file.write_text("#" * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(SettingsRefused, match="1048577 bytes, of at most 1048576"):
        read_settings({}, config_file=file)


def test_the_example_of_the_page_is_a_file_that_is_taken(folder: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"<<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)
    (folder / "keys").write_text("")

    config = told(folder / "service.toml", example).config

    assert (config.port, config.state_dir, config.capture_dir) == (
        9000,
        folder / "claims",
        folder / "capture",
    )
