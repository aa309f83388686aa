# SPDX-License-Identifier: Apache-2.0
"""What a hop costs: the same request served where it arrives, and by the other worker.

The workers are those of ``serve``, two of them, with the benchmark's application; what is compared
with them runs beside them, and all take turns in every round, case by case. The ways are those of
``forward_costs``. Times are those of the load's process; processor time is that of the workers.
"""

import importlib.util
import json
import math
import random
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rollout_router.bench import forward_workers
from rollout_router.bench.app import STREAM_PATH
from rollout_router.bench.connection import BenchFailed, to_two_workers
from rollout_router.bench.forward_costs import (
    ALONE,
    BUSY,
    WAYS,
    Case,
    ForwardCosts,
    forward_costs,
)
from rollout_router.bench.load import Address, Group, Load, LoadProcess, Outcome
from rollout_router.bench.proxies import PROXIES, Proxy
from rollout_router.bench.workers import started
from rollout_router.processes import Service

__all__ = ["CASES", "QUICK_CASES", "ROUNDS_MAX", "UNTARGETED_ROUNDS_MAX", "run_forward"]

ROUNDS_MAX: Final = 15
UNTARGETED_ROUNDS_MAX: Final = 5
"""Of a case that has no target: one round of all cases takes a minute or more."""

LOAD_S: Final = 0.15
"""So long requests are sent in one measurement, of each connection one at least."""

REQUESTS_MAX: Final = 20_000  # of one measurement
_ROLLOUTS: Final = 8  # of each worker
_HALF: Final = 2

CASES: Final = [
    Case(body_bytes=body_bytes, answer=answer, in_flight=in_flight)
    for body_bytes in (5_000, 500_000)
    for answer in ("json", "stream")
    for in_flight in (1, 16, 64, 256)
]
QUICK_CASES: Final = [ALONE, BUSY]
"""Those that have targets."""

_HTTPX: Final = {"httpx": "default", "httpx_kept": forward_workers.KEEPS_ALL}
_HTTPX_IN_FLIGHT_MAX: Final = 64
"""Beyond, one of its measurements takes many seconds; small bodies and answers go on."""

_UNROUTED: Final = frozenset({"straight", *PROXIES})


@dataclass(frozen=True, slots=True)
class _Way:
    """How to load one way in a case, and whose processor time it takes."""

    groups: Callable[[Case], list[Group]]
    pids: list[int]  # the forwarder's first, where there is one


