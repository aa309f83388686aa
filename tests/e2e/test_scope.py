# SPDX-License-Identifier: Apache-2.0
"""A forwarded request looks to the application like a local one: workers behave as one (R1, R5)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway import Gateway, import_path

CALLS = 12


def _looks(base_url: str, host: str, path: str) -> tuple[list[dict[str, Any]], set[str]]:
    """What the application saw of calls over as many connections, and who served them."""
    answers = [
        httpx.post(f"{base_url}{path}", headers={"host": host}, trust_env=False, timeout=30)
        for _ in range(CALLS)
    ]
    assert {answer.status_code for answer in answers} == {200}
    return [a.json() for a in answers], {a.headers["rollout-worker"] for a in answers}


def test_r5_serve_gives_an_application_the_same_scope_over_the_hop(folder: Path) -> None:
    (folder / "g").mkdir()
    gateway = Gateway(folder / "g", "--app", "support.scope_app:plain")
    try:
        looks, owners = _looks(gateway.url, "gym", "/sessions/r/look")
    finally:
        gateway.stop()
    assert len(owners) == 1
    assert looks == [looks[0]] * CALLS
    assert looks[0]["client"] == "127.0.0.1"
    assert (looks[0]["database"], looks[0]["pool"]) == ("a database", "a pool")


@pytest.fixture
def uvicorn_url(folder: Path) -> Iterator[str]:
    """The installed application behind a stock uvicorn with two workers and a root path."""
    environment = {
        **os.environ,
        "PYTHONPATH": import_path(),
        "TEST_STATE_DIR": str(folder / "state"),
        "TEST_RUN_DIR": str(folder / "run"),
    }
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "support.scope_app:app", "--port", "0"),
            *("--workers", "2", "--root-path", "/api"),
        ],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    url, ready = "", 0
    with process.stderr as lines:
        for line in lines:
            if "running on" in line:
                url = line.split("running on ")[1].split()[0]
            ready += "Application startup complete" in line
            if ready == 2:
                break
        yield url
        process.terminate()
        lines.read()
    process.wait(30)


def test_r5_install_gives_every_layer_the_same_scope_over_the_hop(uvicorn_url: str) -> None:
    looks, owners = _looks(uvicorn_url, "gym", "/sessions/r/look")
    assert len(owners) == 1
    assert looks == [looks[0]] * CALLS
    assert looks[0]["marked"]
    assert (looks[0]["client"], looks[0]["root"]) == ("127.0.0.1", "/api")
    assert looks[0]["url"] == "http://gym/api/sessions/x/look"
