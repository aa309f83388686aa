# SPDX-License-Identifier: Apache-2.0
"""Plays cells: a session, and the faults that happen to its processes. One line of JSON each.

Started as a program. It imports everything once and forks every process of a cell, while it has
neither threads nor an event loop; so a process costs some milliseconds. Each stands still at the
points of its plan until it is answered here, so nothing depends on how fast anything is. A cell is

    {"loop": "tools" or "once", "mutant": name or null, "clocks_s": [...],
     "stops": [[process, point, target, action], ...]}

Stops happen in their order. An action is an order to the process (see points.py and children.py),
or one of the bench's own:

    kill WHO           SIGKILL agent, environment or both; each is replaced by a new process, an
                       agent under the next claim epoch
    freeze MOMENT      SIGSTOP the agent; its successor takes over. It goes on once that one has
                       begun, delivered or ended, or was refused
"""

import gc
import json
import os
import select
import signal
import socket
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from support.faults.children import agent, environment, outside
from support.faults.forked import Child
from support.faults.mutants import MUTANTS
from support.folders import private_folder

from rollout_router.checkpoint.environments import Environments

__all__ = ["Bench", "Cell", "play_all"]

_SILENT_S: Final = 30.0  # no process says anything: a cell that hangs has failed
_ATTEMPTS_MAX: Final = 8
_OPERATIONS: Final = """
SELECT sequence, claim_epoch, kind, effect, environment_id, request_digest, result, revision,
  orphans, chain FROM operation ORDER BY sequence
"""
_EFFECTS: Final = """
CREATE TABLE effect (environment_id, revision, sequence, request_digest, status, body);
CREATE TRIGGER made AFTER INSERT ON environment BEGIN INSERT INTO effect VALUES
  (new.environment_id, new.revision, new.sequence, new.request_digest, new.status, new.body); END;
CREATE TRIGGER done AFTER UPDATE OF revision ON environment BEGIN INSERT INTO effect VALUES
  (new.environment_id, new.revision, new.sequence, new.request_digest, new.status, new.body); END;
"""


class Bench:
    """What all cells share: the world outside, and the ports."""

    def __init__(self, make: "type[Cell]") -> None:
        self._make = make
        self._held = [_bound(0), _bound(0)]  # bound and not listening: nobody else gets them
        self.ports = [held.getsockname()[1] for held in self._held]
        with closing(self.listener(0)) as listener:
            self.outside = Child(outside, [], listener)
        self.cells = 0

    def listener(self, number: int) -> socket.socket:
        """A new listener at one of the ports."""
        made = _bound(self.ports[number])
        made.listen()
        return made

    def play(self, told: dict[str, Any]) -> dict[str, Any]:
        """Play one cell, and say what was seen."""
        self.cells += 1
        with private_folder() as folder:
            cell = self._make(self, folder, told)
            try:
                cell.play()
            except Exception:  # noqa: BLE001 - the test shows it
                cell.seen["failed"] = traceback.format_exc()
            finally:
                cell.end()
            return cell.seen


