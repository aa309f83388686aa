# SPDX-License-Identifier: Apache-2.0
"""``config show``: each value with where it comes from."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from rollout_router.cli.main import main
from rollout_router.serve.config import ServeConfig


def show(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, ["config", "show", *arguments], env=variables)


def test_each_setting_is_shown_with_its_origin(folder: Path) -> None:
    (file := folder / "c.toml").write_text('workers = 3\nupstream = "http://u:hush@h/v1"')
    given = ("--json", "--config", str(file), "--port", "1")
    done = show(*given, ROLLOUT_ROUTER_DRAIN_SECONDS="2")
    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["settings"]}

    assert (done.exit_code, document["schema"], list(rows)) == (
        0,
        1,
        list(ServeConfig.model_fields),
    )
    said = {
        "workers": (3, str(file)),
        "port": (1, "--port"),
        "drain_seconds": (2.0, "ROLLOUT_ROUTER_DRAIN_SECONDS"),
        "upstream": ("http://…@h/v1", str(file)),
        "sweep_seconds": (5.0, "default"),
        "admin_port": (None, "default"),
    }
    assert {name: (rows[name]["value"], rows[name]["origin"]) for name in said} == said
    assert rows["drain_seconds"]["unit"] == "s"
    assert rows["drain_seconds"]["default"] == 30.0
    assert rows["state_dir"]["value"] == rows["state_dir"]["default"]
    assert "unit" not in rows["port"]
    assert all(row["help"] for row in rows.values())
    assert "hush" not in done.stdout


def test_people_read_tables(folder: Path) -> None:
    done = show("--state-dir", str(folder), "--no-history-delta")
    lines = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    assert f"state_dir {folder} --state-dir" in lines
    assert "history_delta no --history-delta" in lines
    assert "history_bytes 2,147,483,648 bytes default" in lines
    assert "port 8000 default" in lines
    assert "owner_timeout_seconds - default" in lines


def test_what_serve_refuses_is_refused() -> None:
    done = show("--workers", "0", ROLLOUT_ROUTER_STATE_DRI="x")
    assert done.exit_code == 2
    assert "--workers: it should be greater than or equal to 1, not '0'" in done.stderr
    assert "ROLLOUT_ROUTER_STATE_DRI: no such setting; did you mean" in done.stderr
    assert done.stdout == ""
