# SPDX-License-Identifier: Apache-2.0
"""What the OpenAI SDK makes of what a transport hands on or raises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from rollout_router.transport.httpx2 import DeltaTransport
from rollout_router.transport.sandbox import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unit.transport.sandbox.conftest import FakeGateway, Handler, Received

SAID: list[Any] = [{"role": "user", "content": "x" * 500}]
ANSWER = {"id": "c1", "object": "chat.completion", "choices": []}


@pytest.fixture
def sdk(gateway: FakeGateway) -> Iterator[openai.OpenAI]:
    """An SDK that has made a call, so that it sends frames."""
    url = f"{gateway.url}/ng-rollout/r1/v1"
    transport = DeltaTransport(inner=httpx2.HTTPTransport(verify=False))
    http_client = openai.DefaultHttpxClient(transport=transport)
    with openai.OpenAI(base_url=url, api_key="none", http_client=http_client) as made:
        ask(made)
        gateway.received.clear()
        yield made


def ask(sdk: openai.OpenAI) -> Any:
    return sdk.chat.completions.create(model="m", messages=SAID)


def saying(status: int, *, marked: bool) -> Any:
    """The application's own answer, which the SDK may try again at once."""

    def answer(handler: Handler, _: Received) -> None:
        mark = {"Rollout_History": wire.NONE} if marked else {}
        handler.answer(status, json.dumps(ANSWER).encode(), Retry_After_Ms="1", **mark)

    return answer


@pytest.mark.parametrize("status", [409, 429, 503])
def test_s3_a_retry_of_the_sdk_is_a_call_of_its_own(
    sdk: openai.OpenAI, gateway: FakeGateway, status: int
) -> None:
    gateway.scripts.append(saying(status, marked=True))
    assert ask(sdk)
    assert [one.framed for one in gateway.received] == [True, True]
    assert [one.header("x-stainless-retry-count") for one in gateway.received] == ["0", "1"]


@pytest.mark.parametrize("status", [400, 404, 410])
def test_s3_what_the_sdk_does_not_try_again_is_sent_once(
    sdk: openai.OpenAI, gateway: FakeGateway, status: int
) -> None:
    gateway.scripts.append(saying(status, marked=True))
    with pytest.raises(openai.APIStatusError) as raised:
        ask(sdk)
    assert raised.value.status_code == status
    assert wire.HISTORY_HEADER not in raised.value.response.headers
    assert len(gateway.received) == 1


def test_s4_an_aborted_answer_is_a_broken_connection_to_the_sdk(
    sdk: openai.OpenAI, gateway: FakeGateway
) -> None:
    gateway.scripts.append(saying(200, marked=False))
    with pytest.raises(openai.APIConnectionError):
        ask(sdk.with_options(max_retries=0))
    assert ask(sdk)
    assert [one.framed for one in gateway.received] == [True, False]


def test_r4_a_cut_stream_is_an_error_of_the_sdk(sdk: openai.OpenAI, gateway: FakeGateway) -> None:
    def cut(handler: Handler, received: Received) -> None:
        handler.begin_stream(received)
        handler.chunk(b'data: {"id":"c1","choices":[]}\n\n')
        handler.cut()

    gateway.scripts += [lambda handler, _: handler.answer(409, Rollout_History=wire.RESYNC), cut]
    events = sdk.chat.completions.create(model="m", messages=SAID, stream=True)
    assert next(events).id == "c1"
    with pytest.raises(openai.APIConnectionError):
        next(events)
    assert [one.framed for one in gateway.received] == [True, True]
