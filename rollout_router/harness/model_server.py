# SPDX-License-Identifier: Apache-2.0
"""Serves the model of a conformance run on loopback, as a process of its own.

    python -m rollout_router.harness.model_server --scenario long --log FILE --parent-pid PID

Its first line of output is ``{"url": …}``. It ends with SIGTERM, or with the process *PID*.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.gateway.app import create_app
from rollout_router.harness.model import CLOSED, ConformanceModel
from rollout_router.harness.port import CONTEXT_LLM_TOKENS
from rollout_router.harness.scenario import SCENARIOS

__all__ = ["closing", "main", "model_command"]

_CLOSE: Final = "rollout_router.close"


def model_command(
    scenario: str, log: Path, *, context_llm_tokens: int = CONTEXT_LLM_TOKENS
) -> list[str]:
    """The command line that starts it in this Python; it ends with the calling process."""
    program = f"from {__name__} import main; main()"
    return [
        *(sys.executable, "-P", "-c", program, "--scenario", scenario, "--log", str(log)),
        *("--context-llm-tokens", str(context_llm_tokens), "--parent-pid", str(os.getpid())),
    ]


def closing(app: App) -> App:
    """*app*, whose status 444 closes the connection in place of an answer."""

    async def close(scope: Scope, receive: Receive, send: Send) -> None:
        closed = False

        async def sending(message: Message) -> None:
            nonlocal closed
            if message["type"] == "http.response.start" and message["status"] == CLOSED:
                closed = True
                scope["extensions"][_CLOSE]["close"]()
            if not closed:
                await send(message)

        await app(scope, receive, sending)

    return close


class _Protocol(HttpToolsProtocol):
    """uvicorn's, which lets the application close the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_CLOSE: {"close": self.transport.close}}


class _Server(uvicorn.Server):
    """Says where it is, and ends with its parent."""

    def __init__(self, config: uvicorn.Config, parent_pid: int | None) -> None:
        super().__init__(config)
        self._parent_pid = parent_pid

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self._parent_pid is not None:
            parent = os.pidfd_open(self._parent_pid)
            asyncio.get_running_loop().add_reader(parent, self._orphaned, parent)
        port = self.servers[0].sockets[0].getsockname()[1]
        sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{port}"}) + "\n")
        sys.stdout.flush()

    def _orphaned(self, parent: int) -> None:
        asyncio.get_running_loop().remove_reader(parent)
        signal.raise_signal(signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", choices=SCENARIOS, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--context-llm-tokens", type=int, default=CONTEXT_LLM_TOKENS)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parent-pid", type=int)
    given = parser.parse_args(arguments)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # cuts are meant
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again at its end
    with given.log.open("a") as log:
        model = ConformanceModel(
            SCENARIOS[given.scenario], log, context_llm_tokens=given.context_llm_tokens
        )
        config = uvicorn.Config(
            closing(create_app(model)),
            host="127.0.0.1",
            port=given.port,
            loop="asyncio",
            http=_Protocol,
            ws="none",
            log_config=None,
            timeout_graceful_shutdown=5,
        )
        _Server(config, given.parent_pid).run()


if __name__ == "__main__":
    main()
