# SPDX-License-Identifier: Apache-2.0
"""The environments that the application of this process holds, and who may touch one.

* One operation of an environment at a time: the rest wait at its lock. A lock is gone with the last
  who used it.
* What is held is known by the row's number and revision. Where another process went on, what is
  held here is old: it is replaced by the recorded state before the next operation.
* Where the application can restore an environment, the ones that were not used for longest are
  dropped beyond a bound. Where it cannot, none ever is: it would be lost.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from rollout_router.checkpoint.environments import Environment
from rollout_router.checkpoint.errors import CheckpointRefusal

__all__ = ["HELD_MAX", "STATE_BYTES_MAX", "Held", "StatePort"]

HELD_MAX: Final = 1024
"""Environments in the memory of one process: more are restored when they are used again."""

STATE_BYTES_MAX: Final = 64 << 20
"""Of one exported state: it is written with each operation."""

_logger = logging.getLogger(__name__)


class StatePort(Protocol):
    """How an application gives an environment's state away, and takes it back.

    Called in the event loop's thread, while no operation of that environment runs: it must not
    block for long. What was restored behaves as what was exported, to the last observation.
    """

    def export(self, environment_id: str) -> bytes | None:
        """Its state after the operation that just ended; None: it holds none of this id."""

    def restore(self, environment_id: str, state: bytes) -> None:
        """Hold the environment that *state* is, in place of any other of this id."""

    def forget(self, environment_id: str) -> None:
        """Hold it no longer; nothing where it is not held."""


class Held:
    """The locks, and what the application holds.

    Args:
        state: None: the server is restart-only, nothing of its environments outlives it.
        held_max: environments that are held at most, without those in use.
    """

    def __init__(self, state: StatePort | None, *, held_max: int = HELD_MAX) -> None:
        self._state = state
        self._held_max = held_max
        self._held: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._locks: dict[str, _Lock] = {}

    @asynccontextmanager
    async def alone(self, environment_id: str) -> AsyncIterator[None]:
        """Wait until nobody else touches the environment, and keep them away."""
        lock = self._locks.setdefault(environment_id, _Lock())
        lock.users += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[environment_id]

    def known(self, environment_id: str) -> tuple[int, int] | None:
        """The row and revision that is held; None where none is."""
        return self._held.get(environment_id)

    def usable(self, environment: Environment) -> bool:
        """Whether the application holds just this, or can be given it."""
        if self._held.get(environment.environment_id) == environment.held:
            return True
        return self._state is not None and environment.state is not None

    def bring_back(self, environment: Environment) -> None:
        """Have the application hold what is recorded; it is :meth:`usable`."""
        held = self._held.get(environment.environment_id) == environment.held
        if not held and self._state is not None and environment.state is not None:
            self._state.restore(environment.environment_id, environment.state)

    def export(self, environment_id: str) -> bytes | None:
        """The state of what the application holds; None where it holds none, or cannot say.

        Raises:
            CheckpointRefusal: ``environment_failed``: it is larger than :data:`STATE_BYTES_MAX`.
        """
        state = None if self._state is None else self._state.export(environment_id)
        if state is not None and len(state) > STATE_BYTES_MAX:
            raise CheckpointRefusal(
                "environment_failed",
                f"the state of environment {environment_id} has {len(state)} bytes, at most"
                f" {STATE_BYTES_MAX} are kept",
            )
        return state

    def keep(self, environment: Environment) -> None:
        """Note that this is what the application holds now, and drop what was unused for long."""
        self._held.pop(environment.environment_id, None)
        if self._state is None or environment.state is not None:
            self._held[environment.environment_id] = environment.held
        if self._state is not None and (over := len(self._held) - self._held_max) > 0:
            idle = [one for one in self._held if one not in self._locks]
            for environment_id in idle[:over]:
                self.drop(environment_id)

    def drop(self, environment_id: str) -> None:
        """Have the application hold it no longer."""
        self._held.pop(environment_id, None)
        if self._state is None:
            return
        try:
            self._state.forget(environment_id)
        except Exception:
            # It costs memory, no more: whatever is there is replaced before it is used.
            _logger.exception("environment %s could not be dropped", environment_id)


class _Lock:
    """A lock, and how many hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
