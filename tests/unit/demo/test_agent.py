# SPDX-License-Identifier: Apache-2.0
"""What the agent sees of an answer, through the HTTP client that the SDK is given."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import openai
import pytest

from rollout_router.demo.agent import _Answer
from rollout_router.demo.attempt import Attempt, Holder, Outcome

FIRST, SECOND = b"data: \xff\n\n", b"data: [DONE]\n\n"
SENT = Attempt(turn=0, body_sha256="0" * 64, body_bytes=1, outcome=Outcome.ANSWERED)
PATIENCE_S = 30.0


class _Server(HTTPServer):
    """Answers in two parts, the second when it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proceed = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.send_response(201)
        self.send_header("Rollout-Worker", "w")
        self.send_header("Rollout-Claim-Epoch", "7")
        self.send_header("Content-Length", str(len(FIRST + SECOND)))
        self.end_headers()
        self.wfile.write(FIRST)
        if self.server.proceed.wait(PATIENCE_S):
            self.wfile.write(SECOND)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.proceed.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def seen(server: _Server) -> Iterator[tuple[Any, list[_Answer]]]:
    """A client of the server, and what is seen of each of its answers."""
    answers: list[_Answer] = []
    with openai.DefaultHttpxClient(
        base_url=f"http://127.0.0.1:{server.server_port}",
        event_hooks={"response": [lambda response: answers.append(_Answer(response))]},
        trust_env=False,
    ) as client:
        yield client, answers


def _check(answer: _Answer, content: bytes) -> None:
    attempt = answer.of(SENT)
    assert attempt.answer_bytes == len(content)
    assert attempt.answer_sha256 == hashlib.sha256(content).hexdigest()
    assert attempt.status == 201
    assert attempt.holder == Holder(worker_id="w", claim_epoch=7)


def test_a_stream_is_seen_as_it_passes_and_not_held_back(
    server: _Server, seen: tuple[Any, list[_Answer]]
) -> None:
    client, answers = seen
    with client.stream("GET", "/") as response:
        parts = response.iter_bytes()
        came = b""
        while came != FIRST:
            came += next(parts)  # the server has not sent the rest
        _check(answers[0], FIRST)
        server.proceed.set()
        assert b"".join(parts) == SECOND
    _check(answers[0], FIRST + SECOND)


def test_a_whole_answer_is_seen_when_it_is_read(
    server: _Server, seen: tuple[Any, list[_Answer]]
) -> None:
    client, answers = seen
    server.proceed.set()
    assert client.get("/").content == FIRST + SECOND
    _check(answers[0], FIRST + SECOND)
