# SPDX-License-Identifier: Apache-2.0
"""Plays cells in which a checkpoint is under way when a process dies. Started as a program.

A cell is one of the bench's, and has besides

    {"row": ..., "phase": ..., "whom": "agent" or "environment", "ending": "resume" or "expire"}

At a stop of the action "stand" a process stands until something else has happened. The session
comes to that of its row, the gate is closed, and the session goes on until it waits there, unless
the phase is "preparing" and an operation is in hand. Where the checkpoint has come to its phase,
one is killed. Then either the controller goes on to a resume, or it is killed too and its budget
ends. The session goes on to its end, and what was published to another one in another deployment.
Without a phase nothing of this happens.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from support.faults.bench import Bench, Cell, play_all
from support.faults.control import CHECKPOINT, controller, moment
from support.faults.forked import Child

from rollout_router.checkpoint.archive import list_archives, read_archive
from rollout_router.checkpoint.control import Checkpoints
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.restoring import kept_in
from rollout_router.claims import FileClaimStore, read_gate

__all__ = ["Controlled"]

_BEFORE: Final = {  # what the controller does after a prepare and before the death
    "records written": ["commit"],
    "linked": ["commit"],
    "committed": ["commit"],
    "restored": ["commit", "resume"],
    "resumed": ["commit", "resume"],
}
_AFTER: Final = {  # and after it
    "preparing": ["prepare", "commit", "resume"],
    "prepared": ["commit", "resume"],
    "records written": ["resume"],  # the commit goes on
    "linked": ["resume"],
    "committed": ["resume"],
    "restored": [],
    "resumed": [],
}


class Controlled(Cell):
    """One cell, or its other deployment."""

    def __init__(
        self, bench: Bench, folder: Path, told: dict[str, Any], archives: Path | None = None
    ) -> None:
        super().__init__(bench, folder, told)
        store = FileClaimStore.open(folder / "state", service="agent")
        self._gate = {
            "state_dir": str(folder / "state"),
            "store_id": store.store_id,
            "late": False,
        }
        self._archives = archives or folder / "archives"
        self._standing: list[Child] = []  # at points, while something else happens
        self._controller: Child | None = None
        self._did = False
        self._parked = False
        self._released = False
        self._fresh: Controlled | None = None

    def play(self) -> None:
        """From the first call to the acknowledgement, in both deployments."""
        phase, row = self._told["phase"], self._told["row"]
        if phase is None:
            super().play()
            return
        self._epoch = 3  # the other deployment begins below
        self._make_files()
        self._start_environment()
        self._start_agent()
        self._until(lambda: self._standing)
        self._start_controller()
        self._order("prepare")
        # Who waits to deliver has nothing in hand; when it dies so, nobody has the result.
        if phase == "restored" or (phase != "preparing" and row != "deliver"):
            self._standing.pop().answer("go")
            self._until(lambda: self._parked or self._over)
        for command in _BEFORE.get(phase, []):
            self._order(command)
        if phase != "restored":
            self._strike()
        self._finish([] if phase == "restored" else _AFTER[phase])
        self._look()
        if self.seen["kept"] is not None:
            self._bring_back()

    def end(self) -> None:
        """Leave no process."""
        super().end()
        for child in self._more:
            child.end()
        self._agent, self._environment, self._more = None, None, []
        if self._fresh is not None:
            self._fresh.end()
            self._fresh = None

    def _bring_back(self) -> None:
        self.end()
        self._bench.cells += 1  # another name, outside too
        folder = self._folder / "fresh"
        folder.mkdir(mode=0o700)
        self._fresh = Controlled(self._bench, folder, {**self._told, "stops": []}, self._archives)
        self.seen["fresh"] = self._fresh.seen
        self._fresh.go_on()

    def go_on(self) -> None:
        """From a restore to the acknowledgement."""
        self._make_files()
        self._start_environment()
        self._start_controller()
        self._order("restore")
        self._start_agent()
        self._until(lambda: self._parked or self._over)
        if self._told["phase"] == "restored":
            self._strike()
        self._finish(["resume"])
        self._look()

    def _strike(self) -> None:
        """Kill whom it is about, and let the others go on as far as they may."""
        self.seen["struck"] = self._phase()
        whom = self._told["whom"]
        dead = self._agent if whom == "agent" else self._environment
        self._kill(self._bench.outside, whom)
        standing, self._standing = self._standing, []
        for child in standing:
            if child is self._controller:
                self._standing.append(child)
            elif child is not dead:
                child.answer("go")
        if not self.seen["struck"][1]:
            self._until(lambda: self._parked or self._over)

    def _finish(self, commands: list[str]) -> None:
        """End the checkpoint and the session."""
        if "struck" in self.seen and self._told["ending"] == "expire":
            self._gate["late"] = True
        else:
            if self._standing:
                self._standing = []
                self._order("go")
            for command in commands:
                self._order(command)
        self._more.pop().end()
        self._standing, self._released = [], True
        if self._parked and self._agent is not None:
            self._agent.answer("late" if self._gate["late"] else "go")
        self._until(lambda: self._over)

    def _look(self) -> None:
        super()._look()
        if self._controller is None:
            return
        self.seen["ended"] = self._phase()
        self.seen["archives"] = [one.code for one in list_archives(self._archives, "agent")]
        self.seen["kept"] = None
        if None in self.seen["archives"]:
            archive = read_archive(
                self._archives, instance="agent", run="run", checkpoint_id=CHECKPOINT
            )
            self.seen["kept"] = [
                [
                    one.kind,
                    one.receipt,
                    len(one.rows),
                    [copy["revision"] for copy in one.environments],
                ]
                for one in kept_in(archive)
            ]
            self.seen["deliverable"] = [one.receipt for one in archive.manifest.deliverable]

    def _phase(self) -> tuple[str, bool]:
        """The phase of the checkpoint, and whether the gate is open."""
        state_dir = Path(self._gate["state_dir"])
        path = self._folder / "journal.sqlite3"
        names = {"instance": "agent", "run": "run", "store_id": self._gate["store_id"]}

        def now() -> Any:
            return moment(self._gate)

        with closing(Journal(path, **names)) as kept:
            [known] = Checkpoints(kept, state_dir, now=now).known()
        return known.phase, read_gate(state_dir, now=now).open

    def _start_controller(self) -> None:
        told = {
            **self._gate,
            "folder": str(self._folder),
            "archives": str(self._archives),
            "environment": f"http://127.0.0.1:{self._bench.ports[1]}",
        }
        self._controller = self._child(controller, told)
        self._more = [self._controller]
        self._did = False
        self._until(lambda: self._did)

    def _order(self, command: str) -> None:
        """Have the controller do something, or come to a point in it."""
        if self._controller is not None:
            self._did = False
            self._controller.answer(command)
        self._until(lambda: self._did or self._controller in self._standing)

    def _until(self, happened: Callable[[], object]) -> None:
        while not happened():
            self._step()

    def _start_agent(self) -> None:
        self._parked = False
        super()._start_agent()

    def _ended(self, child: Child) -> None:
        if child is self._agent and self._over:
            child.end(None)
            self._agent = None
        elif child in self._more:
            self._more.remove(child)
            raise RuntimeError(f"the controller ended with {child.end(None)}")
        else:
            super()._ended(child)

    def _hear_at(self, child: Child, point: str, target: str, cell: str = "") -> str | None:
        order = super()._hear_at(child, point, target, cell)
        if order != "stand":
            return order
        self._standing.append(child)
        return None

    def _hear_parked(self, _: Child) -> None:
        if self._released:
            raise RuntimeError("it finds the gate closed, which is open")
        self._parked = True

    def _hear_did(self, _: Child) -> None:
        self._did = True

    def _hear_refused(self, child: Child, code: str, message: str) -> str:
        if code != "result_acknowledged":
            return super()._hear_refused(child, code, message)
        self.seen["refusals"].append(code)
        self._over = True
        return "end"


if __name__ == "__main__":
    play_all(Controlled)
