# SPDX-License-Identifier: Apache-2.0
"""The owner's end of a measured hop, a process of its own: ``python -m … SOCKET``.

The application of the benchmark behind a worker's own private server, on the loop of a worker; what
a worker has besides, router and claims, is left out.
"""

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Final

import uvloop

from rollout_router.bench.app import app
from rollout_router.routing.limits import Limits
from rollout_router.routing.private import PrivateServer

__all__ = ["READY"]

READY: Final = "the owner of the hop listens"


async def _serve(path: Path) -> None:
    """Serve until SIGINT or SIGTERM."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    server = PrivateServer(path, app, limits=Limits())  # those of `serve`
    await server.start()
    logging.getLogger(__name__).info(READY)
    await over.wait()
    await server.stop()


def _main(path: Path) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("uvicorn.access").propagate = False  # as in a worker
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(path))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
