# SPDX-License-Identifier: Apache-2.0
"""The agent on the OpenAI SDK, as a harness: how it is started, and what it says."""

import json
from pathlib import Path, PurePosixPath

import pytest

from rollout_router.harness.openai_sdk import OpenAISdk
from rollout_router.harness.port import Dialect, Target

SDK = OpenAISdk("openai3", "3.57.0")
SENT = {"calls": 2, "bytes_sent": 50, "bytes_full": 100, "resyncs": 0}
CALL = {"type": "call", "id": "a", "usage": {"input_tokens": 3, "output_tokens": 1, "details": {}}}
DONE = {"type": "done", "answer": "done", "statistics": {"rollouts": {"r": SENT}}}


def lines(*events: object) -> list[str]:
    return [json.dumps(event) for event in events]


def test_the_key_is_in_the_environment() -> None:
    target = Target(base_url="http://g/v1", model="m", dialect=Dialect.CHAT, api_key="k")
    setup = SDK.set_up(PurePosixPath("/h"), target)
    assert setup.environment["OPENAI_API_KEY"] == "k"
    assert "k" not in SDK.command(Path("/c"), target, "go")


def test_calls_usage_and_what_was_sent_are_read() -> None:
    told = SDK.read(lines(CALL, CALL, DONE))
    assert (told.answer, told.model_calls, told.problems) == ("done", 2, ())
    assert told.usage == {"input_tokens": 6, "output_tokens": 2}
    assert told.sent == SENT


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        (lines(CALL), "never said that it was done"),
        (lines(CALL, {"type": "failed", "error": "APIConnectionError: x"}), "APIConnectionError"),
        ([*lines(CALL, DONE), "Traceback"], "no event"),
    ],
)
def test_what_went_wrong_is_a_problem(printed: list[str], problem: str) -> None:
    assert any(problem in one for one in SDK.read(printed).problems)
