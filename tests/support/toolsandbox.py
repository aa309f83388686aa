# SPDX-License-Identifier: Apache-2.0
"""Sessions of the real ToolSandbox: its server, the models that it and its agent ask, and the loop.

``play`` is NeMo Gym's toolsandbox_agent as a loop of operations. Both models are one local server
that answers by what it is asked alone: the policy by the number of its turns, the simulated user by
what the agent said.
"""

import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.gateway import PATIENCE_S, Server, import_path, kill_and_wait
from support.gym_server import ROOT, START_S, block, gym_python, resolved

from rollout_router.checkpoint.client import Caller
from rollout_router.checkpoint.effects import Lost, Performed
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.wire import Operation

__all__ = ["POLICY", "TEXT", "Models", "Sandbox", "models", "play", "sent_verify", "step_of"]

SCENARIO = "send_message_with_contact_content_cellular_off_multiple_user_turn_10_distraction_tools"
TEXT = "How's the new album coming along"
CELLULAR: Any = ("get_cellular_service_status", {})
SEND = ("send_message_with_phone_number", {"phone_number": "+12453344098", "content": TEXT})
POLICY: list[Any] = [
    [("search_contacts", {"name": "Fredrik Thordendal"}), CELLULAR],  # in every order, by copies
    [SEND],  # fails: there is no service
    [("set_cellular_service_status", {"on": True})],
    [SEND],
    [("search_messages", {"content": TEXT})],
    "Your message to Fredrik Thordendal has been sent saying: How's the new album coming along",
    "Goodbye.",
]
USER = {POLICY[5]: "Thanks. Is there anything else?", POLICY[6]: None}  # None: the end
Hook = Callable[[str], Awaitable[None]]


class Models(ThreadingHTTPServer):
    """The models; a context manager ends it.

    Attributes:
        asked: what the simulated user was told, each time that it was asked.
        free: while it is not set, the user does not answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.free = threading.Event()
        self.free.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: Any) -> Any:
        if path.endswith("/v1/chat/completions"):
            return self._user(body["messages"][-1]["content"])
        turn = sum(item["type"] == "turn" for item in body["input"])
        return {"turn": turn, "said": POLICY[turn]}

    def _user(self, told: str) -> Any:
        self.asked.put(told)
        if not self.free.wait(PATIENCE_S):
            raise TimeoutError("nobody lets the simulated user answer")
        message: dict[str, Any] = {"role": "assistant", "content": USER[told]}
        if USER[told] is None:
            ending = {"name": "end_conversation", "arguments": "{}"}
            message["tool_calls"] = [{"id": "end", "type": "function", "function": ending}]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "user",
            "choices": [choice],
        }


class _Answers(BaseHTTPRequestHandler):
    server: Models

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps(self.server.answer(self.path, body)).encode()
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:  # who asked was killed
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Sandbox(Server):
    """A ToolSandbox server of the real NeMo Gym, ready to take calls.

    Args:
        folder: an empty directory, for its configuration and its environments.
        models: the server that plays the user.
    """

    patience_s = START_S

    def __init__(self, folder: Path, models: Models) -> None:
        self.program = gym_python("polars-lts-cpu")
        server = block(
            domain="agent",
            scenarios=[SCENARIO],
            environments_file=str(folder / "environments.sqlite3"),
            user_model_server={"type": "responses_api_models", "name": "user"},
        )
        user = block(host="127.0.0.1", port=models.server_port)
        document = {
            "sandbox": {"resources_servers": {"kept_toolsandbox": server}},
            "user": {"responses_api_models": {"scripted": user}},
        }
        self._config = resolved(folder, document)
        found = self._config["sandbox"]["resources_servers"]["kept_toolsandbox"]
        self._url = f"http://{found['host']}:{found['port']}"
        self.start()

    @property
    def url(self) -> str:
        return self._url

    def start(self) -> None:
        """Start it, at the same port and over the same file."""
        environment = {
            "NEMO_GYM_CONFIG_PATH": "sandbox",
            "NEMO_GYM_CONFIG_DICT": json.dumps(self._config),
            "PYTHONPATH": import_path(),
        }
        folder = ROOT / "resources_servers" / "kept_toolsandbox"
        super().__init__(["app.py"], environment, cwd=folder)
        self.wait_line("Uvicorn running on")

    def kill(self) -> None:
        kill_and_wait(self.process.pid)
        self.wait_exit()


@contextmanager
def models() -> Iterator[Models]:
    with Models() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.free.set()
            server.shutdown()
            thread.join()


async def play(run: Run, task: Any, *, model: Caller, sandbox: Caller, hook: Hook) -> Any:
    """Play a session; *hook* is called after each operation of the environment."""
    environment_id = run.environment_id

    async def act(kind: str, request: Any) -> Any:
        send = partial(_sent, sandbox, f"/{kind}", request)
        done = await run.op(kind, request, send, effect="keyed", environment_id=environment_id)
        await hook(kind)
        return done

    seeded = await act("seed_session", {"task_idx": task["task_idx"]})
    items, done = seeded["obs"], False
    while not done:
        asked = {"input": items}
        sampled = await run.op(
            "model", asked, partial(_sent, model, "/v1/responses", asked), effect="resample"
        )
        observed = await act("step", step_of(environment_id, sampled["said"]))
        items, done = [*items, {"type": "turn", **sampled}, *observed["obs"]], observed["done"]
    await act("close", {"env_id": environment_id})
    verdict = await act("verify", sent_verify(environment_id))
    names = ("reward", "milestone_similarity", "turn_count", "scenario", "exception_type")
    return {"items": items, **{name: verdict[name] for name in names}}


def step_of(environment_id: str, said: Any) -> Any:
    """The body of a step that does what the policy said."""
    if isinstance(said, str):
        return {"env_id": environment_id, "text": said}
    calls = [
        {
            "type": "function_call",
            "call_id": f"call{number}",
            "name": name,
            "arguments": json.dumps(arguments),
        }
        for number, (name, arguments) in enumerate(said)
    ]
    return {"env_id": environment_id, "function_calls": calls}


def sent_verify(environment_id: str) -> Any:
    """The body of a verify."""
    response = {
        "id": "r",
        "created_at": 0.0,
        "model": "policy",
        "object": "response",
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "env_id": environment_id,
        "group_id": "0",
        "contains_transitions": False,
    }
    return {"responses_create_params": {"input": []}, "response": response}


async def _sent(caller: Caller, path: str, request: Any, operation: Operation) -> Performed:
    answer = await caller.post(operation, f"/ng-rollout/{operation.rollout_id}{path}", request)
    if answer.status != 200:
        raise Lost(f"{path}: {answer.status} {answer.document!r:.300}")
    return Performed(value=answer.document, revision=answer.revision)
