# SPDX-License-Identifier: Apache-2.0
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.transport.sandbox.http1 import BadMessage, Body, Framing
from rollout_router.transport.sandbox.streams import Cut, Reader, pieces


def reader_of(*arrivals: bytes) -> Reader:
    """A stream that gives these bytes, one arrival a read, and ends."""
    left: Iterator[bytes] = iter(arrivals)
    waiting = b""

    def recv(bytes_max: int) -> bytes:
        nonlocal waiting
        waiting = waiting or next(left, b"")
        data, waiting = waiting[:bytes_max], waiting[bytes_max:]
        return data

    return Reader(recv, peer="the peer")


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


CHUNKED = b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: 1\r\n\r\n"


@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_messages_are_read_however_they_arrive(cuts: list[int]) -> None:
    stream = b"first\r\nA: 1\r\n\r\n" + CHUNKED + b"\r\nsecond\r\n\r\nabc" + b"third\r\n\r\nrest"
    reader = reader_of(*split(stream, cuts))

    assert reader.head() == b"first\r\nA: 1"
    assert b"".join(pieces(reader, Framing(Body.CHUNKED))) == b"hello!"
    assert reader.head() == b"second"
    assert b"".join(pieces(reader, Framing(Body.LENGTH, 3))) == b"abc"
    assert reader.head() == b"third"
    assert b"".join(pieces(reader, Framing(Body.CLOSE))) == b"rest"
    assert reader.head() is None


@pytest.mark.parametrize("end", range(1, len(CHUNKED)))
def test_r4_chunks_that_end_early_are_cut(end: int) -> None:
    with pytest.raises(Cut):
        list(pieces(reader_of(CHUNKED[:end]), Framing(Body.CHUNKED)))


def test_r4_a_body_that_is_short_of_its_length_is_cut() -> None:
    with pytest.raises(Cut, match="the peer closed its connection inside a body"):
        list(pieces(reader_of(b"ab"), Framing(Body.LENGTH, 3)))


def test_r4_a_head_that_ends_early_is_cut() -> None:
    with pytest.raises(Cut):
        reader_of(b"GET / HT").head()


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"x\r\n", id="no size"),
        pytest.param(b"1\r\nab\r\n0\r\n\r\n", id="longer than its size"),
        pytest.param(b"0\r\n" + b"A: 1\r\n" * 70 + b"\r\n", id="too many trailers"),
        pytest.param(b"1" + b";" * 20_000, id="an endless line"),
    ],
)
def test_bad_chunks_are_refused(stream: bytes) -> None:
    with pytest.raises(BadMessage):
        list(pieces(reader_of(stream), Framing(Body.CHUNKED)))


def test_a_head_over_the_limit_is_refused() -> None:
    with pytest.raises(BadMessage) as caught:
        reader_of(*[b"A: 1\r\n" * 2_000] * 7).head()

    assert caught.value.status == 431


def test_a_piece_is_given_before_what_follows_it_has_come() -> None:
    body = pieces(reader_of(b"3\r\nabc"), Framing(Body.CHUNKED))

    assert next(body) == b"abc"
