# SPDX-License-Identifier: Apache-2.0
"""A running model server of the real NeMo Gym, in the environment that ``make test-gym`` sets up.

Started as Gym starts it: from a configuration that Gym's own parser has checked and resolved.
"""

import functools
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.control import Control
from support.gateway import TESTS, Server, import_path, stopped

from rollout_router.integrations.run_folder import PLACES

__all__ = ["ROOT", "ROUTE_ALWAYS", "START_S", "GymServer", "block", "gym_python", "resolved"]

ROOT = TESTS / "support" / "gym"
VARIABLE = "ROLLOUT_ROUTER_GYM_PYTHON"
ROUTE_ALWAYS = "TEST_ROUTE_ALWAYS"  # the same word in the server's app.py
START_S = 120.0  # it takes 14 on two cores that are free
VOLATILE = {
    *("model_call_id", "started_at", "completed_at", "latency_ms", "latency_ttft_ms"),
    "response_raw",  # as bytes; an SSE stream has random ids in it
}
RESOLVE = """
from nemo_gym.global_config import get_global_config_dict
from omegaconf import OmegaConf
import json
print(json.dumps(OmegaConf.to_container(get_global_config_dict(), resolve=True)))
"""


@functools.cache
def gym_python(*besides: str) -> str:
    """The interpreter that has the packages, as ``make test-gym`` names it; else the test skips.

    Args:
        besides: distributions that must be there besides nemo-gym.
    """
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip("NeMo Gym 0.7.0 lives in an environment of its own: run make test-gym")
    wanted = ("nemo-gym", *besides)
    asked = f"from importlib.metadata import version; [version(one) for one in {wanted}]"
    found = subprocess.run([python, "-c", asked], capture_output=True, check=False, text=True)
    if found.returncode:
        pytest.skip(f"{python} has not all of {', '.join(wanted)}: run make test-gym")
    return python


class GymServer(Server):
    """Ready to take calls. The name of the service is its own, so that its folder can be found.

    Args:
        folder: an empty directory of its own.
        control: what its calls report to.
        workers: ``num_workers``; None leaves it out, as most configurations do.
        top: more keys at the top of the configuration.
        own: more keys in the block of the model server.
        agent: more keys in the block of an agent that uses it.
        environment: more variables of its processes.
    """

    patience_s = START_S
    prefix = "/ng-rollout"

    def __init__(
        self,
        folder: Path,
        control: Control,
        *,
        workers: int | None = 2,
        top: dict[str, Any] | None = None,
        own: dict[str, Any] | None = None,
        agent: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.program = gym_python()
        self.name = f"policy-{uuid.uuid4().hex[:8]}"
        self.captures = folder / "captures"
        self.tokens = folder / "tokens"
        document = {
            **(top or {}),
            "uvicorn_timeout_worker_healthcheck": START_S,  # else a slow start is ended at 30 s
            "observability_enabled": True,
            "model_call_capture_dir": str(self.captures),
            "token_id_capture": {"enabled": True, "all_agents": True, "dir": str(self.tokens)},
            self.name: {"responses_api_models": {"scripted": block(own, num_workers=workers)}},
            "agent": {
                "responses_api_agents": {
                    "simple_agent": block(
                        agent,
                        model_server={"type": "responses_api_models", "name": self.name},
                        resources_server={"type": "resources_servers", "name": "resources"},
                    )
                }
            },
            "resources": {"resources_servers": {"example": block(domain="other")}},
        }
        config = resolved(folder, document)
        found = config[self.name]["responses_api_models"]["scripted"]
        self._url = f"http://{found['host']}:{found['port']}"
        super().__init__(
            ["app.py"],
            {
                "NEMO_GYM_CONFIG_PATH": self.name,
                "NEMO_GYM_CONFIG_DICT": json.dumps(config),
                "PYTHONPATH": os.pathsep.join([str(ROOT), import_path()]),
                "TEST_CONTROL": str(control.path),
                **(environment or {}),
            },
            cwd=ROOT / "responses_api_models" / "scripted",
        )
        for _ in range(workers or 1):
            self.wait_line("Application startup complete")
        if (workers or 1) == 1:  # the only process listens after that; of several, each before it
            self.wait_line("Uvicorn running on")
        (run,) = self.runs()
        self.state_dir = run / "state"

    @property
    def url(self) -> str:
        """Base URL of the public port, which Gym's parser chose."""
        return self._url

    def runs(self) -> list[Path]:
        """The folders of this server's runs."""
        return [path for place in PLACES for path in place.glob(f"*.{self.name}.*")]

    def alive(self) -> dict[str, int]:
        """The workers that live, and their processes."""
        workers = self.json("workers", "list")["workers"]
        return {worker["id"]: worker["pid"] for worker in workers if worker["verdict"] == "alive"}

    def wait_workers(self, number: int) -> None:
        """Wait until so many workers live, as Gym's supervisor replaces dead ones."""
        while len(self.alive()) < number:
            self.wait_line("Application startup complete")

    @contextmanager
    def client_at(self, worker_id: str) -> Iterator[httpx.Client]:
        """A client whose one connection is held by that worker: no other can accept it."""
        with self.client(headers={"content-type": "application/json"}) as client:
            with ExitStack() as quiet:
                for other, pid in self.alive().items():
                    if other != worker_id:
                        quiet.enter_context(stopped(pid))
                client.get("/livez").raise_for_status()
            yield client

    def calls(self, rollout_id: str) -> list[dict[str, Any]]:
        """What Gym captured of a rollout, without what differs from run to run."""
        return [
            {key: value for key, value in call.items() if key not in VOLATILE}
            for call in _lines(self.captures / f"{rollout_id}.capture.jsonl")
        ]

    def tokens_of(self, rollout_id: str) -> list[dict[str, Any]]:
        """What Gym captured of a rollout for training."""
        return _lines(self.tokens / f"{rollout_id}.tokens.jsonl")

    def traces(self, rollout_id: str) -> set[str]:
        """The names of all files that Gym wrote for a rollout."""
        folders = (self.captures, self.tokens)
        return {path.name for folder in folders for path in folder.glob(f"{rollout_id}.*")}


def block(more: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """The block of a server; what is None is left out."""
    stated = {key: value for key, value in keys.items() if value is not None}
    return {"entrypoint": "app.py", **stated, **(more or {})}


def resolved(folder: Path, document: dict[str, Any]) -> dict[str, Any]:
    """What Gym's parser makes of a configuration, or its refusal."""
    path = folder / "config.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    done = subprocess.run(
        [gym_python(), "-c", RESOLVE, f"+config_paths=[{path}]"],
        cwd=folder,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    config: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return config


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
