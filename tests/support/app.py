# SPDX-License-Identifier: Apache-2.0
"""The application under test: a bare ASGI callable that does what the test's control tells it.

Served by ``rollout-router serve --app support.app:app`` with ``TEST_CONTROL`` naming the socket.
``counted`` needs no control: it writes down each of its executions in the file
``TEST_EXECUTIONS``, before it answers.
"""

import asyncio
import ctypes
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.call import CALL_KEY

__all__ = ["app", "counted", "next_order", "stuck"]

THINKING_S = float(os.environ.get("TEST_THINKING_S", "0.02"))
"""How long a counted call takes, as a model would, so that some are in flight at any time."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Report the call, then obey."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    if (body := await _body(receive)) is None:
        return
    reader, writer = await asyncio.open_unix_connection(os.environ["TEST_CONTROL"])
    try:
        writer.write(json.dumps(_report(scope, body)).encode() + b"\n")
        await _obey(reader, writer, send)
    finally:
        writer.close()


async def next_order(scope: Scope, body: bytes) -> dict[str, Any] | None:
    """Report a call, and wait until the control says anything about it; None: it is gone."""
    reader, writer = await asyncio.open_unix_connection(os.environ["TEST_CONTROL"])
    try:
        writer.write(json.dumps(_report(scope, body)).encode() + b"\n")
        order: dict[str, Any] | None = json.loads(await reader.readline() or b"null")
        return order
    finally:
        writer.close()


async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing, and keep a thread that ends when the process does."""
    _ = send
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    if await _body(receive) is not None:
        print("stuck", file=sys.stderr, flush=True)  # noqa: T201 - for who waits in the log
        await asyncio.to_thread(threading.Event().wait)


async def counted(scope: Scope, receive: Receive, send: Send) -> None:
    """Write down the digest of the body, one line an execution; think; answer."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    if (body := await _body(receive)) is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = os.open(os.environ["TEST_EXECUTIONS"], flags, 0o600)  # one write, whole or not at all
    try:
        os.write(file, hashlib.sha256(body).hexdigest().encode() + b"\n")
    finally:
        os.close(file)
    await asyncio.sleep(THINKING_S)
    await send(_start({"do": "answer", "status": 200, "headers": {}, "body": "{}"}))
    await send({"type": "http.response.body", "body": b"{}"})


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None where the client left before its end."""
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send: Send) -> None:
    while line := await reader.readline():
        order = json.loads(line)
        if order["do"] in {"answer", "begin"}:
            await send(_start(order))
        if order["do"] == "answer":
            await send({"type": "http.response.body", "body": order["body"].encode()})
            return
        if order["do"] == "send":
            chunk = order["chunk"].encode()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if order["do"] == "end":
            await send({"type": "http.response.body", "body": b""})
            return
        if order["do"] == "spawn":
            writer.write(b"%d\n" % SPAWN[order["how"]]())
        if order["do"] == "fail":
            raise RuntimeError("the test told this call to fail")


def _popen() -> int:
    """A program of its own, given all descriptors that may be inherited."""
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    return subprocess.Popen(command, close_fds=False, start_new_session=True).pid


def _multiprocessing() -> int:
    ready, said = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_say_and_pause, args=(said,))
    child.start()
    os.read(ready, 1)
    if child.pid is None:
        raise RuntimeError("it was started")
    return child.pid


def _fork(fork: Callable[[], int]) -> int:
    ready, said = os.pipe()
    pid = fork()
    if pid == 0:
        _say_and_pause(said)
        os._exit(0)
    os.read(ready, 1)
    return pid


def _say_and_pause(said: int) -> None:
    """A child says that it runs: what it gives up at its start is given up by then."""
    os.write(said, b"1")
    signal.pause()


def _given_sockets(*, listeners: bool) -> int:
    """A program that is given the worker's private connections, and its listener where asked."""
    given = []
    for fd in [int(link.name) for link in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as held:
            private = held.family == socket.AF_UNIX and held.getsockname().endswith(".sock")
            listens = held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if private and (listeners or not listens):
                given.append(fd)
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    return subprocess.Popen(command, pass_fds=given, start_new_session=True).pid


SPAWN: dict[str, Callable[[], int]] = {
    "popen": _popen,
    "multiprocessing": _multiprocessing,
    "fork": lambda: _fork(os.fork),
    "connections": lambda: _given_sockets(listeners=False),
    "connections and listener": lambda: _given_sockets(listeners=True),
    # As an engine written in C forks: no hook of Python's runs, so no descriptor is closed.
    "fork in C": lambda: _fork(ctypes.PyDLL(None).fork),
}


def _start(order: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json", **order["headers"]}
    if order["do"] == "answer":
        headers["content-length"] = str(len(order["body"].encode()))
    return {
        "type": "http.response.start",
        "status": order["status"],
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


def _report(scope: Scope, body: bytes) -> dict[str, Any]:
    call = scope.get(CALL_KEY)
    return {
        "pid": os.getpid(),
        "path": scope["path"],
        "rollout_id": call.rollout_id if call else None,
        "claim_epoch": call.claim_epoch if call else None,
        "sha256": hashlib.sha256(body).hexdigest(),
        "headers": {key.decode(): value.decode("latin-1") for key, value in scope["headers"]},
    }
