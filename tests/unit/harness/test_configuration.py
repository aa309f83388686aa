# SPDX-License-Identifier: Apache-2.0
"""Text in TOML and YAML comes back as it was, whatever it holds."""

import json
import tomllib
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.harness.configuration import compact_at, environment, quoted, toml, yaml

TEXTS = st.text(st.characters(codec="utf-8"))  # all that a file can hold
NASTY = "\"'\\\n\r\t\b\x00\x1f\x7f\x85\xa0\u2028\u2029\ufeff\ufffe\uffff\ud7ff😀${HOME} #: {}"


@given(TEXTS)
def test_what_yaml_would_fold_or_refuse_is_escaped(text: str) -> None:
    """YAML 1.2 section 5.1: printable, and no line break but those that JSON escapes, too."""
    plain = set(quoted(text)) - {"😀"}
    assert not [one for one in plain if one < " " or "\x7e" < one <= "\xa0"]
    assert not plain & set("\u2028\u2029\ufeff\ufffe\uffff")


@given(TEXTS, TEXTS)
def test_documents_come_back_whole(one: str, other: str) -> None:
    document = {"a": one, "b": {"c": other, "d": {"e": 1, "f": True}}, "g": 0.85}
    assert tomllib.loads(toml(document)) == document
    assert json.loads(yaml(document)) == document


def test_characters_that_parsers_differ_on_are_escaped_and_others_stay() -> None:
    assert tomllib.loads(toml({"key": NASTY})) == {"key": NASTY} == json.loads(yaml({"key": NASTY}))
    assert quoted("😀é") == '"😀é"'
    assert quoted("\x7f\u2028") == '"\\u007f\\u2028"'


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        quoted("\ud83d")


def test_every_harness_has_a_home_and_no_proxy_before_the_shim() -> None:
    assert environment(PurePosixPath("/h")) == {
        "HOME": "/h",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


@pytest.mark.parametrize(("window", "at"), [(200_000, 170_000), (64_000, 54_400), (7, 5)])
def test_a_context_is_compacted_at_85_percent(window: int, at: int) -> None:
    assert compact_at(window) == at
