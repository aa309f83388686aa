# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from rollout_router.errors import ResponseCut
from rollout_router.gateway.app import create_app
from rollout_router.gateway.bodies import BODY_BYTES_MAX
from rollout_router.gateway.model import INLINE_BYTES_MAX, Dialect, ModelAnswer, ModelRequest, whole
from rollout_router.gateway.validation import check_call, read_call

CALL = b'{"model":"m","input":"x",  "messages":[{}]}'
PREFIXES = ["", "/sessions/r1", "/ng-rollout/r-2.x"]


class Noting:
    """A model that notes what it was asked, and answers in given parts."""

    reads_documents = True

    def __init__(self, *parts: bytes, error: Exception | None = None) -> None:
        self.parts: Sequence[bytes] = parts
        self.error = error
        self.asked: list[ModelRequest] = []
        self.life: list[str] = []

    async def __aenter__(self) -> Self:
        self.life.append("open")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.life.append("closed")

    @asynccontextmanager
    async def answer(self, request: ModelRequest) -> AsyncIterator[ModelAnswer]:
        self.asked.append(request)
        if not self.parts:
            yield whole(200, {"ok": True})
            return
        yield ModelAnswer(status=200, headers=[(b"x-model", b"1")], parts=self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part
        if self.error is not None:
            raise self.error


class Thinking(Noting):
    """A model that thinks for ever, and notes how that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.thinking = asyncio.Event()

    @asynccontextmanager
    async def answer(self, request: ModelRequest) -> AsyncIterator[ModelAnswer]:
        self.asked.append(request)
        self.thinking.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.life.append("given up")
            raise
        yield whole(200, {})


def ask(model: Noting, drive: Any, path: str, **request: Any) -> Any:
    return asyncio.run(drive(path=path, routed=False, **request).run(create_app(model)))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("dialect", Dialect)
def test_h1_a_call_reaches_the_model_as_its_bytes(
    drive: Any, prefix: str, dialect: Dialect
) -> None:
    model = Noting()

    answer = ask(model, drive, prefix + dialect.value, body=[CALL[:9], CALL[9:]])

    assert (answer.status, answer.content) == (200, b'{"ok":true}')
    (asked,) = model.asked
    assert (asked.body, asked.path, asked.dialect) == (CALL, dialect.value, dialect)
    assert asked.document == json.loads(CALL)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/a%2Fb", "/v1/responses/resp_1"])
def test_other_gets_reach_the_model_with_their_raw_path(drive: Any, prefix: str, path: str) -> None:
    model = Noting()

    answer = ask(
        model, drive, (prefix + path).replace("%2F", "/"), method="GET", body=b"",
        raw_path=(prefix + path).encode(), query_string=b"a=%62",
    )  # fmt: skip

    assert answer.status == 200
    (asked,) = model.asked
    assert (asked.method, asked.path, asked.query, asked.dialect) == ("GET", path, b"a=%62", None)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/other", 404),
        ("DELETE", "/v1/responses/resp_1", 404),
        ("GET", "/other", 404),
        ("GET", "/v1/responses/", 200),
        ("POST", "/v1/responses/", 404),
        ("POST", "/sessions/a/b/v1/responses", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 405),
        ("HEAD", "/v1/models", 404),
        ("OPTIONS", "/v1/models", 405),
    ],
)
def test_paths_that_are_not_served_are_404(drive: Any, method: str, path: str, status: int) -> None:
    answer = ask(Noting(), drive, path, method=method)

    assert answer.status == status
    if status == 404:
        assert json.loads(answer.content)["error"]["code"] == "not_found"


def test_a_websocket_is_answered_426(drive: Any) -> None:
    headers = [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]

    assert ask(Noting(), drive, "/v1/responses", method="GET", headers=headers).status == 426


@pytest.mark.parametrize("dialect", Dialect)
def test_a_body_over_the_bound_is_413_and_the_rest_is_not_read(
    drive: Any, dialect: Dialect
) -> None:
    model, exchange = (
        Noting(),
        drive(path=dialect.value, routed=False, body=[bytes(BODY_BYTES_MAX), b"x", b"unread"]),
    )

    answer = asyncio.run(exchange.run(create_app(model)))

    document = json.loads(answer.content)
    assert (answer.status, document["error"]["code"]) == (413, "body_too_large")
    assert [message["body"] for message in answer.body] == [b"unread"]
    assert model.asked == []


@pytest.mark.parametrize("dialect", Dialect)
def test_a_body_that_is_no_call_is_400_and_not_asked(drive: Any, dialect: Dialect) -> None:
    model = Noting()

    answer = ask(model, drive, dialect.value, body=b"[" * 100_000)

    document = json.loads(answer.content)
    assert (answer.status, document["error"]["code"]) == (400, "invalid_request")
    assert (document.get("type") == "error") is (dialect is Dialect.MESSAGES)
    assert model.asked == []


def test_a_model_that_reads_no_documents_is_given_none(drive: Any) -> None:
    model = Noting()
    model.reads_documents = False

    assert ask(model, drive, "/v1/responses", body=CALL).status == 200
    assert ask(model, drive, "/v1/responses", body=b'{"model":1}').status == 400

    (asked,) = model.asked
    assert (asked.body, asked.document) == (CALL, None)


@pytest.mark.parametrize("reads_documents", [True, False])
def test_a_large_body_is_read_outside_the_event_loop(
    drive: Any, monkeypatch: pytest.MonkeyPatch, *, reads_documents: bool
) -> None:
    threads: list[int] = []

    def watched(judge: Any) -> Any:
        def judged(dialect: Dialect, body: bytes) -> Any:
            threads.append(threading.get_ident())
            return judge(dialect, body)

        return judged

    for judge in (read_call, check_call):
        monkeypatch.setattr(f"rollout_router.gateway.app.{judge.__name__}", watched(judge))
    model = Noting()
    model.reads_documents = reads_documents
    large = CALL[:-1] + b" " * INLINE_BYTES_MAX + b"}"

    for body in (CALL, large):
        assert ask(model, drive, "/v1/responses", body=body).status == 200
    assert ask(model, drive, "/v1/responses", body=b" " * len(large)).status == 400

    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False, False]
    assert [asked.body for asked in model.asked] == [CALL, large]


def test_an_encoded_body_is_the_models_to_read(drive: Any) -> None:
    model = Noting()

    ask(model, drive, "/v1/responses", body=b"\x28\xb5", headers=[(b"content-encoding", b"zstd")])

    assert (model.asked[0].body, model.asked[0].document) == (b"\x28\xb5", None)


def test_parts_leave_as_they_come(drive: Any) -> None:
    answer = ask(Noting(b"a", b"bc"), drive, "/v1/responses", body=CALL)

    assert [message.get("body") for message in answer.sent] == [None, b"a", b"bc", b""]
    assert answer.headers == {b"x-model": b"1"}
    assert answer.complete


def test_r4_a_cut_leaves_the_application_bare(drive: Any) -> None:
    model = Noting(b"a", error=ResponseCut("upstream"))
    answer = drive(path="/v1/responses", routed=False, body=CALL)

    with pytest.raises(ResponseCut, match="upstream"):
        asyncio.run(answer.run(create_app(model)))

    assert not answer.complete


def test_r4_a_client_that_leaves_ends_the_call_of_its_model(drive: Any) -> None:
    async def scenario() -> None:
        model = Thinking()
        answer = drive(path="/v1/responses", routed=False, body=CALL)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answer.run(create_app(model)))
            await model.thinking.wait()
            answer.left.set()
        assert model.life == ["given up"]
        assert answer.sent == []

    asyncio.run(scenario())


def test_a_cancelled_request_ends_the_call_of_its_model_and_stays_cancelled(drive: Any) -> None:
    async def scenario() -> None:
        model = Thinking()
        answer = drive(path="/v1/responses", routed=False, body=CALL)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(answer.run(create_app(model)))
            await model.thinking.wait()
            task.cancel()
        assert task.cancelled()
        assert model.life == ["given up"]

    asyncio.run(scenario())


def test_the_lifespan_owns_the_model() -> None:
    async def scenario() -> None:
        model = Noting()
        app = create_app(model)
        async with app.router.lifespan_context(app):
            assert model.life == ["open"]
        assert model.life == ["open", "closed"]

    asyncio.run(scenario())
