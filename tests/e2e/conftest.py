# SPDX-License-Identifier: Apache-2.0
"""Running services for the end-to-end tests, ended and checked after each test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.control import Control
from support.folders import private_folder
from support.gateway import Gateway, Shim
from support.trio import Trio


@pytest.fixture
def control(folder: Path) -> Iterator[Control]:
    """The remote control of ``support.app``."""
    control = Control(folder / "control.sock")
    yield control
    control.close()


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., Gateway]]:
    """Start a gateway; every one that still runs is stopped afterwards."""
    started: list[Gateway] = []

    def start(*arguments: str, **options: Any) -> Gateway:
        own = folder / f"g{len(started)}"
        own.mkdir()
        gateway = Gateway(own, *arguments, **options)
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        gateway.stop()
        sys.stderr.writelines(gateway.log)  # shown where the test failed


@pytest.fixture
def shim(folder: Path) -> Iterator[Callable[..., Shim]]:
    """Start a shim in front of a URL; every one is stopped afterwards."""
    started: list[Shim] = []

    def start(url: str, *arguments: str) -> Shim:
        started.append(Shim(folder, url, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    """One gateway for all tests of a module that leave it as it was; ids tell them apart."""
    with private_folder() as folder:
        gateway = Gateway(folder)
        yield gateway
        assert gateway.stop() == 0


@pytest.fixture
def gateway(serve: Callable[..., Gateway]) -> Gateway:
    """Two workers with the scripted model."""
    return serve()


@pytest.fixture(scope="session")
def trio() -> Iterator[Trio]:
    """One agent, environment and model for all tests that leave them running; ids tell them apart.

    A worker that was killed is replaced, and a deployment may be: by another one.
    """
    with private_folder() as folder:
        trio = Trio(folder)
        yield trio
        sys.stderr.writelines(trio.stop())
