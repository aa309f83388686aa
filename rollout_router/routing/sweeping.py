# SPDX-License-Identifier: Apache-2.0
"""The sweeper of one worker: looks often, sweeps when there is a reason, slowly, and alone (C3).

A look lists the owner files and asks their life locks. Only a dead owner that the last pass did not
leave on purpose, or ten minutes without a pass, are a reason for one. A pass runs in a thread of
its own in short slices, so the event loop keeps the interpreter, and one worker a store runs one.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Final

from rollout_router.claims import (
    FileClaimStore,
    Owner,
    StoreUnavailable,
    Swept,
    dead_owners,
    lock_at,
    sweep_alone,
)
from rollout_router.metrics import SWEPT

__all__ = ["PASS_EVERY_S", "Sweeping"]

PASS_EVERY_S: Final = 600.0
"""How often a pass runs although nobody died: tombstones and temporary files are in no hurry."""

LOCK_TIMEOUT_S: Final = 0.25
"""How long a pass waits for a lock: it is held for a millisecond, and what is held longer is left for
the next pass, so that a worker that leaves does not wait for its sweeper."""

SLICE_S: Final = 0.005
PAUSE_S: Final = 0.045
"""A pass may have a tenth of the interpreter: 100,000 claims take some 20 seconds."""

_logger = logging.getLogger(__name__)


class Sweeping:
    """Made by a worker's start, ended by its leaving.

    Args:
        store: whose claims.
        tombstone_age_max: how long a lost session says 410.
        clock: seconds that only rise.
    """

    def __init__(
        self,
        store: FileClaimStore,
        *,
        tombstone_age_max: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store.with_lock_timeout(LOCK_TIMEOUT_S)
        self._tombstone_age_max = tombstone_age_max
        self._clock = clock
        self._stopped = threading.Event()
        self._left: frozenset[Owner] = frozenset()  # dead owners that the last pass had to leave
        self._pass_due_at = clock() + PASS_EVERY_S
        self._held_up_since: float | None = None  # another worker holds the lock of sweeps
        self.thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sweeper")

    def look(self) -> Swept | None:
        """Sweep if there is a reason. Blocks as long as a pass takes: run it in :attr:`thread`.

        Returns:
            What was cleared; None where there was no reason, or another worker sweeps.

        Raises:
            StoreUnavailable: what was cleared until then stays cleared; look again.
        """
        dead = frozenset(dead_owners(self._store))
        if dead <= self._left and self._clock() < self._pass_due_at:
            return None
        swept = sweep_alone(
            self._store,
            now=datetime.now(UTC),
            tombstone_age_max=self._tombstone_age_max,
            pace=_Pace(self._stopped, self._clock),
        )
        if swept is None:
            self._warn_held_up()
            return None
        self._held_up_since = None
        if swept.whole:
            self._left = frozenset(owner for owner in dead if owner.nonce not in swept.owners)
            self._pass_due_at = self._clock() + PASS_EVERY_S
        return swept

    def look_and_log(self) -> None:
        """As :meth:`look`; what it cleared and what it could not is logged."""
        try:
            swept = self.look()
        except StoreUnavailable as error:
            _logger.warning("the sweep is tried again: %s", error)
            return
        if swept is None:
            return
        cleared = _counts(swept)
        for what, count in cleared.items():
            SWEPT.labels(what=what).inc(count)
        if cleared:
            _logger.info("swept %s", ", ".join(f"{n} {what}" for what, n in cleared.items()))
        for left in (*swept.unreadable, *swept.failed):
            _logger.warning("not swept: %s (%s)", left.path, left.code)

    def _warn_held_up(self) -> None:
        """Say it where another worker sweeps for longer than any pass takes: it may be stopped."""
        now = self._clock()
        if self._held_up_since is None:
            self._held_up_since = now
        if now - self._held_up_since >= PASS_EVERY_S:
            self._held_up_since = now
            path = f"{self._store.state_dir}/locks/sweep"
            use = lock_at(path)
            held_by = (
                use if isinstance(use, str) else use.holders or "a process that cannot be seen"
            )
            _logger.warning(
                "no sweep for %.0f s: %s is held by %s; let that worker go on, or end it",
                PASS_EVERY_S,
                path,
                held_by,
            )

    def stop(self) -> None:
        """End a pass that runs, within a slice or a wait for a lock, and let the thread end."""
        self._stopped.set()
        self.thread.shutdown(wait=False)


class _Pace:
    """Work for a slice, wait for a pause; False once stopped."""

    def __init__(self, stopped: threading.Event, clock: Callable[[], float]) -> None:
        self._stopped = stopped
        self._clock = clock
        self._slice_ends_at = clock() + SLICE_S

    def __call__(self) -> bool:
        if self._clock() < self._slice_ends_at:
            return not self._stopped.is_set()
        stopped = self._stopped.wait(PAUSE_S)
        self._slice_ends_at = self._clock() + SLICE_S
        return not stopped


def _counts(swept: Swept) -> dict[str, int]:
    """What was cleared, and how much of it; what was not is left out."""
    counts = {
        "rollouts": len(swept.freed),
        "lost sessions": len(swept.lost),
        "tombstones": len(swept.forgotten),
        "owner files": len(swept.owners),
        "sockets": len(swept.sockets),
        "temporary files": len(swept.leftovers),
    }
    return {what: count for what, count in counts.items() if count}
