# SPDX-License-Identifier: Apache-2.0
"""Where a service keeps its files when nothing is said."""

import os
from pathlib import Path

__all__ = ["default_run_dir", "default_state_dir"]


def default_state_dir() -> Path:
    """Where the store lies when nothing is said: never in /tmp, which cleaners sweep."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "rollout-router" / "model"


def default_run_dir() -> Path:
    """Where the private sockets lie when nothing is said: a short, private directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "rollout-router"
    if os.geteuid() == 0:
        return Path("/run/rollout-router")
    return Path(f"/tmp/rollout-router-{os.geteuid()}")  # noqa: S108 - private: its mode and owner are checked before use
