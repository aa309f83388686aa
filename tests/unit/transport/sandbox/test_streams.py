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


CHUNKS = Framing(Body.CHUNKED)
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


def endless(data: bytes) -> Reader:
    """A stream that gives these bytes, and where a second read would wait for ever."""
    left = [data]
    return Reader(lambda _: left.pop(), peer="the peer")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\nB: c",
        b"GET / HTTP/1.1\r\nHost: a\n\r\n\r\n",
        b"\nGET / HTTP/1.1\r\n\r\n",
        b"\r\n\nG",
    ],
)
def test_a_bare_line_feed_in_a_head_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(BadMessage, match="line feed"):
        endless(data).head()


def test_a_bare_line_feed_in_the_line_of_a_chunk_is_refused_at_once() -> None:
    with pytest.raises(BadMessage, match="line feed"):
        next(pieces(endless(b"3\nabc"), Framing(Body.CHUNKED)))


def test_a_line_feed_may_come_after_its_carriage_return() -> None:
    assert reader_of(b"\r", b"\nfirst\r", b"\nA: 1\r\n\r", b"\n").head() == b"first\r\nA: 1"


def test_small_chunks_that_have_come_are_one_piece() -> None:
    body = pieces(reader_of(b"2\r\nab\r\n" * 10_000 + b"5\r\ncd", b"efg\r\n0\r\n\r\n"), CHUNKS)

    assert list(body) == [b"ab", b"ab" * 9_999, b"cd", b"efg"]


def test_a_head_over_the_limit_is_refused() -> None:
    with pytest.raises(BadMessage) as caught:
        reader_of(*[b"A: 1\r\n" * 2_000] * 7).head()

    assert caught.value.status == 431


def test_a_piece_is_given_before_what_follows_it_has_come() -> None:
    body = pieces(reader_of(b"3\r\nabc"), Framing(Body.CHUNKED))

    assert next(body) == b"abc"
