# SPDX-License-Identifier: Apache-2.0
"""An agent, its environment and its model: three services, and what a test does to them.

Each is ``rollout-router serve`` with two workers. Ports are kept over restarts of a service.
"""

import itertools
import json
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
from click.testing import Result
from support.control import Call, Control
from support.gateway import Gateway, invoked, kill_and_wait, wait_until

from rollout_router.checkpoint.wire import Operation
from rollout_router.claims import FileClaimStore
from rollout_router.operate import status_of

__all__ = ["ERRANDS", "MESSAGE", "RUN", "Service", "Trio", "payload_of", "prompted"]

Service = Literal["agent", "environment", "model"]
_SERVICES: tuple[Service, ...] = ("agent", "environment", "model")
_APPS = {
    "agent": "rollout_router.checkpoint.example.agent:app",
    "environment": "support.trio_apps:environment",
    "model": "support.trio_apps:model",
}
RUN = "run-1"
MESSAGE = {"scenario": "message", "seed": 3}
"""Three model calls and four steps, the first two of one turn."""
ERRANDS = {"scenario": "errands", "seed": 3}
"""Ten model calls and twelve steps."""
_RETRIED = frozenset({500, 502, 503})


class Trio:
    """Three services over one folder, and after :meth:`replace` over another.

    Args:
        root: an empty directory of its own; a short path.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.control = Control(root / "control.sock")
        self._stack = ExitStack()
        self._ports = {service: self._stack.enter_context(_kept_port()) for service in _SERVICES}
        self._threads = self._stack.enter_context(ThreadPoolExecutor(16))
        self._names = (str(number) for number in itertools.count())
        self._references: dict[str, str] = {}
        self._killed: set[int] = set()
        self.restart_only = False  # the environment server, from its next start on
        self._deploy()

    @property
    def agent(self) -> Gateway:
        """The agent server."""
        return self.services["agent"]

    @property
    def journal(self) -> Path:
        """The journal of the agent server."""
        return self.folder / "journal.sqlite3"

    @property
    def environments(self) -> Path:
        """What the environment server keeps."""
        return self.folder / "environments.sqlite3"

    def stop(self) -> list[str]:
        """End all that still run; what they logged."""
        for gateway in self.services.values():
            if gateway.process.poll() is None:
                gateway.process.send_signal(signal.SIGTERM)
        for gateway in self.services.values():
            gateway.wait_exit()
        self._stack.close()
        self.control.close()
        return [line for gateway in self.services.values() for line in gateway.log]

    def kill(self, service: Service) -> None:
        """SIGKILL all processes of a service."""
        self.settle()
        self.services[service].kill_all()
        self.services[service].wait_exit()

    def restart(self, service: Service) -> None:
        """Start a service that has ended, over what it left."""
        self.services[service] = self._start(service)

    def replace(self) -> Path:
        """SIGKILL everything, and begin with nothing: another deployment, at the same addresses.

        Returns:
            The folder of the one before.
        """
        before = self.folder
        for service in _SERVICES:
            self.kill(service)
        self._deploy()
        return before

    def kill_owner(self, service: Service, rollout_id: str) -> None:
        """SIGKILL the worker that owns a rollout there. The other one may be alone for a while."""
        self.kill_worker(service, self.owner(service, rollout_id))

    def kill_worker(self, service: Service, worker_id: str) -> None:
        """SIGKILL a worker."""
        pid = self.services[service].pid_of(worker_id)
        kill_and_wait(pid)
        self._killed.add(pid)

    def owner(self, service: Service, rollout_id: str) -> str:
        """The worker that owns a rollout there."""
        return str(self.services[service].claims()[rollout_id]["worker_id"])

    def settle(self) -> None:
        """Wait until every worker that was killed has been replaced."""

        def replaced() -> bool:
            ready = (worker for one in self.services.values() for worker in one.ready["workers"])
            return self._killed.isdisjoint(worker["pid"] for worker in ready)

        wait_until(replaced, "all workers that were killed are replaced")

    def post(self, rollout_id: str, document: Any, *, to: str = "run") -> httpx.Response:
        """One call of the agent, on a connection of its own."""
        with self.agent.client() as client:
            return client.post(f"/ng-rollout/{rollout_id}/{to}", json=document)

    def begin(self, rollout_id: str, task: Any = MESSAGE) -> "Future[httpx.Response]":
        """The same, in a thread."""
        return self._threads.submit(self.post, rollout_id, task)

    def held(self, rollout_id: str, until: str, task: Any = MESSAGE) -> tuple[Any, Call]:
        """Begin a rollout that is held at every call from *until* on; see :func:`prompted`."""
        self.control.hold(rollout_id)
        return self.begin(rollout_id, task), prompted(self.control, rollout_id, until)

    def left_open(self, rollout_id: str, at: str) -> None:
        """Begin a rollout whose client leaves while it is held *at* a call, which is gone then."""
        self.control.hold(rollout_id)
        body = json.dumps(MESSAGE).encode()
        head = f"POST /ng-rollout/{rollout_id}/run HTTP/1.1\r\nHost: a\r\n"
        with self.agent.connect() as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            call = prompted(self.control, rollout_id, at)
        call.wait_gone()
        self.control.unhold(rollout_id)

    def operate(
        self, operation: Operation, kind: str, document: Mapping[str, Any]
    ) -> httpx.Response:
        """Send one operation to the environment server, as an agent does."""
        named = {"environment_id": operation.environment_id, **document}
        path = f"/ng-rollout/{operation.rollout_id}/{kind}"
        with self.services["environment"].client() as client:
            return client.post(path, json=named, headers=operation.headers())

    def exported(self, environment_id: str) -> httpx.Response:
        """An environment, as a checkpoint is given it."""
        with self.services["environment"].client() as client:
            return client.get(f"/ng-control/v1/environments/{environment_id}")

    def finish(self, rollout_id: str, task: Any = MESSAGE) -> httpx.Response:
        """Ask for the result, as often as it takes. Nothing of the rollout is held any more."""
        self.control.unhold(rollout_id)
        answers: list[httpx.Response] = []

        def answered() -> bool:
            try:
                answers.append(self.post(rollout_id, task))
            except httpx.TransportError:
                return False
            return answers[-1].status_code not in _RETRIED

        wait_until(answered, f"rollout {rollout_id} has a result")
        return answers[-1]

    def reference(self, task: Mapping[str, Any] = MESSAGE) -> str:
        """The payload of a rollout that nothing interrupts."""
        key = json.dumps(task)
        if key not in self._references:
            done = self.post(f"reference-{len(self._references)}", task)
            self._references[key] = payload_of(done)
        return self._references[key]

    def session(self, rollout_id: str) -> dict[str, Any]:
        """What ``sessions show`` says."""
        shown = invoked("sessions", "show", rollout_id, "--journal", str(self.journal), "--json")
        document: dict[str, Any] = json.loads(shown.stdout)
        return document

    def checkpoint(self, *arguments: str, places: bool = True) -> Result:
        """A ``checkpoint`` command on this agent server, all of whose workers answer."""
        self.settle()
        state = ("--journal", str(self.journal), "--state-dir", str(self.agent.state_dir))
        return invoked("checkpoint", *arguments, *(state if places else ()), "--json")

    def resume(self, checkpoint_id: str) -> None:
        """Resume a checkpoint, and wait until no worker refuses a call any more."""
        done = self.checkpoint("resume", checkpoint_id)
        if done.exit_code != 0:
            raise RuntimeError(done.output)
        self.wait_open()

    def wait_open(self) -> None:
        """Wait until every worker of the agent has seen that the gate is open."""
        wait_until(lambda: all(one["gate"]["open"] for one in self._statuses()), "the gate is open")

    def in_flight(self, rollout_id: str) -> int:
        """Calls of a rollout that workers of the agent have in hand."""
        calls = [call for one in self._statuses() for call in one["in_flight"]]
        return len([call for call in calls if call["rollout_id"] == rollout_id])

    def environment(self) -> tuple[str, str]:
        """The flag that names the environment server."""
        return ("--environment", self.services["environment"].url)

    def samples(self, rollout_id: str) -> list[dict[str, Any]]:
        """What the model was asked for in a rollout, oldest first."""
        with (self.folder / "samples").open() as lines:
            return [one for one in map(json.loads, lines) if one["rollout_id"] == rollout_id]

    def reported(self, rollout_id: str) -> list[tuple[str, str]]:
        """Every call of a rollout that an app reported: the end of its path, and its operation."""
        return [
            (call.path.rpartition("/")[2], call.headers["operation-id"])
            for call in self.control.runs(rollout_id)
        ]

    def _statuses(self) -> list[dict[str, Any]]:
        """What each worker of the agent says of itself."""
        store = FileClaimStore.inspect(self.agent.state_dir)
        owners = [store.owner(worker["id"]) for worker in self.agent.ready["workers"]]
        return [status_of(one) for one in owners if one is not None]

    def _deploy(self) -> None:
        self.folder = self._root / next(self._names)
        self.folder.mkdir()
        with ThreadPoolExecutor(len(_SERVICES)) as threads:
            self.services = dict(zip(_SERVICES, threads.map(self._start, _SERVICES), strict=True))

    def _start(self, service: Service) -> Gateway:
        own = self.folder / next(self._names)
        own.mkdir()
        kept = self.folder / service
        kept.mkdir(exist_ok=True)
        url = {name: f"http://127.0.0.1:{port}" for name, port in self._ports.items()}
        return Gateway(
            own,
            *("--app", _APPS[service], "--service", service, "--route-always"),
            *("--no-history-delta", "--port", str(self._ports[service]), "--drain-seconds", "1"),
            state=kept,
            capture=False,
            environment={
                "TEST_CONTROL": str(self.control.path),
                "TEST_SAMPLES": str(self.folder / "samples"),
                "TOOL_ENVIRONMENT_FILE": str(self.environments),
                "TOOL_ENVIRONMENT_RESTART_ONLY": "1" if self.restart_only else "",
                "TOOL_AGENT_STATE_DIR": str(kept / "state"),
                "TOOL_AGENT_JOURNAL": str(self.journal),
                "TOOL_AGENT_RUN": RUN,
                "TOOL_AGENT_MODEL_URL": url["model"],
                "TOOL_AGENT_ENVIRONMENT_URL": url["environment"],
            },
        )


def payload_of(answer: httpx.Response) -> str:
    """The result in an answer, as it is written."""
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.status_code}: {answer.text}")
    return answer.text.partition('"result":')[2].removesuffix("}")


def prompted(control: Control, rollout_id: str, until: str) -> Call:
    """Let held calls go on until the one that *until* names: ``step#done 3`` is the third such."""
    name, _, number = until.partition(" ")
    left = int(number or 1)
    while True:
        call = control.next_call(rollout_id)
        left -= call.path.endswith(f"/{name}")
        if not left:
            return call
        call.answer()
        call.close()


@contextmanager
def _kept_port() -> Iterator[int]:
    """A free port that nobody else is given meanwhile; a server that reuses addresses may listen.

    Source: socket(7), SO_REUSEADDR.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]
