# SPDX-License-Identifier: Apache-2.0
"""How a server ends itself: as its supervisor would end it, which then starts another one."""

import asyncio
import signal
from collections.abc import Callable

__all__ = ["asking_to_end"]


def asking_to_end() -> Callable[[], None]:
    """What asks this process to end, from any thread. Made on its event loop."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        loop.call_soon_threadsafe(signal.raise_signal, signal.SIGTERM)

    return ask
