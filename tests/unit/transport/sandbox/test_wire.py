# SPDX-License-Identifier: Apache-2.0
import pytest

from rollout_router.transport.sandbox import wire


@pytest.mark.parametrize(
    ("path", "rollout"),
    [
        ("/ng-rollout/abc/v1/responses", "abc"),
        ("/ng-rollout/a.b-c_1/x", "a.b-c_1"),
        ("/sessions/s1/turn", "s1"),
        ("/sessions/s1", "s1"),
        ("/sessions/s1?x=/", "s1"),
        ("/ng-rollout/" + "a" * 200 + "/x", "a" * 200),
        ("/ng-rollout/" + "a" * 201 + "/x", None),
        ("/ng-rollout/a%62c/x", None),
        ("/ng-rollout/.a/x", None),
        ("/ng-rollout//x", None),
        ("/NG-rollout/abc/x", None),
        ("/v1/ng-rollout/abc/x", None),
        ("/v1/responses", None),
    ],
)
def test_a_raw_path_names_a_rollout_or_none(path: str, rollout: str | None) -> None:
    assert wire.path_rollout(path) == rollout


def test_a_header_is_replaced_in_place_and_once() -> None:
    headers = [("A", "1"), ("content-TYPE", "x"), ("B", "2"), ("Content-Type", "y")]

    assert wire.replaced(headers, "Content-Type", "z") == [
        ("A", "1"),
        ("content-TYPE", "z"),
        ("B", "2"),
    ]
    assert wire.replaced([("A", "1")], "B", "2") == [("A", "1"), ("B", "2")]
    assert wire.without(headers, "content-type") == [("A", "1"), ("B", "2")]


def test_a_mark_that_stands_there_twice_is_none() -> None:
    assert wire.history_mark([("rollout-history", "none")]) == "none"
    assert wire.history_mark([("Rollout-History", "none")] * 2) is None
    assert wire.history_mark([]) is None


def test_the_empty_base_is_the_digest_of_no_bytes() -> None:
    assert wire.sha256_hex(b"") == wire.EMPTY_SHA256
    assert wire.is_sha256(wire.EMPTY_SHA256)
    assert not wire.is_sha256(wire.EMPTY_SHA256.upper())
