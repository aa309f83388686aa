# SPDX-License-Identifier: Apache-2.0
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.deployment import Deployment, code_of
from support.folders import private_folder

from rollout_router.checkpoint.environment_server import EnvironmentServer


@pytest.fixture(scope="module")
def place() -> Iterator[Deployment]:
    with private_folder() as folder, closing(Deployment(folder / "place")) as one:
        begin(one)
        yield one


def begin(one: Deployment) -> None:
    one.play("r1", 2)


async def _environment(run: Any) -> str:
    return str(run.environment_id)


def test_a_copy_is_what_was_recorded_and_can_be_given_again(
    place: Deployment, folder: Path
) -> None:
    environment_id = place.act(_environment, "r1")
    copy = place.server.export(environment_id)
    assert copy is not None
    assert copy["revision"] == 2
    other = Deployment(folder / "other", state=place.state)
    made = [other.server.restore(copy, store_id="other") for _ in range(2)]
    assert made[0] is not None
    assert made[1] is None
    assert other.lines(environment_id) == ["r1 0", "r1 1"]
    moved = other.server.export(environment_id)
    assert moved is not None
    assert moved["store_id"] == "other"
    for _ in range(2):
        other.server.take_back(environment_id, made[0])
    assert other.server.export(environment_id) is None
    other.close()


def test_what_is_not_there_cannot_be_carried_over(place: Deployment) -> None:
    assert place.server.export("none") is None


def test_another_environment_of_that_name_stays(place: Deployment) -> None:
    environment_id = place.act(_environment, "r1")
    copy = place.server.export(environment_id)
    assert copy is not None
    place.play("r1", 3)
    store_id = place.journal.store_id
    assert code_of(place.server.restore, copy, store_id=store_id) == "restore_conflict"
    damaged = {**copy, "revision": 9}
    assert code_of(place.server.restore, damaged, store_id=store_id) == "manifest_damaged"
    assert len(place.lines(environment_id)) == 3


@pytest.mark.parametrize(
    "url", ["environments:8000", "https://host", "http://", "http://host?a=1", "http://host:port"]
)
def test_a_server_is_named_by_a_url_of_its_kind(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://host:port|Port"):
        EnvironmentServer(url)


class Answers(socketserver.ThreadingTCPServer):
    """Answers every request with what a test says, and keeps what it was asked."""

    daemon_threads = True
    answer: tuple[int, bytes] = (200, b"")
    asked: list[tuple[str, str, bytes]]


class _One(BaseHTTPRequestHandler):
    server: Answers

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.command, self.path, body))
        status, said = self.server.answer
        self.send_response(status)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = _answer  # noqa: N815 - the form of the standard library

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    with Answers(("127.0.0.1", 0), _One) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "no"}}).encode()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((200, b"{}"), "manifest_damaged"),
        ((200, b"null"), "manifest_damaged"),
        ((200, b"<html>"), "manifest_damaged"),
        ((404, b'{"detail":"Not Found"}'), "environment_unreachable"),  # another kind of server
        ((404, b"[]"), "environment_unreachable"),
        ((302, b""), "environment_unreachable"),
        ((500, b"oops"), "environment_unreachable"),
        ((503, error("environment_unavailable")), "environment_unavailable"),
        ((503, error("of another product")), "environment_unreachable"),
        ((404, error("environment_unknown")), None),
        ((410, error("environment_lost")), None),
    ],
)
def test_only_its_own_word_tells_that_an_environment_is_lost(
    answers: Answers, answer: tuple[int, bytes], code: str | None
) -> None:
    answers.answer = answer
    server = EnvironmentServer(f"http://127.0.0.1:{answers.server_address[1]}/below/")
    if code is None:
        assert server.export("e1") is None
    else:
        assert code_of(server.export, "e1") == code
    assert answers.asked[-1] == ("GET", "/below/ng-control/v1/environments/e1", b"")


def test_a_copy_is_sent_as_it_is_kept(answers: Answers) -> None:
    answers.answer = (204, b"")
    server = EnvironmentServer(f"http://127.0.0.1:{answers.server_address[1]}")
    server.restore({"environment_id": "e1"}, store_id="s")
    path = "/ng-control/v1/environments/e1?store_id=s"
    assert answers.asked[-1] == ("PUT", path, b'{"environment_id": "e1"}')
    for said in (b"[]", b"<html>", b"{}"):
        answers.answer = (201, said)
        code = code_of(server.restore, {"environment_id": "e1"}, store_id="s")
        assert code == "environment_unreachable"


def test_a_server_that_is_not_there_is_unreachable(answers: Answers) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), _One) as gone:
        port = gone.server_address[1]
    server = EnvironmentServer(f"http://127.0.0.1:{port}")
    assert code_of(server.export, "e1") == "environment_unreachable"
    assert code_of(server.restore, {"environment_id": "e1"}, store_id="s") == (
        "environment_unreachable"
    )
    assert answers is not None
