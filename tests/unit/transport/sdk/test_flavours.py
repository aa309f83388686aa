# SPDX-License-Identifier: Apache-2.0
"""What the two libraries cost those who do not use them: nothing."""

import ast
import sys
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from unit.test_architecture import MODULES, PACKAGE, imports_of

import rollout_router.transport.httpx
import rollout_router.transport.httpx2
from rollout_router.transport.sandbox.pool import IDLE_S
from rollout_router.transport.sdk.messages import (
    CONNECTIONS_MAX,
    IDLE_CONNECTIONS_MAX,
    asked,
    limits,
    text,
    written,
)

TRANSPORT = PACKAGE / "transport"
FLAVOURS = {name: TRANSPORT / f"{name}.py" for name in ("httpx", "httpx2")}
SHARED = sorted((TRANSPORT / "sdk").glob("*.py"))
OURS = ("rollout_router.transport.sandbox.", "rollout_router.transport.sdk.")


@pytest.mark.parametrize("path", [*FLAVOURS.values(), *SHARED], ids=lambda path: path.stem)
def test_an_agent_needs_its_library_and_nothing_else(path: Path) -> None:
    beside = {"typing_extensions", "anyio", path.stem} if path in SHARED else {path.stem}
    for name in imports_of(path):
        known = name.split(".")[0] in sys.stdlib_module_names | beside | {"typing_extensions"}
        assert known or name.startswith(OURS), name
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_no_server_imports_a_library_of_clients() -> None:
    # The benchmark compares clients of the hop, where they are installed.
    served = [
        path for path in MODULES if path.parent.name != "bench" and "httpx" in path.read_text()
    ]
    users = {path for path in served if {"httpx", "httpx2"} & set(imports_of(path))}
    assert users == set(FLAVOURS.values())


@pytest.mark.parametrize("hx", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_request_is_read_as_it_goes_over_the_wire(hx: Any) -> None:
    url = "https://user:word@gateway.example:8443/ng-rollout/r1/a%20b?c=d#e"
    headers = [(b"X-A", b"1"), (b"x-a", b"\xe9")]
    read = asked(hx, hx.Request("post", url, headers=headers, content=b"{}"))
    assert read.method == "POST"
    assert read.origin == "https://gateway.example:8443"
    assert read.target == "/ng-rollout/r1/a%20b?c=d"
    assert read.body == b"{}"
    assert [line for line in read.headers if line[0].lower() == "x-a"] == [
        ("X-A", "1"),
        ("x-a", "\xe9"),
    ]
    again = written(hx, hx.Request("POST", url), read.headers, b"new")
    assert text(again.headers.raw) == read.headers
    assert again.read() == b"new"


@pytest.mark.parametrize("hx", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_idle_connections_are_retired_before_a_server_would(hx: Any) -> None:
    made = limits(hx)
    assert made.keepalive_expiry == IDLE_S < 5  # what uvicorn waits
    assert made.max_connections == CONNECTIONS_MAX
    assert made.max_keepalive_connections == IDLE_CONNECTIONS_MAX


def test_a_transport_of_the_other_library_is_refused() -> None:
    with pytest.raises(TypeError, match=r"httpx2\.BaseTransport"):
        rollout_router.transport.httpx2.DeltaTransport(inner=httpx.HTTPTransport(verify=False))
    with pytest.raises(TypeError, match=r"httpx\.AsyncBaseTransport"):
        rollout_router.transport.httpx.AsyncDeltaTransport(inner=httpx2.HTTPTransport(verify=False))


def test_a_client_of_the_other_library_is_told_so() -> None:
    transport = rollout_router.transport.httpx.DeltaTransport(inner=httpx.MockTransport(_never))
    with (
        httpx2.Client(transport=transport) as client,  # type: ignore[arg-type]
        pytest.raises(TypeError, match="for httpx does not serve a client of httpx2"),
    ):
        client.post("http://gateway/ng-rollout/r1/v1/x", content=b"{}")


def _never(request: httpx.Request) -> httpx.Response:
    raise AssertionError(request)


@pytest.mark.parametrize("name", FLAVOURS)
def test_a_client_in_one_line_is_a_client_of_the_library(name: str) -> None:
    flavour = getattr(rollout_router.transport, name)
    hx = {"httpx": httpx, "httpx2": httpx2}[name]
    with flavour.client(rollout="r1") as client:
        assert isinstance(client, hx.Client)
        assert client.follow_redirects
    assert isinstance(flavour.async_client(), hx.AsyncClient)
