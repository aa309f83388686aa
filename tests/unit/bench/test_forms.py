# SPDX-License-Identifier: Apache-2.0
"""Each form is what it is named after, and the sending side finds in it what stayed the same."""

import json

import pytest

from rollout_router.bench.forms import CALLS, FORMS
from rollout_router.transport.sandbox.bases import Base, closest
from rollout_router.transport.sandbox.delta import apply
from rollout_router.transport.sandbox.wire import sha256_hex

NEW_MAX = {
    # of all bytes; about what is new in the texts, which no encoder can find in a base
    "growth before the tools": 0.0595,
    "metadata in random order": 0.049,
    "1 moving marker": 0.0493,
    "2 moving markers": 0.041,
    "3 moving markers, text as a list": 0.0523,
    "old outputs cleared": 0.0775,
    "names lost at a resume": 0.038,
    "compaction": 0.109,
    "outputs shortened": 0.0516,
    "a time in the system prompt": 0.0505,
    "three agents at once": 0.137,
}


@pytest.mark.parametrize("form", FORMS)
def test_d1_what_is_inserted_is_what_is_new(form: str) -> None:
    bodies = list(FORMS[form]())
    held: list[Base] = []
    inserted = 0
    for body in bodies:
        if held:
            base, delta = closest(held, body)
            assert apply(base.body, *delta) == body
            inserted += len(delta.inserted)
        held = [Base(sha256_hex(body), body), *held[:3]]

    assert inserted < NEW_MAX[form] * sum(map(len, bodies))


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_the_same_each_time_and_of_compact_json(form: str) -> None:
    bodies = list(FORMS[form]())

    assert len(bodies) == CALLS
    assert bodies == list(FORMS[form]())
    for body in bodies:
        assert json.dumps(json.loads(body), separators=(",", ":")).encode() == body
