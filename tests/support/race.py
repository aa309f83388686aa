# SPDX-License-Identifier: Apache-2.0
"""Runs the race of ``tests/unit/claims/race_process.py`` and reads what its processes wrote.

The record of a race may be read while it runs. Whatever a line up to a moment tells was caused by
calls whose first lines were written before that moment, so what is left out behind it costs answers
and never a cause.
"""

import contextlib
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.linearizability import Call, Grant, Unexplained, first_unexplained

__all__ = ["Race", "run_race"]

_PROGRAM = Path(__file__).parents[1] / "unit/claims/race_process.py"
_Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """How a race went.

    Attributes:
        calls: of all processes.
        failures: what the store said to workers that it could not serve.
        unexplained: the first call of a rollout that cannot be right.
        story: the seed, and the calls of that rollout that led there; for people.
    """

    calls: list[Call]
    failures: list[str]
    unexplained: Unexplained | None
    story: str


def run_race(
    state_dir: Path, run_dir: Path, history_dir: Path, *, store: str, workers: int, bound_s: float
) -> Race:
    """Race until something is wrong, and at most so long.

    Args:
        state_dir: of the store; made by the race.
        run_dir: of the sockets.
        history_dir: for what the processes write.
        store: which one, by its name in the program.
        workers: processes at one time, beside the operator.
        bound_s: the length of a race in which nothing goes wrong.
    """
    seed = secrets.token_hex(4)
    history_dir.mkdir()
    arguments = [state_dir, run_dir, history_dir, seed, workers, store]
    process = subprocess.Popen(
        [sys.executable, str(_PROGRAM), *map(str, arguments)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        ends_at, interval_s = time.monotonic() + bound_s, 0.5
        while (left_s := ends_at - time.monotonic()) > 0:
            code = _wait(process, min(left_s, interval_s))
            if code is not None:
                raise AssertionError(f"the race ended by itself ({code}); seed {seed}")
            if (race := _read(history_dir, seed)).unexplained:
                return race
            interval_s *= 2  # each look reads everything again
        process.communicate(timeout=60)
        if process.returncode:
            raise AssertionError(f"the race ended badly ({process.returncode}); seed {seed}")
    finally:
        if process.stdin:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):  # the crew is gone, as it should be
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _read(history_dir, seed)


def _wait(process: "subprocess.Popen[bytes]", bound_s: float) -> int | None:
    try:
        return process.wait(bound_s)
    except subprocess.TimeoutExpired:
        return None


def _read(history_dir: Path, seed: str) -> Race:
    until_ns = time.monotonic_ns()
    killing_ns: dict[str, int] = {}
    gone_ns: dict[str, int] = {}
    for line in _lines(history_dir / "conductor", until_ns):
        times, member = (
            (killing_ns, line["killing"]) if "killing" in line else (gone_ns, line["gone"])
        )
        times[str(member)] = line["at"]
    calls: list[Call] = []
    failures: list[str] = []
    doomed_ns: dict[str, int] = {}
    for path in history_dir.glob("[0-9]*"):
        lines = _lines(path, until_ns)
        own, last = _calls(lines, gone_ns.get(path.name, math.inf))
        calls += own
        failures += [line["failed"] for line in lines if "failed" in line]
        doomed_ns |= {line["doomed"]: line["at"] for line in lines if "doomed" in line}
        if last and path.name in killing_ns:
            doomed_ns.setdefault(last, killing_ns[path.name])
    calls = list(_with_epochs_seen(calls))
    unexplained = first_unexplained(calls, doomed_ns=doomed_ns)
    story = f"seed {seed}\n" + (_story(calls, unexplained) if unexplained else "")
    return Race(calls=calls, failures=failures, unexplained=unexplained, story=story)


def _lines(path: Path, until_ns: int) -> list[_Line]:
    """What a process wrote until then; a kill may have cut its last line."""
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line for line in map(json.loads, whole) if line["at"] <= until_ns]


def _calls(lines: list[_Line], gone_ns: float) -> tuple[list[Call], str | None]:
    """The calls of one process, and the name of the last worker that it was."""
    calls: list[Call] = []
    begun: Call | None = None
    by = None
    for line in lines:
        if "what" in line:
            by = line["by"]
            begun = Call(
                what=line["what"],
                by=by,
                rollout=line["rollout"],
                names=_grant(line["names"]),
                invoked_ns=line["at"],
                returned_ns=gone_ns,
                happened=True,
                cut=True,
            )
        elif begun and ("happened" in line or "unreadable" in line):
            calls.append(
                replace(
                    begun,
                    returned_ns=line["at"],
                    happened=line.get("happened", False),
                    epoch=line.get("epoch"),
                    found=_grant(line.get("found")),
                    unreadable="unreadable" in line,
                    cut=False,
                )
            )
            begun = None
    if begun and begun.what not in {"read", "use"}:  # these change nothing, so nothing is missed
        calls.append(begun)
    return calls, by


def _grant(pair: list[Any] | None) -> Grant | None:
    return Grant(*pair) if pair else None


def _with_epochs_seen(calls: list[Call]) -> Iterable[Call]:
    """Give calls that were cut off the epoch under which somebody saw their grant."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for call in calls:
        for grant in (call.found, call.names):
            if grant:
                seen[call.rollout, grant.owner].add(grant.epoch)
    for call in calls:
        if call.happened and not call.cut:
            seen[call.rollout, call.by].discard(call.epoch or 0)
    for call in calls:
        grants = call.cut and call.what in {"take", "take_over"}
        unclaimed = seen[call.rollout, call.by] if grants else set()
        yield replace(call, epoch=min(unclaimed)) if unclaimed else call


def _story(calls: list[Call], unexplained: Unexplained) -> str:
    wrong = unexplained.call
    before = [
        call
        for call in sorted(calls, key=lambda call: call.returned_ns)
        if call.rollout == wrong.rollout and call.returned_ns <= wrong.returned_ns
    ]
    return "\n".join(map(str, [*before[-12:], *unexplained.states]))
