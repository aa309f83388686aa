# SPDX-License-Identifier: Apache-2.0
"""An application with the router installed, behind a stock uvicorn with two workers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.gateway import import_path

__all__ = ["stock_uvicorn"]

WORKERS = 2


@contextmanager
def stock_uvicorn(app: str, folder: Path, *arguments: str) -> Iterator[str]:
    """Serve *app*, which finds its store and its sockets below *folder*; the base URL."""
    environment = {
        **os.environ,
        "PYTHONPATH": import_path(),
        "TEST_STATE_DIR": str(folder / "state"),
        "TEST_RUN_DIR": str(folder / "run"),
    }
    command = [sys.executable, "-m", "uvicorn", app, "--port", "0", "--workers", str(WORKERS)]
    process = subprocess.Popen(
        [*command, *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    if process.stderr is None:
        raise RuntimeError("stderr is a pipe")
    url, ready = "", 0
    with process.stderr as lines:
        for line in lines:
            if "running on" in line:
                url = line.split("running on ")[1].split()[0]
            ready += "Application startup complete" in line
            if ready == WORKERS:
                break
        try:
            yield url
        finally:
            process.terminate()
            lines.read()
            process.wait(30)
