# SPDX-License-Identifier: Apache-2.0
"""The model's own log, read back."""

import json
from typing import Any

import pytest

from rollout_router.harness.model_log import read_log
from rollout_router.harness.scenario import Fault


def line(*headers: tuple[str, str], **changes: Any) -> str:
    found = {"path": "/v1/messages", "query": "beta=true", "headers": headers, "sha256": "d"}
    return json.dumps({**found, "answer_id": "conf_main_0_1", "fault": None, **changes})


def test_h1_headers_are_seen_by_their_names_whatever_the_last_hop_says_of_itself() -> None:
    pairs = [("User-Agent", "x"), ("host", "h:1"), ("Accept", "b"), ("accept", "a")]
    hop = [("Connection", "close"), ("Content-Length", "3"), ("Transfer-Encoding", "chunked")]
    (seen,) = read_log([line(*pairs, *hop, ("accept-encoding", "gzip"))])
    assert seen.headers == "accept: b\naccept: a\nuser-agent: x"
    assert seen.path == "messages?beta=true"
    assert read_log([line(query="")])[0].path == "messages"


@pytest.mark.parametrize(
    ("fault", "given"),
    [(None, True), (Fault.CUT, True), *((one, False) for one in Fault if one != Fault.CUT)],
)
def test_an_answer_that_was_given_has_its_id(fault: Fault | None, *, given: bool) -> None:
    (seen,) = read_log([line(fault=fault)])
    assert seen.answer_id == ("conf_main_0_1" if given else None)


def test_a_line_of_another_form_is_an_error() -> None:
    with pytest.raises(KeyError):
        read_log(["{}"])
