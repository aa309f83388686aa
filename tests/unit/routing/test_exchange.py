# SPDX-License-Identifier: Apache-2.0
"""The mark and the frame's content type."""

import pytest
from support.routing import Client

from rollout_router.routing.exchange import Exchange, is_frame

FRAME = (b"Content-Type", b"application/vnd.rollout-delta")
KEEP = (b"Rollout-History", b"keep")


def exchange(*headers: tuple[bytes, bytes], deltas: bool = True) -> Exchange:
    client = Client(headers=headers)
    return Exchange.of("r1", client.scope, client.receive, client.send, deltas=deltas)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"application/vnd.rollout-delta", True),
        (b"Application/Vnd.Rollout-Delta ; charset=utf-8", True),
        (b"application/vnd.rollout-delta+json", False),
        (b"application/json", False),
        (b"", False),
    ],
)
async def test_a_frame_is_known_by_its_content_type(content_type: bytes, *, expected: bool) -> None:
    assert is_frame([(b"content-type", content_type)]) is expected
    assert exchange((b"content-type", content_type)).mark.wanted is expected


async def test_r7_a_second_content_type_does_not_hide_a_frame() -> None:
    assert is_frame([(b"content-type", b"application/json"), FRAME])


async def test_a_request_without_content_type_is_no_frame() -> None:
    assert not is_frame([])


async def test_keep_and_frames_are_marked_none_until_something_is_held() -> None:
    for asked in (KEEP, FRAME):
        mark = exchange(asked).mark
        assert mark.headers() == [(b"rollout-history", b"none")]
        mark.value = b"kept=00"
        assert mark.headers() == [(b"rollout-history", b"kept=00")]


async def test_r7_without_deltas_or_without_asking_there_is_no_mark() -> None:
    assert exchange(KEEP, deltas=False).mark.headers() == []
    assert exchange(FRAME, deltas=False).mark.headers() == []
    assert exchange().mark.headers() == []
    assert exchange((b"rollout-history", b"keep-it")).mark.headers() == []
