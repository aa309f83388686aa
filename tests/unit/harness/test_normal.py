# SPDX-License-Identifier: Apache-2.0
"""The rules by which two runs' requests are made equal: each removes its own kind, and no other."""

from collections import Counter

import pytest

from rollout_router.harness.normal import RULES, normalised, same

UUID = "019ad3f0-7a6c-7d11-8c1b-0123456789ab"
PAIRS = {
    "order of client_metadata": (
        r'{"a":1,"client_metadata":{"x":"{\"k\":1}","b":"2"}}',
        r'{"a":1,"client_metadata":{"b":"2","x":"{\"k\":1}"}}',
    ),
    "uuid": (f'"id":"msg_{UUID}"', f'"id":"msg_{UUID[:-1]}c"'),
    "id of an OpenCode thing": (
        '"key":"ses_53a0b1c2d3e4AbCdEfGhIjKlMn"',
        '"key":"ses_53a0b1c2d3e5ZbCdEfGhIjKlMz"',
    ),
    "time at which a turn began": (
        r"\"turn_started_at_unix_ms\":1796008720174,",
        r"\"turn_started_at_unix_ms\":1796008734104,",
    ),
    "seconds that a command took": ("Wall time: 0.0512 seconds", "Wall time: 1 seconds"),
    "seconds that a subagent took": (
        r'"total_duration_seconds\": 0.92, \"x\"',
        r'"total_duration_seconds\": 1.5, \"x\"',
    ),
    "id of a delegation": ("live/deleg_353448c4/task", "live/deleg_00000000/task"),
    "nickname of a subagent": (r"\"nickname\":\"Pauli\"}", r"\"nickname\":\"Bohr\"}"),
    "file of a long output": (
        "pi-bash-1dc0cc9aa10eaab5.log",
        "pi-bash-0000000000000000.log",
    ),
    "chunk of a command's output": ("Chunk ID: 0a1b2c", "Chunk ID: ffffff"),
}


@pytest.mark.parametrize(("name", "pair"), PAIRS.items(), ids=PAIRS)
def test_a_rule_makes_its_own_kind_equal_and_is_counted(name: str, pair: tuple[str, str]) -> None:
    used: Counter[str] = Counter()
    assert same(*pair, used)
    assert set(used) == {name}


def test_a_nickname_is_found_in_a_result_as_in_a_request() -> None:
    assert same('{"nickname":"Pauli"}', '{"nickname":"Bohr"}', Counter())


def test_h1_that_two_ids_are_one_is_not_hidden() -> None:
    other = UUID[:-1] + "c"
    assert same(f"{UUID} {UUID}", f"{other} {other}", Counter())
    assert not same(f"{UUID} {UUID}", f"{UUID} {other}", Counter())


def test_every_rule_is_tried() -> None:
    assert set(PAIRS) == {rule.name for rule in RULES}
    assert all(rule.why for rule in RULES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("echo one", "echo two"),
        ('"client_metadata":{"a":"1"}', '"client_metadata":{"a":"2"}'),
        ('say "client_metadata": not JSON', 'say "client_metadata": no JSON'),
        ("confcall1a", "confcall1b"),
        ("ses_short", "ses_other"),
    ],
)
def test_h1_what_no_rule_names_stays_different(one: str, other: str) -> None:
    assert not same(one, other, Counter())


def test_equal_texts_need_no_rule() -> None:
    used: Counter[str] = Counter()
    assert same(UUID, UUID, used)
    assert not used


def test_a_text_without_anything_made_up_is_left_alone() -> None:
    text = '{"messages":[{"role":"user","content":"Wall time"}]}'
    assert normalised(text) == (text, Counter())
