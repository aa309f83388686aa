# SPDX-License-Identifier: Apache-2.0
"""What ``rollout-router admin`` refuses before it serves."""

import socket
from pathlib import Path

from click.testing import CliRunner

from rollout_router.claims import FileClaimStore
from rollout_router.cli.main import main


def test_a_store_that_is_missing_is_said(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["admin", "--state-dir", str(tmp_path / "none")])
    assert (refused.exit_code, "there is no claim store" in refused.stderr) == (4, True)


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    FileClaimStore.open(folder / "state", service="model")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = ("--admin-port", str(listener.getsockname()[1]))
        refused = CliRunner().invoke(main, ["admin", *taken, "--state-dir", str(folder / "state")])
    assert (refused.exit_code, "name another with --admin-port" in refused.stderr) == (1, True)
