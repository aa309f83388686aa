# SPDX-License-Identifier: Apache-2.0
"""Workers that die in the middle of one operation: one command a line in, a few answers out.

Run as a program, never imported. Each command forks a worker. It prepares the operation, says
``ready``, and is killed before the call with the number ``at``; with ``at`` 0 it does all of it and
says ``done``. With ``wait`` it has no fault points of its own: it begins at SIGUSR1, so that a
tracer can be attached first, and says what refused it. When it has ended the parent says how.
"""

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support.steps import OPERATIONS, Scene, new_worker, stepping

from rollout_router import claims
from rollout_router.claims import ClaimsError, FileClaimStore, Host, repair


def say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def prepare(operation: str, state_dir: Path, run_dir: Path) -> Any:
    """What is to be done, after it was said who does it."""
    if operation == "open":
        say(ready=os.getpid())
        return lambda: FileClaimStore.open(state_dir, service="model")
    if operation == "boot":
        host = Host(boot_id="the next boot", mountinfo=Host.here().mountinfo)
        say(ready=os.getpid())
        return lambda: FileClaimStore.open(state_dir, service="model", host=host)
    store = FileClaimStore.open(state_dir, service="model")
    if operation == "repair":
        say(ready=os.getpid())
        return lambda: repair(store)
    life = new_worker(store, run_dir)
    scene = Scene(store=store, run_dir=run_dir, owner=life.owner)
    act = OPERATIONS[operation].prepare(scene)
    say(ready=os.getpid(), owner=asdict(life.owner), highest=scene.highest)
    return lambda: (act(), life)  # for as long as it acts, it lives


def work(*, operation: str, state_dir: str, run_dir: str, at: int, wait: bool = False) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    act = prepare(operation, Path(state_dir), Path(run_dir))
    if wait:
        signal.sigwait({signal.SIGUSR1})
        refused = ""
        try:
            act()
        except ClaimsError as error:
            refused = type(error).__name__
        say(refused=refused)
        return

    def die(number: int, _: str) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with stepping(die) as names:
        act()
    say(done=names)


def main() -> None:
    for name in claims.__all__:
        getattr(claims, name)  # imported before the forks, and not in each
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            work(**json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