class Cell:
    """One cell while it is played."""

    def __init__(self, bench: Bench, folder: Path, told: dict[str, Any]) -> None:
        self._bench, self._folder, self._told = bench, folder, told
        self._name = str(bench.cells)
        self._stops: list[list[str]] = told["stops"]
        self._epoch = 0
        self._receipt: str | None = None
        self._agent: Child | None = None
        self._environment: Child | None = None
        self._frozen: list[tuple[Child, str]] = []
        self._more: list[Child] = []  # that are heard
        self._gate: dict[str, Any] = {}  # of the agent, if it has one; see control.py
        self._over = False
        self.seen: dict[str, Any] = {
            "failed": "",
            "refusals": [],  # of agents that were in charge
            "zombies": [],  # what became of those that were not
            "receipts": [],  # with the payload, of each delivery
            "outside": [],  # the operations that were performed there
            "takeovers": [],  # epoch, and the rows that were there
            "refused": [],  # all that is known, each time the operation was refused
            "told": [],  # by processes: repeated, late, torn
        }

    def play(self) -> None:
        """From the first call to the acknowledgement."""
        self._make_files()
        self._start_environment()
        self._start_agent()
        while not self._over:
            self._step()
        self._look()

    def _make_files(self) -> None:
        Environments(self._folder / "environments.sqlite3").close()
        with closing(sqlite3.connect(self._folder / "environments.sqlite3")) as db:
            db.executescript(_EFFECTS)

    def _look(self) -> None:
        self.seen["unreached"] = self._stops
        self.seen["effects"] = self._rows(
            "environments", "SELECT * FROM effect ORDER BY environment_id, revision, sequence"
        )
        self.seen["left"] = {
            "operations": self._rows("journal", "SELECT * FROM operation"),
            "payloads": self._rows("journal", "SELECT 1 FROM outbox WHERE payload IS NOT NULL"),
            "environments": self._rows("environments", "SELECT 1 FROM environment"),
        }

    def end(self) -> None:
        """Leave no process."""
        for child in (self._agent, self._environment, *(frozen for frozen, _ in self._frozen)):
            if child is not None:
                child.end()

    def _start_agent(self) -> None:
        self._epoch += 1
        if self._epoch > _ATTEMPTS_MAX:
            raise RuntimeError("it does not come to its end")
        clocks_s = self._told["clocks_s"]
        told = {
            "folder": str(self._folder),
            "loop": self._told["loop"],
            "outside": f"http://127.0.0.1:{self._bench.ports[0]}/{self._name}",
            "environment": f"http://127.0.0.1:{self._bench.ports[1]}",
            "epoch": self._epoch,
            "receipt": self._receipt,
            "clock_s": clocks_s[self._epoch % len(clocks_s)],
            **self._gate,
        }
        self._agent = self._child(agent, told)

    def _start_environment(self) -> None:
        with closing(self._bench.listener(1)) as listener:
            told = {"folder": str(self._folder)}
            self._environment = self._child(environment, told, listener)

    def _child(self, main: Callable[..., None], *told: Any) -> Child:
        @wraps(main)
        def mutated(*told: Any) -> None:
            if self._told["mutant"] is not None:
                MUTANTS[self._told["mutant"]]()
            main(*told)

        planned = [(at, target) for kind, at, target, _ in self._stops if kind == main.__name__]
        return Child(mutated, planned, *told)

    def _step(self) -> None:
        """Hear one process, and answer."""
        frozen = [child for child, moment in self._frozen if not moment]
        heard = [self._agent, self._environment, self._bench.outside, *self._more, *frozen]
        ready, _, _ = select.select([child for child in heard if child], [], [], _SILENT_S)
        if not ready:
            raise RuntimeError("nothing happens")
        child = ready[0]
        if (said := child.hear()) is None:
            self._ended(child)
        elif (order := getattr(self, f"_hear_{said[0]}")(child, *said[1:])) is not None:
            child.answer(order)

    def _ended(self, child: Child) -> None:
        code = child.end(None)
        if child is self._agent:
            self._agent = None
            if code:
                self.seen["refusals"].append(f"ended with {code}")
            self._start_agent()
        elif child is self._environment and code in (0, -signal.SIGTERM):
            self._start_environment()  # it could write no more, and asked for its end
        elif child is self._environment or child is self._bench.outside:
            raise RuntimeError(f"a server ended with {code}")
        else:
            self._frozen = [one for one in self._frozen if one[0] is not child]
            if code:
                self.seen["zombies"].append(f"ended with {code}")

    def _hear_at(self, child: Child, point: str, target: str, cell: str = "") -> str | None:
        if child is self._bench.outside:
            if cell != self._name:
                return "go"
            if point == "replied":
                self.seen["outside"].append(target)
        here = [child.kind, point, target]
        if child in dict(self._frozen) or not self._stops or self._stops[0][:3] != here:
            return "go"
        action = self._stops.pop(0)[3]
        match action.split():
            case ["kill", whom]:
                return self._kill(child, whom)
            case ["freeze", moment]:
                return self._freeze(moment)
            case ["late", _]:
                child.answer(action)
                self._kill(child, "agent")
                return None
            case ["park" | "refuse" | "pass"]:
                self.seen["refused"].append([self._journal(), len(self.seen["outside"])])
        return action

    def _kill(self, child: Child, whom: str) -> str | None:
        alive = True
        if whom in ("environment", "both") and self._environment is not None:
            alive = child is not self._environment
            self._environment.end()
            self._environment = None
            self._start_environment()
        if whom in ("agent", "both") and self._agent is not None:
            alive = alive and child is not self._agent
            self._agent.end()
            self._agent = None
            self._start_agent()
        return "go" if alive else None

    def _freeze(self, moment: str) -> str:
        if self._agent is None:
            raise RuntimeError("there is no agent to freeze")
        os.kill(self._agent.pid, signal.SIGSTOP)
        os.waitpid(self._agent.pid, os.WUNTRACED)
        self._frozen.append((self._agent, moment))
        self._start_agent()
        return "go"

    def _thaw(self, moment: str) -> None:
        """Let the frozen go on until they end, while everything else stands still."""
        thawed = [child for child, due in self._frozen if due == moment]
        for child in thawed:
            self._frozen = [(one, "" if one is child else due) for one, due in self._frozen]
            os.kill(child.pid, signal.SIGCONT)
            while child in dict(self._frozen):
                self._step()

    def _hear_opened(self, child: Child, epoch: int) -> str:
        if child is self._agent:
            self.seen["takeovers"].append([epoch, self._journal()])
            self._thaw("begun")
        return "go"

    def _hear_delivered(self, child: Child, receipt: str, payload: str) -> str:
        self.seen["receipts"].append([receipt, payload])
        self._receipt = receipt
        if child is self._agent or "journal" not in self.seen:
            self.seen["journal"] = self._journal()
        if child is self._agent:
            self._thaw("delivered")
        return "go"

    def _hear_refused(self, child: Child, code: str, message: str) -> str:
        if child is not self._agent:
            self.seen["zombies"].append(code)
            return "end"
        self.seen["refusals"].append(code)
        self._thaw("refused")
        if len(self.seen["refusals"]) > _ATTEMPTS_MAX:
            raise RuntimeError(f"it is refused again and again: {message}")
        # After an I/O error its process writes no more; after anything else it may try again.
        # And who asks for what was taken from another agent is told by that one's receipt.
        over = code == "result_acknowledged" and self._receipt is not None
        return "end" if over or "nothing more is written" in message else "again"

    def _hear_acknowledged(self, child: Child) -> str:
        if child is self._agent:
            self._thaw("ended")
            self._over = True
        else:
            self.seen["zombies"].append("acknowledged")
        return "end"

    def _hear_unavailable(self, child: Child, message: str) -> str | None:
        if "nothing more is written" in message:
            return self._kill(child, "environment")
        return "go"

    def _hear_torn(self, child: Child, bytes_: int) -> str | None:
        self.seen["told"].append(["torn", bytes_])
        return self._kill(child, "agent" if child is self._agent else "environment")

    def _hear_repeated(self, _: Child, *same: bool) -> str:
        self.seen["told"].append(["repeated", *same])
        return "go"

    def _hear_late(self, _: Child, *answer: Any) -> str:
        self.seen["told"].append(["late", *answer])
        return "go"

    def _journal(self) -> dict[str, Any]:
        return {
            "rows": self._rows("journal", _OPERATIONS),
            "rollout": self._rows(
                "journal", "SELECT claim_epoch, attempt, restarts, status, next, head FROM rollout"
            ),
        }

    def _rows(self, name: str, query: str) -> list[list[Any]]:
        with closing(sqlite3.connect(self._folder / f"{name}.sqlite3")) as db:
            return [
                [sha256(one).hexdigest() if isinstance(one, bytes) else one for one in row]
                for row in db.execute(query)
            ]


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def play_all(make: type[Cell] = Cell) -> None:
    """Play each cell that standard input names, and print what was seen."""
    gc.freeze()  # children share what is there
    bench = Bench(make)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(bench.play(json.loads(line))) + "\n")
        sys.stdout.flush()
    bench.outside.end()


if __name__ == "__main__":
    play_all()
