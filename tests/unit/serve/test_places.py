# SPDX-License-Identifier: Apache-2.0
"""Where files lie when nothing is said."""

from pathlib import Path

import pytest

from rollout_router.serve.places import default_run_dir, default_state_dir


@pytest.mark.parametrize(
    ("variables", "state_dir", "run_dir"),
    [
        (
            {"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r"},
            "/s/rollout-router/model",
            "/r/rollout-router",
        ),
        ({"HOME": "/home/ada"}, "/home/ada/.local/state/rollout-router/model", None),
    ],
)
def test_places_follow_the_environment(
    variables: dict[str, str],
    state_dir: str,
    run_dir: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_state_dir() == Path(state_dir)
    if run_dir is not None:
        assert default_run_dir() == Path(run_dir)
    monkeypatch.setattr("os.geteuid", lambda: 7)
    if run_dir is None:
        assert default_run_dir() == Path("/tmp/rollout-router-7")  # noqa: S108 - as documented
