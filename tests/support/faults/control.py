# SPDX-License-Identifier: Apache-2.0
"""The gate of a cell: an agent that works in steps behind it, and the process that closes it.

An agent that finds it closed says so, and stands still until it is told to look again. What it has
in hand is a lock on a file, which goes with its process. The points of the controller are

    records written    everything but the manifest is on the disk, and it has no name
    linked             the manifest has its name, and its folder was not synced
"""

import fcntl
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from support.faults.points import Points

from rollout_router import operate
from rollout_router.checkpoint import archive, control
from rollout_router.checkpoint.environment_server import EnvironmentServer
from rollout_router.checkpoint.journal import Journal
from rollout_router.claims import Moment, read_gate

__all__ = ["CHECKPOINT", "Gated", "controller", "moment"]

CHECKPOINT: Final = "c1"
_BUDGET_S: Final = 1000.0


def moment(told: Mapping[str, Any]) -> Moment:
    """The present one; or one after the end of every budget."""
    return Moment.now().later(2 * _BUDGET_S if told["late"] else 0.0)


class Gated:
    """The steps of the calls of one agent; see :class:`rollout_router.call.Steps`."""

    def __init__(self, points: Points, told: Mapping[str, Any]) -> None:
        self._points = points
        self._told = dict(told)
        self._in_hand = _in_hand_file(told)

    def begin(self) -> bool:
        """Count in before the look: whoever closes the gate looks here after it is closed."""
        fcntl.flock(self._in_hand, fcntl.LOCK_SH)
        if read_gate(Path(self._told["state_dir"]), now=partial(moment, self._told)).open:
            return True
        self.end()
        return False

    def end(self) -> None:
        """See the protocol."""
        fcntl.flock(self._in_hand, fcntl.LOCK_UN)

    async def wait_open(self) -> None:
        """Stand still until the gate is worth a look."""
        self._told["late"] = self._points.tell("parked") == "late"


def controller(points: Points, told: Mapping[str, Any]) -> None:
    """Does what it is told, one command after another, until it is killed."""
    vars(operate)["_blockers"] = lambda *_: _blockers(told)
    vars(control)["publish"] = partial(_publish, points, archive.publish)
    archives, server = Path(told["archives"]), EnvironmentServer(told["environment"])
    kept = Journal(
        Path(told["folder"], "journal.sqlite3"),
        instance="agent",
        run="run",
        store_id=told["store_id"],
    )
    checkpoints = control.Checkpoints(kept, Path(told["state_dir"]))
    budget: dict[str, float] = {"budget_s": _BUDGET_S, "wait_s": 0.0}
    commands: dict[str, Callable[[], Any]] = {
        "prepare": lambda: checkpoints.prepare(CHECKPOINT, **budget),
        "commit": lambda: checkpoints.commit(CHECKPOINT, archives, environments=server),
        "resume": lambda: checkpoints.resume(CHECKPOINT),
        "restore": lambda: checkpoints.restore(CHECKPOINT, archives, environments=server, **budget),
    }
    while True:
        commands[points.tell("did")]()


def _in_hand_file(told: Mapping[str, Any]) -> Any:
    return Path(told["folder"], "in hand").open("w")


def _blockers(told: Mapping[str, Any]) -> tuple[operate.Blocker, ...]:
    with _in_hand_file(told) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return (operate.Blocker(worker_id="w", rollout_id="r1", claim_epoch=None, why="works"),)
    return ()


def _publish(points: Points, real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    permit, sync = named.pop("permit"), os.fsync

    def linked(folder: int) -> None:
        os.fsync = sync
        points.reach("control", "linked")
        sync(folder)

    def name_it(link: Callable[[], None]) -> None:
        vars(os)["fsync"] = linked
        link()

    def permitted(link: Callable[[], None]) -> None:
        points.reach("control", "records written")
        permit(partial(name_it, link))

    return real(*arguments, permit=permitted, **named)
