# SPDX-License-Identifier: Apache-2.0
"""The gate of one worker: whether it lets a request in as its owner (R6).

The gate file is read when the worker starts and then by its housekeeping; a request costs no disk
access for it. A gate that cannot be read is closed. A worker may close its own gate for good.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rollout_router.claims import Gate, read_gate
from rollout_router.errors import Refusal
from rollout_router.routing.decision import admission_closed

__all__ = ["Admission"]


class Admission:
    """The gate as this worker last saw it."""

    def __init__(self, state_dir: Path) -> None:
        """Read the gate: a worker that starts while it is closed starts closed."""
        self._state_dir = state_dir
        self._own: Gate | None = None
        self._reading = threading.Lock()  # what was read first may not be kept last
        self._shared = read_gate(state_dir)
        self._waking: set[Callable[[], object]] = set()  # those that wait for it to be open

    @property
    def gate(self) -> Gate:
        """What decides now."""
        return self._own or self._shared

    def check(self, rollout_id: str, *, claim_epoch: int | None = None) -> None:
        """Look at the gate.

        Raises:
            Refusal: it is closed.
        """
        if not (gate := self.gate).open:
            closed = admission_closed(gate)
            raise Refusal(
                closed.code,
                f"rollout {rollout_id}: {closed.message}",
                rollout_id=rollout_id,
                claim_epoch=claim_epoch,
            )

    def refresh(self) -> None:
        """Read the gate again. Blocks for one small read: call it in a thread."""
        with self._reading:
            self._shared = read_gate(self._state_dir)
            if self.gate.open:
                for wake in self._waking.copy():
                    wake()

    async def wait_open(self) -> None:
        """Return once the gate is open; woken by the :meth:`refresh` that sees it."""
        woken = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        self._waking.add(wake)  # before the look: a refresh looks here after it wrote
        try:
            while not self.gate.open:
                woken.clear()
                await woken.wait()
        finally:
            self._waking.discard(wake)

    def close_own(self, *, by: str, why: str) -> None:
        """Let nothing more in at this worker, whatever the gate file says; it leaves."""
        self._own = Gate(open=False, by=by, why=why)
