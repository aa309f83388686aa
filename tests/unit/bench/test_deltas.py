# SPDX-License-Identifier: Apache-2.0
"""What is measured of deltas is what it is named after."""

from collections.abc import Callable, Iterator

import pytest

from rollout_router.bench import deltas
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.deltas import run_deltas
from rollout_router.bench.forms import CALLS, FORMS

FORM = "metadata in random order"


@pytest.fixture
def _one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "FORMS", {FORM: FORMS[FORM]})


@pytest.mark.usefixtures("_one_form")
def test_a_form_is_measured_against_hashing_its_bodies() -> None:
    said: list[str] = []

    found = run_deltas(rounds=CALLS, say=said.append)  # more than one run

    (costs,) = found.forms
    ((row,),) = (table.rows for table in found.tables())
    assert row[:2] == [FORM, f"{costs.bytes_full:,}"]
    assert set(found.measured()) == {f"deltas {FORM} {stage.stage}" for stage in costs.stages}
    assert costs.form == FORM
    assert costs.bytes_full == sum(map(len, FORMS[FORM]()))
    assert costs.bytes_full > 10 * costs.bytes_plain > 10 * costs.bytes_deflated
    stages = {stage.stage: stage.reference for stage in costs.stages}
    assert stages == {"sha256": None, "delta_plain": "sha256", "delta_deflated": "sha256"}
    assert said == [f"measuring {CALLS} rounds of 1 forms of conversation"]


def test_a_body_that_goes_in_full_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    short: Callable[[], Iterator[bytes]] = lambda: iter([b"a", b"b", b"c"])  # noqa: E731 - as the forms are
    monkeypatch.setattr(deltas, "FORMS", {"short": short})

    with pytest.raises(BenchFailed, match="short: the sandbox side sent no frame"):
        run_deltas(rounds=3, say=lambda _: None)
