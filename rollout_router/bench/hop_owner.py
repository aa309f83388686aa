# SPDX-License-Identifier: Apache-2.0
"""The owner's end of a measured hop, a process of its own: ``python -m … SOCKET``.

The application of the benchmark behind uvicorn, which is set up as at a worker's private socket.
"""

import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import uvicorn

from rollout_router.bench.app import app

__all__ = ["READY", "config"]

READY: Final = "the owner of the hop listens"


def config() -> uvicorn.Config:
    """What a worker's private server has, on the loop of a worker."""
    return uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=2048,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=24 * 3600,
        timeout_graceful_shutdown=1,
    )


def _main(path: Path) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises again what it stopped for
        signal.signal(number, lambda *_: sys.exit(0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(2048)
        logging.getLogger(__name__).info(READY)
        uvicorn.Server(config()).run(sockets=[listener])


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
