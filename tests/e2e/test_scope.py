# SPDX-License-Identifier: Apache-2.0
"""A forwarded request looks to the application like a local one: workers behave as one (R1, R5)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gateway import Gateway, client_at
from support.stock import stock_uvicorn

CALLS = 12


def _looks(base_url: str, host: str, path: str) -> tuple[list[dict[str, Any]], set[str]]:
    """What the application saw of calls over as many connections, and who served them."""
    answers = []
    for _ in range(CALLS):
        with client_at(base_url) as client:
            answers.append(client.post(path, headers={"host": host}))
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
    with stock_uvicorn("support.scope_app:app", folder, "--root-path", "/api") as url:
        yield url


def test_r5_install_gives_every_layer_the_same_scope_over_the_hop(uvicorn_url: str) -> None:
    looks, owners = _looks(uvicorn_url, "gym", "/sessions/r/look")
    assert len(owners) == 1
    assert looks == [looks[0]] * CALLS
    assert looks[0]["marked"]
    assert (looks[0]["client"], looks[0]["root"]) == ("127.0.0.1", "/api")
    assert looks[0]["url"] == "http://gym/api/sessions/x/look"
