# SPDX-License-Identifier: Apache-2.0
"""The product as processes of their own: they end with whoever started them."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rollout_router import processes
from rollout_router.processes import Service, ServiceFailed

START = """
import sys
from pathlib import Path
from rollout_router.processes import Gateway, Shim
folder = Path(sys.argv[1])
gateway = Gateway(folder, apart=True)
shim = Shim(folder, gateway.url, apart=True)
print("started", flush=True)
sys.stdin.read()
"""
LIMIT_S = 60.0


def test_a_gateway_and_a_shim_end_with_a_process_that_was_killed(folder: Path) -> None:
    command = [sys.executable, "-c", START, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "started\n"
        children = psutil.Process(starter.pid).children(recursive=True)
        assert len(children) >= 4  # a shim, a supervisor, two workers
        watches = [os.pidfd_open(child.pid) for child in children]
        starter.send_signal(signal.SIGKILL)
    try:
        for watch in watches:
            assert select.select([watch], [], [], LIMIT_S)[0]
    finally:
        for watch in watches:
            os.close(watch)


def test_a_line_that_never_comes_is_not_waited_for_while_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "READY_S", 0.05)
    service = Service("the chatterbox", ["yes"], log=tmp_path / "log", apart=True)
    try:
        with pytest.raises(ServiceFailed, match=r"the chatterbox did not say 'no' within 0\.05 s"):
            service.wait_line("no")
    finally:
        with pytest.raises(ServiceFailed, match="ended with code -15"):
            service.stop()
