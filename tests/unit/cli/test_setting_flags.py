# SPDX-License-Identifier: Apache-2.0
"""The flags of commands that take the settings: one for each, and what they show of it."""

from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rollout_router.cli.main import main
from rollout_router.cli.setting_flags import SettingsCommand, told_by
from rollout_router.serve.settings_table import settings_table

COMMANDS = [("serve", "serve"), ("doctor", "doctor"), ("config", "show")]


@pytest.mark.parametrize(("module", "name"), COMMANDS)
def test_there_is_a_flag_for_each_setting_with_its_twin(module: str, name: str) -> None:
    command = getattr(import_module(f"rollout_router.cli.{module}"), name)
    flags = {str(option.envvar): option.opts[0] for option in command.params if option.envvar}
    flags.pop("ROLLOUT_ROUTER_JSON", None)
    assert flags.pop("ROLLOUT_ROUTER_CONFIG") == "--config"
    assert flags == {row.env: row.flag for row in settings_table()}


def test_help_shows_each_setting_with_default_bound_and_twin() -> None:
    shown = " ".join(CliRunner().invoke(main, ["serve", "--help"]).stdout.split())
    shown = shown.replace("- ", "-")  # click breaks lines at them
    for row in settings_table():
        assert row.help.replace("- ", "-") in shown
        assert f"[env var: {row.env}" in shown
        if row.type != "boolean" and row.default != "none":
            default = f"default: {row.default.strip(chr(34))}"
            assert default in shown, default
    assert "--history-delta / --no-history-delta" in shown
    assert "default: no-hand-over" in shown
    assert "--placement [arrival|balanced]" in shown
    assert "default: 8000; at least 0, at most 65,535]" in shown


def test_a_flag_that_is_a_switch_stands_over_a_file_both_ways(folder: Path) -> None:
    (file := folder / "c.toml").write_text("hand_over = true\nhistory_delta = false")
    arguments = ["--config", str(file), "--no-hand-over", "--history-delta"]

    found = told_by(SettingsCommand("x").make_context("x", arguments))

    assert (found.config.hand_over, found.config.history_delta) == (False, True)
    assert found.origins == {"hand_over": "--hand-over", "history_delta": "--history-delta"}


def test_what_is_wrong_reaches_no_terminal_as_it_is(folder: Path) -> None:
    (file := folder / "c.toml").write_text('"\\u001b[2J" = 1')
    context = SettingsCommand("x").make_context("x", ["--config", str(file)])
    with pytest.raises(click.UsageError) as refused:
        told_by(context)
    assert "\x1b" not in refused.value.message
    assert r"\x1b[2J: no such setting" in refused.value.message