def run_forward(
    work_dir: Path,
    *,
    rounds: int,
    say: Callable[[str], None],
    cases: Sequence[Case] = CASES,
    ways: Sequence[str] = tuple(WAYS),
) -> ForwardCosts:
    """Measure each of *cases* in each of *ways*.

    Args:
        work_dir: a directory for stores and sockets is made there, and removed again.
        rounds: measurements of each, at most :data:`ROUNDS_MAX`, or :data:`UNTARGETED_ROUNDS_MAX`.
        say: takes one line for people.
        cases: what is asked for.
        ways: of :data:`WAYS`; one whose program is not installed is left out, with a note.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir)
        say("starting a gateway of two workers, and what it is compared with")
        there, notes = _Processes(Path(stack.enter_context(made)), stack).ways(ways)
        load = LoadProcess()
        stack.callback(load.close)
        rounds = min(rounds, ROUNDS_MAX)
        say(f"measuring {len(cases)} cases in {len(there)} ways: {rounds:,} rounds at most")
        return forward_costs(_rounds(load, there, cases, rounds), notes=notes)


def _rounds(
    load: LoadProcess, ways: Mapping[str, _Way], cases: Sequence[Case], rounds: int
) -> dict[tuple[Case, str], list[Outcome]]:
    """All ways of a case one behind the other; the orders change, and are the same in each run."""
    names = {case: [name for name in ways if _is_measured(case, name)] for case in cases}
    outcomes: dict[tuple[Case, str], list[Outcome]] = {
        (case, name): [] for case in cases for name in names[case]
    }
    orders = random.Random(0)  # noqa: S311 - repeatable orders, not secrets
    for number in range(rounds):
        left = [case for case in cases if number < UNTARGETED_ROUNDS_MAX or case in QUICK_CASES]
        for case in orders.sample(left, len(left)):
            for name in orders.sample(names[case], len(names[case])):
                asked = Load(
                    groups=ways[name].groups(case),
                    body_bytes=case.body_bytes,
                    seconds=LOAD_S,
                    requests_max=REQUESTS_MAX,
                    cpu_pids=ways[name].pids,
                )
                try:
                    outcome = load.run(asked)
                except BenchFailed as error:
                    raise BenchFailed(f"{name}, {case}: {error}") from error
                outcomes[case, name].append(outcome)
    return outcomes


def _is_measured(case: Case, way: str) -> bool:
    small = (case.body_bytes, case.answer) == (BUSY.body_bytes, BUSY.answer)
    return way not in _HTTPX or small or case.in_flight <= _HTTPX_IN_FLIGHT_MAX


class _Processes:
    """Starts what a way needs; *stack* ends it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def ways(self, names: Sequence[str]) -> tuple[dict[str, _Way], list[str]]:
        """The ways by name, and notes on those that are missing."""
        ways: dict[str, _Way] = {}
        notes: list[str] = []
        if set(names).difference(_UNROUTED):
            ways = self._routed([name for name in _HTTPX if name in names])
        if not set(names).intersection(_HTTPX) <= set(ways):
            notes.append("httpx is not installed: nothing was measured with it")
        if _UNROUTED.intersection(names):
            ways.update(self._proxied([name for name in PROXIES if name in names], notes))
        return {name: ways[name] for name in names if name in ways}, notes

    def _routed(self, httpx: Sequence[str]) -> dict[str, _Way]:
        folder = self._folder / "gateway"
        gateway = started(self._stack, folder)
        pids = {
            one["id"]: one["pid"] for one in json.loads(gateway.ready_file.read_text())["workers"]
        }
        (a, b), rollouts = pids.values(), _owned(gateway.url, pids)
        address = _address(gateway.url)

        def half(case: Case, at: int, paths: list[str]) -> Group:
            number = math.ceil(case.in_flight / 2) if at == a else case.in_flight // _HALF
            return Group(address=address, pid=at, connections=number, paths=paths)

        def both(paths: Callable[[Case, int, int], list[str]]) -> Callable[[Case], list[Group]]:
            def groups(case: Case) -> list[Group]:
                halves = [half(case, at, paths(case, at, other)) for at, other in ((a, b), (b, a))]
                return [group for group in halves if group.connections]

            return groups

        def of(case: Case, pid: int) -> list[str]:
            return _paths(case, rollouts[pid])

        def mixed(case: Case, at: int, other: int) -> list[str]:
            pairs = zip(of(case, at), of(case, other), strict=True)
            return [path for pair in pairs for path in pair]

        def one_way(case: Case) -> list[Group]:
            group = Group(address=address, pid=a, connections=case.in_flight, paths=of(case, b))
            return [group]

        def through_httpx(port: int, case: Case) -> list[Group]:
            return _spread(case, [["127.0.0.1", port]], of(case, b))

        ways = {
            "local": _Way(both(lambda case, at, _: of(case, at)), [a, b]),
            "hop": _Way(both(lambda case, _, other: of(case, other)), [a, b]),
            "mix": _Way(both(mixed), [a, b]),
            "one_way": _Way(one_way, [a, b]),
        }
        if importlib.util.find_spec("httpx") is not None:
            for name in httpx:
                places = [str(gateway.state_dir), str(folder / "run"), _HTTPX[name]]
                port, pid = self._started(name, forward_workers.HTTPX, *places)
                ways[name] = _Way(partial(through_httpx, port), [pid, b])
        return ways

    def _proxied(self, names: Sequence[str], notes: list[str]) -> dict[str, _Way]:
        sockets = [str(self._folder / f"plain{number}.sock") for number in range(2)]
        plain = [self._started(Path(path).stem, forward_workers.PLAIN, path) for path in sockets]
        pids, rollouts = [pid for _, pid in plain], [uuid.uuid4().hex for _ in range(2 * _ROLLOUTS)]

        def through(*ports: int) -> Callable[[Case], list[Group]]:
            addresses: list[Address] = [["127.0.0.1", port] for port in ports]
            return lambda case: _spread(case, addresses, _paths(case, rollouts))

        ways = {"straight": _Way(through(*(port for port, _ in plain)), pids)}
        for name in names:
            if (program := Proxy.program(name)) is None:
                notes.append(f"{name} is not installed: nothing was measured with it")
                continue
            proxy = Proxy(name, program, self._folder / name, sockets)
            self._stack.callback(proxy.stop)
            ways[name] = _Way(through(proxy.port), [proxy.pid, *pids])
        return ways

    def _started(self, name: str, *arguments: str) -> tuple[int, int]:
        """Port and process id of a worker of ours that is compared with."""
        program = [sys.executable, "-P", "-m", forward_workers.__name__, *arguments]
        service = Service(name, program, log=self._folder / f"{name}.log", apart=False)
        self._stack.callback(service.stop)
        port = int(service.wait_line(forward_workers.READY).split()[-1])
        return port, service.process.pid


def _owned(url: str, pids: Mapping[str, int]) -> dict[int, list[str]]:
    """Some rollouts of each worker, by its process id."""
    owned: dict[int, list[str]] = {pid: [] for pid in pids.values()}
    for connection in to_two_workers(url):
        for _ in range(_ROLLOUTS):
            rollout = uuid.uuid4().hex
            (path,) = _paths(ALONE, [rollout])
            answer = connection.post(path, b"{}", {"Content-Type": "application/json"})
            owned[pids[str(answer.worker_id)]].append(rollout)
        connection.close()
    return owned


def _paths(case: Case, rollouts: Sequence[str]) -> list[str]:
    end = STREAM_PATH if case.answer == "stream" else "/responses"
    return [f"/sessions/{rollout}/v1{end}" for rollout in rollouts]


def _spread(case: Case, addresses: Sequence[Address], paths: list[str]) -> list[Group]:
    """The connections, in even parts to each address."""
    shares = [
        (case.in_flight + len(addresses) - 1 - number) // len(addresses)
        for number in range(len(addresses))
    ]
    return [
        Group(address=address, pid=None, connections=share, paths=paths)
        for address, share in zip(addresses, shares, strict=True)
        if share
    ]


def _address(url: str) -> Address:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return [host, int(port)]
