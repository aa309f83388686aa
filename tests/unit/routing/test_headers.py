# SPDX-License-Identifier: Apache-2.0
"""Which headers are ours."""

from rollout_router.routing.headers import first, without, without_ours

HEADERS = [
    (b"Content-Type", b"a"),
    (b"ROLLOUT-Worker", b"b"),
    (b"content-type", b"c"),
    (b"rollout-anything", b"d"),
    (b"rollout", b"e"),
    (b"x-rollout-worker", b"f"),
]


def test_the_first_of_a_name_is_found_in_any_case() -> None:
    assert first(HEADERS, b"content-type") == b"a"
    assert first(HEADERS, b"rollout-worker") == b"b"
    assert first(HEADERS, b"missing") is None


def test_named_headers_go_in_any_case_and_the_others_keep_their_order() -> None:
    assert without(HEADERS, b"content-type", b"rollout") == [HEADERS[1], HEADERS[3], HEADERS[5]]


def test_r5_every_header_under_our_prefix_is_ours_and_no_other() -> None:
    assert without_ours(HEADERS) == [HEADERS[0], HEADERS[2], HEADERS[4], HEADERS[5]]
