# SPDX-License-Identifier: Apache-2.0
"""The limits of one connection, in a real service."""

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from support.control import Call, Control
from support.gateway import Gateway, wait_until

CALL = b"GET /healthz HTTP/1.1\r\nHost: gym\r\n\r\n"
POST = b"POST /v1/responses HTTP/1.1\r\nHost: gym\r\nContent-Length: %d\r\n\r\n"


def ask(gateway: Gateway, raw: bytes, *, stack: ExitStack) -> tuple[socket.socket, bytes]:
    """A connection that stays open until the stack ends, and the head of its answer."""
    connection = stack.enter_context(gateway.connect())
    connection.sendall(raw)
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65536)
    return connection, head


def stream(call: Call) -> None:
    """Send until the call is over."""
    while True:
        call.send("x" * 50_000)


def test_serve_bounds_its_connections_and_their_heads(serve: Callable[..., Gateway]) -> None:
    gateway = serve("--connections-max", "2", workers=1)
    with ExitStack() as stack:
        kept = [ask(gateway, CALL, stack=stack) for _ in range(2)]
        assert all(head.startswith(b"HTTP/1.1 200 ") for _, head in kept)

        _, turned_away = ask(gateway, CALL, stack=stack)
        assert turned_away.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in turned_away

        body = b"x" * (8 << 20)  # more than the buffers of both sockets
        _, turned_away = ask(gateway, POST % len(body) + body, stack=stack)
        assert turned_away.startswith(b"HTTP/1.1 503 ")

        kept[0][0].close()
        wait_until(
            lambda: ask(gateway, CALL, stack=stack)[1].startswith(b"HTTP/1.1 200 "),
            "there is room again",
        )

        large = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"
        kept[1][0].sendall(large)
        with kept[1][0].makefile("rb") as answers:
            head, _, body = answers.read().rpartition(b"\r\n\r\n")
        assert b"HTTP/1.1 431 " in head
        assert json.loads(body)["error"]["code"] == "request_head_too_large"


def test_r4_serve_aborts_an_answer_that_nobody_reads(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve("--answer-stall-seconds", "0.3", workers=1, control=control.path)
    control.hold("r1")
    with gateway.connect() as client:
        client.sendall(b"POST /sessions/r1/x HTTP/1.1\r\nHost: gym\r\nContent-Length: 2\r\n\r\n{}")
        call = control.next_call("r1")
        call.begin()
        with pytest.raises(ConnectionError):
            stream(call)
        with client.makefile("rb") as answer:
            assert not answer.read().endswith(b"0\r\n\r\n")
