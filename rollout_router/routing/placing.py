# SPDX-License-Identifier: Apache-2.0
"""The load file of one worker, and its choice among those that have one.

``<run>/<nonce>.load`` stands beside the worker's socket for as long as it takes new rollouts. It is
written as calls begin and end, and read by whoever places a rollout, once in the rollout's life.
Nobody maps it: a write that cannot be done would end the process, and so only ends a hint.
"""

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollout_router.metrics import PLACEMENTS
from rollout_router.routing.placement import LOAD_BYTES, Load, decode, encode, place

__all__ = ["SILENT_S_MAX", "Placed", "Placing"]

SILENT_S_MAX: Final = 3.0
"""A worker whose load is older gets no new rollouts: it is stopped, stuck or dead. Twelve times as
long as between two turns of housekeeping, which writes it again."""

_SUFFIX: Final = ".load"
_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Placed:
    """Where one new rollout goes; it is counted for that worker until the worker counts it."""

    worker: str
    load_at: float | None  # of the load that it was chosen by
    _coming: Counter[str] | None

    def counted(self) -> None:
        """The worker counts it, or will not have it. Again is harmless."""
        if self._coming is not None:
            self._coming[self.worker] -= 1
            self._coming = None


class Placing:
    """What one worker says of its load, and where it places new rollouts. For one event loop.

    Args:
        path: of this worker's load file, in the directory of all of them.
        store_id: whose workers are chosen from; another service may use the directory too.
        draw: chooses among equals.
        clock: monotonic seconds, the same in every process of the host.
    """

    def __init__(
        self,
        path: Path,
        *,
        store_id: str,
        draw: Callable[[Sequence[str]], str] = secrets.choice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._store_id = store_id
        self._draw = draw
        self._clock = clock
        self._coming: Counter[str] = Counter()
        self._failed: dict[str, float | None] = {}  # the load by which a worker was chosen in vain
        self._descriptor = -1  # of the file, between two that are published anew
        self._warned = False

    def publish(self, *, calls: int, rollouts: int, anew: bool = False) -> None:
        """Say what this worker has in hand. Never raises: an old load only costs spread.

        *anew* opens the file again, which may have been removed. Otherwise it is one write of 128
        bytes.
        """
        if anew:
            self.close()
        line = encode(
            Load(calls=calls, rollouts=rollouts, at=self._clock()), store_id=self._store_id
        )
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, line, 0)
        except OSError as error:
            if not self._warned:  # it is tried again, often
                _logger.warning("%s: no new rollouts are placed here: %s", self._path, error)
            self._warned = True
        else:
            self._warned = False

    def withdraw(self) -> None:
        """Take no new rollouts any more. A file that stays is silent soon, and swept later."""
        self.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("the load file %s is left behind: %s", self._path, error)

    def close(self) -> None:
        """Give the descriptor back. Publishing takes one again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def choose(self) -> Placed:
        """The worker for one new rollout; this one where nobody says that it takes any."""
        loads = self._loads()
        me = self._path.stem
        chosen = place(loads, self._coming, self._draw) if loads else me
        self._coming[chosen] += 1
        PLACEMENTS["here" if chosen == me else "peer"].inc()
        load = loads.get(chosen)
        return Placed(chosen, load.at if load else None, self._coming)

    def pass_by(self, chosen: Placed) -> None:
        """Choose its worker no more until that says something new."""
        PLACEMENTS["nobody"].inc()
        self._failed[chosen.worker] = chosen.load_at

    def _loads(self) -> dict[str, Load]:
        oldest_at = self._clock() - SILENT_S_MAX
        found = {
            worker: load
            for worker, load in self._read()
            if load.at >= oldest_at and self._failed.get(worker) != load.at
        }
        self._failed = {
            worker: at for worker, at in self._failed.items() if at is not None and at >= oldest_at
        }
        return found

    def _read(self) -> list[tuple[str, Load]]:
        read, directory = [], self._path.parent
        try:
            names = os.listdir(directory)  # noqa: PTH208 - names
        except OSError:
            return []  # removed with all that was in it; its workers bind their sockets anew
        for name in names:
            if not name.endswith(_SUFFIX):
                continue
            try:
                descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    line = os.read(descriptor, LOAD_BYTES)
                finally:
                    os.close(descriptor)
            except OSError:
                continue  # its worker left since, or nobody can read it
            if load := decode(line, store_id=self._store_id):
                read.append((name.removesuffix(_SUFFIX), load))
        return read
