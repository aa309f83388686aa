# SPDX-License-Identifier: Apache-2.0
"""Services in PID namespaces of their own, as containers have them: docs/guides/containers.md.

What a container engine sets up besides (images, mounts, limits) is its own business.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest
from support.gateway import COMMAND, Gateway

CONTAINER = ("unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")
BODY = b'{"model": "m", "input": "hello"}'


@cache
def _refused() -> str:
    """Why this machine gives no PID namespace; empty where it does."""
    try:
        done = subprocess.run([*CONTAINER, "true"], check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip()


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(_refused()), reason=f"no PID namespace: {_refused()}"),
]


class Contained(Gateway):
    """A gateway that is process 1 of a PID namespace of its own."""

    @property
    def init(self) -> int:
        """Its supervisor, as it is seen from outside."""
        (child,) = psutil.Process(self.process.pid).children()
        return child.pid


@pytest.fixture
def contained(folder: Path) -> Iterator[Contained]:
    """One worker in a container."""
    start = folder / "start"
    start.write_text(f'#!/bin/sh\nexec {" ".join(CONTAINER)} {COMMAND} "$@"\n')
    start.chmod(0o700)
    own = folder / "c"
    own.mkdir()

    class _Started(Contained):
        program = str(start)

    service = _Started(own, workers=1)
    yield service
    if service.process.poll() is None:
        os.kill(service.init, signal.SIGKILL)
        service.wait_exit()


def test_c3_an_owner_in_another_pid_namespace_is_judged_by_its_lock(
    contained: Contained, serve: Callable[..., Gateway]
) -> None:
    beside = serve("--run-dir", str(contained.folder / "run"), workers=1, state=contained.folder)
    first = contained.post("r1", BODY)
    owner, epoch = first.headers["rollout-worker"], int(first.headers["rollout-claim-epoch"])

    claim = contained.claims()["r1"]
    inside = {child.pid for child in psutil.Process(contained.init).children(recursive=True)}
    assert claim["verdict"] == "alive"
    assert claim["pid"] not in inside  # that of its own namespace
    assert beside.post("r1", BODY).headers["rollout-worker"] == owner  # one hop, between the two

    os.kill(contained.init, signal.SIGKILL)  # and with it all that is in its namespace
    contained.wait_exit()
    moved = beside.post("r1", BODY)
    assert moved.status_code == 200
    assert moved.headers["rollout-worker"] != owner
    assert int(moved.headers["rollout-claim-epoch"]) > epoch


def test_a_service_that_is_process_1_drains_when_it_is_told_to_end(contained: Contained) -> None:
    assert contained.ready["pid"] == 1
    contained.post("r1", BODY)
    os.kill(contained.init, signal.SIGTERM)
    assert contained.wait_exit() == 0
    assert contained.claims() == {}  # given back
