# SPDX-License-Identifier: Apache-2.0
"""The sweeper of one worker: looks often, sweeps when there is a reason, slowly, and alone (C3).

A look lists the owner files and asks their life locks. A reason for a pass is a dead worker that
the last one did not find, thirty seconds after one that could not clear everything, and ten minutes
in any case. A pass runs in a thread of its own in short slices, so that the event loop keeps the
interpreter. One worker a store runs one; who waits for longer than a minute sweeps beside it, which
is as safe and only double work: the other may be stopped.
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
    sweep,
    sweep_alone,
)
from rollout_router.metrics import SWEEP_SECONDS, SWEEPS, SWEPT

__all__ = ["PASS_EVERY_S", "Pace", "Sweeping", "counts_of"]

PASS_EVERY_S: Final = 600.0
"""How often a pass runs although nobody died: tombstones and temporary files are in no hurry."""

AGAIN_AFTER_S: Final = 30.0
"""When a pass follows one that met a held stripe, a full disk or the like."""

HELD_UP_S: Final = 60.0
"""So long a look lets another worker sweep."""

LOCK_TIMEOUT_S: Final = 0.25
"""How long a pass waits for a lock: it is held for a millisecond, and what is held longer is left
for the next pass, so that a worker that leaves does not wait for its sweeper."""

SLICE_S: Final = 0.002
PAUSE_S: Final = 0.003
"""A pass may have two fifths of the interpreter, and the event loop waits for a slice at most."""

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
        self._left: frozenset[Owner] = frozenset()  # dead owners whose files the last pass left
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
        swept = self._swept(sweep_alone)
        if swept is None:
            if not self._held_up_for_long():
                return None
            swept = self._swept(sweep)
        self._held_up_since = None
        if swept is not None and swept.whole:
            self._left = frozenset(owner for owner in dead if owner.nonce not in swept.owners)
            wait_s = AGAIN_AFTER_S if swept.failed else PASS_EVERY_S
            self._pass_due_at = self._clock() + wait_s
        return swept

    def _swept(self, how: Callable[..., Swept | None]) -> Swept | None:
        return how(
            self._store,
            now=datetime.now(UTC),
            tombstone_age_max=self._tombstone_age_max,
            pace=Pace(self._stopped, self._clock),
        )

    def look_and_log(self) -> Swept | None:
        """As :meth:`look`; it is counted, and what could not be cleared is logged."""
        began_s = self._clock()
        try:
            swept = self.look()
        except StoreUnavailable as error:
            _logger.warning("the sweep is tried again: %s", error)
            return None
        if swept is None:
            return None
        SWEEPS["whole" if swept.whole else "partial"].inc()
        SWEEP_SECONDS.observe(self._clock() - began_s)
        for what, count in counts_of(swept).items():
            SWEPT[what].inc(count)
        for left in (*swept.unreadable, *swept.failed):
            _logger.warning("not swept: %s (%s)", left.path, left.code)
        return swept

    def _held_up_for_long(self) -> bool:
        """Whether another worker sweeps for longer than this one waits; then it is said."""
        now = self._clock()
        if self._held_up_since is None:
            self._held_up_since = now
        if now - self._held_up_since < HELD_UP_S:
            return False
        path = f"{self._store.state_dir}/locks/sweep"
        use = lock_at(path)
        holders = use if isinstance(use, str) else use.holders
        _logger.warning(
            "%s is held for more than %.0f s (%s): its process may be stopped; sweeping beside it",
            path,
            HELD_UP_S,
            holders or "by nobody now",
        )
        return True

    def stop(self) -> None:
        """End a pass that runs, within a slice or a wait for a lock, and let the thread end."""
        self._stopped.set()
        self.thread.shutdown(wait=False)


class Pace:
    """Work for a slice, wait for a pause; False once *stopped*, by default never."""

    def __init__(
        self, stopped: threading.Event | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stopped = stopped or threading.Event()
        self._clock = clock
        self._slice_ends_at = clock() + SLICE_S

    def __call__(self) -> bool:
        """Whether to go on."""
        if self._clock() < self._slice_ends_at:
            return not self._stopped.is_set()
        stopped = self._stopped.wait(PAUSE_S)
        self._slice_ends_at = self._clock() + SLICE_S
        return not stopped


def counts_of(swept: Swept) -> dict[str, int]:
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
