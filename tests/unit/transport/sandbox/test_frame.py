# SPDX-License-Identifier: Apache-2.0
import json
import random
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.transport.sandbox import delta as delta_module
from rollout_router.transport.sandbox import frame as frame_module
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.delta import Delta, Op
from rollout_router.transport.sandbox.frame import (
    Malformed,
    TooLong,
    encode_frame,
    parse_frame,
    rebuild,
)
from rollout_router.transport.sandbox.wire import EMPTY_SHA256, sha256_hex

BASE = b"".join(b"%d:some text of the base;" % i for i in range(400))
TARGET = BASE[:5000] + b"what is new" * 9 + BASE[5000:]
LENGTH_MAX = 1 << 20


def line(**changes: Any) -> bytes:
    document = {
        "v": 1,
        "base": sha256_hex(b"0123456789"),
        "target": sha256_hex(b"01234new"),
        "length": 8,
        "type": "application/json",
        "ops": [["copy", 0, 5], ["insert", 3]],
    }
    document.update(changes)
    document = {key: value for key, value in document.items() if value is not ...}
    return json.dumps(document, separators=(",", ":")).encode()


GOOD = line() + b"\nnew"


def frame_of(base: bytes, target: bytes, *, deflate: bool) -> bytes | None:
    return encode_frame(
        sha256_hex(base), target, base, content_type="application/json", deflate=deflate
    )


def parts() -> st.SearchStrategy[bytes]:
    words = st.sampled_from([b'{"role":"user"}', b"lorem ipsum " * 30, b"x", BASE[:700]])
    return st.lists(words | st.binary(max_size=60), max_size=12).map(b"".join)


@settings(deadline=None)
@given(base=parts(), target=parts(), deflate=st.booleans())
def test_d1_a_frame_rebuilds_the_target(base: bytes, target: bytes, *, deflate: bool) -> None:
    encoded = frame_of(base, target, deflate=deflate)

    if encoded is not None:
        assert rebuild(parse_frame(encoded, length_max=LENGTH_MAX), base) == target


@settings(deadline=None)
@given(base=parts(), target=parts(), deflate=st.booleans())
def test_d3_a_frame_is_smaller_than_the_body(base: bytes, target: bytes, *, deflate: bool) -> None:
    encoded = frame_of(base, target, deflate=deflate)

    assert encoded is None or len(encoded) < len(target)


@settings(deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255), deflate=st.booleans())
def test_d2_a_changed_byte_is_refused_or_changes_no_byte(
    at: int, value: int, *, deflate: bool
) -> None:
    encoded = frame_of(BASE, TARGET, deflate=deflate)
    assert encoded is not None
    changed = bytearray(encoded)
    changed[at % len(changed)] = value
    try:
        rebuilt = rebuild(parse_frame(bytes(changed), length_max=LENGTH_MAX), BASE)
    except Malformed:
        return
    assert rebuilt == TARGET


@settings(deadline=None)
@given(other=parts(), deflate=st.booleans())
def test_d2_a_frame_does_not_apply_to_another_base(other: bytes, *, deflate: bool) -> None:
    encoded = frame_of(BASE, TARGET, deflate=deflate)
    assert encoded is not None

    with pytest.raises(Malformed):
        rebuild(parse_frame(encoded, length_max=LENGTH_MAX), other)


@settings(deadline=None)
@given(body=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_d2_any_bytes_are_a_frame_or_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        parse_frame(body, length_max=LENGTH_MAX)


def test_a_frame_gives_its_parts() -> None:
    frame = parse_frame(GOOD, length_max=LENGTH_MAX)

    assert frame.base == sha256_hex(b"0123456789")
    assert frame.target == sha256_hex(b"01234new")
    assert (frame.length, frame.type, frame.deflate) == (8, "application/json", False)
    assert frame.ops == [(0, 5), (None, 3)]
    assert rebuild(frame, b"0123456789") == b"01234new"


def test_type_may_be_null() -> None:
    assert parse_frame(line(type=None) + b"\nnew", length_max=8).type is None


def test_a_whole_body_goes_as_a_compressed_frame_on_the_empty_base() -> None:
    encoded = encode_frame(EMPTY_SHA256, BASE, b"", content_type=None, deflate=True)
    assert encoded is not None

    frame = parse_frame(encoded, length_max=LENGTH_MAX)

    assert frame.base == EMPTY_SHA256
    assert rebuild(frame, b"") == BASE
    assert len(encoded) < len(BASE) / 3


def test_the_dictionary_is_what_the_first_copies_end_with() -> None:
    rng = random.Random(5)  # noqa: S311 - test data
    base = rng.randbytes(100_000)
    repeated = base[60_000:60_400]  # within the last 32,768 bytes of the first 90,000
    target = base[:90_000] + b"#" + repeated[1:] + b"#" + base[90_000:]
    encoded = frame_of(base, target, deflate=True)
    assert encoded is not None

    frame = parse_frame(encoded, length_max=LENGTH_MAX)

    leading = base[:90_000][-32_768:]
    unpacker = zlib.decompressobj(zdict=leading)
    inserted = sum(op.size for op in frame.ops if op.offset is None)
    if frame.deflate:
        assert len(unpacker.decompress(frame.payload)) == inserted
    assert rebuild(frame, base) == target
    assert len(encoded) < 700


def packed(data: bytes, dictionary: bytes = b"01234") -> bytes:
    packer = zlib.compressobj(6, zdict=dictionary)
    return packer.compress(data) + packer.flush()


def test_inserted_bytes_may_be_one_zlib_stream_with_a_dictionary() -> None:
    frame = parse_frame(line(deflate=True) + b"\n" + packed(b"new"), length_max=8)

    assert rebuild(frame, b"0123456789") == b"01234new"


MALFORMED = [
    ("empty", b""),
    ("no newline", line()),
    ("not json", b"{\n"),
    ("json but no object", b"[]\n"),
    ("a number", b"1\n"),
    ("byte order mark", b"\xef\xbb\xbf" + GOOD),
    ("utf-16", line().decode().encode("utf-16") + b"\nnew"),
    ("not utf-8", line(type="\xff").replace(b"\\u00ff", b"\xff") + b"\nnew"),
    ("deep nesting", b"[" * 200_000 + b"\n"),
    ("deep objects", b'{"a":' * 50_000 + b"\n"),
    ("nested operations", line(ops=[[["copy"], 0, 5], ["insert", 3]]) + b"\nnew"),
    ("key twice", line().replace(b'{"v":1', b'{"v":1,"v":1') + b"\nnew"),
    ("unknown key", line(extra=1) + b"\nnew"),
    ("no version", line(v=...) + b"\nnew"),
    ("another version", line(v=2) + b"\nnew"),
    ("version true", line(v=True) + b"\nnew"),
    ("version float", line(v=1.0) + b"\nnew"),
    ("version text", line(v="1") + b"\nnew"),
    ("no base", line(base=...) + b"\nnew"),
    ("base null", line(base=None) + b"\nnew"),
    ("base short", line(base="ab") + b"\nnew"),
    ("base upper case", line(base=sha256_hex(b"0123456789").upper()) + b"\nnew"),
    ("base with newline", line(base=sha256_hex(b"0123456789") + "\n") + b"\nnew"),
    ("target number", line(target=7) + b"\nnew"),
    ("no length", line(length=...) + b"\nnew"),
    ("length true", line(length=True) + b"\nnew"),
    ("length float", line().replace(b'"length":8', b'"length":8.0') + b"\nnew"),
    ("length exponent", line().replace(b'"length":8', b'"length":8e0') + b"\nnew"),
    ("length text", line(length="8") + b"\nnew"),
    ("length null", line(length=None) + b"\nnew"),
    ("length negative", line(length=-8) + b"\nnew"),
    ("length minus zero", line().replace(b'"length":8', b'"length":-0') + b"\nnew"),
    ("length huge", line().replace(b'"length":8', b'"length":' + b"9" * 100_000) + b"\nnew"),
    ("length NaN", line().replace(b'"length":8', b'"length":NaN') + b"\nnew"),
    ("length infinite", line().replace(b'"length":8', b'"length":Infinity') + b"\nnew"),
    ("length too small", line(length=7) + b"\nnew"),
    ("length too large", line(length=9) + b"\nnew"),
    ("no type", line(type=...) + b"\nnew"),
    ("type number", line(type=1) + b"\nnew"),
    ("type with a line break", line(type="a/b\r\nX-Evil: 1") + b"\nnew"),
    ("type with a NUL", line(type="a\x00b") + b"\nnew"),
    ("type beyond latin-1", line(type="a/\u20ac") + b"\nnew"),
    ("type a lone surrogate", line(type="\ud800") + b"\nnew"),
    ("type a frame", line(type="Application/vnd.rollout-delta; v=1") + b"\nnew"),
    ("no ops", line(ops=...) + b"\nnew"),
    ("ops null", line(ops=None) + b"\nnew"),
    ("ops object", line(ops={}) + b"\nnew"),
    ("op text", line(ops=["copy", 0, 5]) + b"\nnew"),
    ("op empty", line(ops=[[], ["insert", 3]]) + b"\nnew"),
    ("op unknown", line(ops=[["move", 0, 5], ["insert", 3]]) + b"\nnew"),
    ("copy without size", line(ops=[["copy", 0], ["insert", 3]]) + b"\nnew"),
    ("copy with more", line(ops=[["copy", 0, 5, 0], ["insert", 3]]) + b"\nnew"),
    ("copy of nothing", line(ops=[["copy", 0, 8], ["copy", 0, 0]]) + b"\n"),
    ("copy offset negative", line(ops=[["copy", -1, 5], ["insert", 3]]) + b"\nnew"),
    ("copy size negative", line(ops=[["copy", 0, -5], ["insert", 13]]) + b"\nnew"),
    ("copy offset true", line(ops=[["copy", True, 5], ["insert", 3]]) + b"\nnew"),
    ("copy size true", line(length=4, ops=[["copy", 0, True], ["insert", 3]]) + b"\nnew"),
    ("copy offset float", line(ops=[["copy", 0.0, 5], ["insert", 3]]) + b"\nnew"),
    ("copy offset null", line(ops=[["copy", None, 5], ["insert", 3]]) + b"\nnew"),
    ("copy offset huge", line(ops=[["copy", 10**30, 5], ["insert", 3]]) + b"\nnew"),
    ("insert of nothing", line(length=5, ops=[["copy", 0, 5], ["insert", 0]]) + b"\n"),
    ("insert with more", line(ops=[["copy", 0, 5], ["insert", 3, 3]]) + b"\nnew"),
    ("inserted bytes missing", line() + b"\nne"),
    ("inserted bytes left", line() + b"\nnew!"),
    ("deflate number", line(deflate=1) + b"\nnew"),
    ("deflate null", line(deflate=None) + b"\nnew"),
]
WRONG_FOR_THE_BASE = [
    ("copy beyond the base", line(ops=[["copy", 6, 5], ["insert", 3]]) + b"\nnew"),
    ("copy behind the base", line(ops=[["copy", 10**14, 5], ["insert", 3]]) + b"\nnew"),
    ("another digest", line(target=sha256_hex(b"01234old")) + b"\nnew"),
    ("other bytes", line() + b"\nold"),
    ("no zlib", line(deflate=True) + b"\nnew"),
    ("nothing to inflate", line(deflate=True) + b"\n"),
    ("stream short", line(deflate=True) + b"\n" + packed(b"ne")),
    ("stream long", line(deflate=True) + b"\n" + packed(b"new!")),
    ("stream cut", line(deflate=True) + b"\n" + packed(b"new")[:-1]),
    ("stream followed", line(deflate=True) + b"\n" + packed(b"new") + b"!"),
    ("two streams", line(deflate=True) + b"\n" + packed(b"ne") + packed(b"w")),
    ("another dictionary", line(deflate=True) + b"\n" + packed(b"new", b"56789")),
]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in MALFORMED])
def test_d2_a_malformed_frame_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"."):
        parse_frame(body, length_max=LENGTH_MAX)


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in WRONG_FOR_THE_BASE])
def test_d2_a_frame_that_does_not_fit_its_base_is_refused(body: bytes) -> None:
    frame = parse_frame(body, length_max=LENGTH_MAX)

    with pytest.raises(Malformed, match=r"."):
        rebuild(frame, b"0123456789")


def test_d2_the_bounds_of_the_line_are_exact() -> None:
    size = len(line())

    assert parse_frame(GOOD, length_max=8, line_bytes_max=size, ops_max=2).length == 8
    with pytest.raises(Malformed, match="newline"):
        parse_frame(GOOD, length_max=8, line_bytes_max=size - 1)
    with pytest.raises(Malformed, match="operations"):
        parse_frame(GOOD, length_max=8, ops_max=1)
    with pytest.raises(TooLong, match="limit is 7"):
        parse_frame(GOOD, length_max=7)


def of(unit: str, times: int, **changes: Any) -> bytes:
    """A line whose operations are *times* the same thing."""
    return line(ops=..., **changes)[:-1] + f',"ops":[{",".join([unit] * times)}]}}\n'.encode()


WIDE = {
    "empty lists": of("[]", 87_000),
    "numbers": of("1", 130_000),
    "inserts": of('["insert",1]', 20_000),
    "a long operation": of(f'["copy",{",".join("1" * 130_000)}]', 1),
    "objects": of("{}", 80_000),
    "nested lists": of("[" * 400 + "]" * 400, 320),
    "nested objects": of('{"a":' * 400 + "1" + "}" * 400, 100),
    "keys": b"{" + b",".join(b'"%d":1' % n for n in range(25_000)) + b"}\n",
}
LONG = {
    "no newline": b"{" * 10_000_000,
    "a long line": of("[1]", 1_000_000),
    "spaces": b" " * 262_145 + GOOD,
}


@pytest.mark.parametrize("body", [pytest.param(WIDE[name], id=name) for name in WIDE])
def test_d2_a_wide_line_is_refused_by_what_it_counts(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(body) <= 262_145
    refused_unread(body, monkeypatch, match="than 4096 operations have")


@pytest.mark.parametrize("body", [pytest.param(LONG[name], id=name) for name in LONG])
def test_d2_a_long_line_is_refused_unread(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_unread(body, monkeypatch, match="no newline within the first 262144 bytes")


def refused_unread(body: bytes, monkeypatch: pytest.MonkeyPatch, *, match: str) -> None:
    monkeypatch.setattr(frame_module, "json", None)

    with pytest.raises(Malformed, match=match):
        parse_frame(body, length_max=LENGTH_MAX)


def test_the_most_operations_and_a_type_full_of_marks_are_read() -> None:
    full = of('["copy",0,10]', 4_096, length=40_960, type=",[{" * 300)

    assert len(parse_frame(full, length_max=40_960).ops) == 4_096


def multiplied(times: int) -> bytes:
    return of('["copy",0,1000]', times, length=1000 * times)


def test_d2_copies_that_multiply_the_base_are_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most, base = wire.COPY_TIMES_MAX, bytes(1_000)
    with pytest.raises(Malformed, match="the digest"):
        rebuild(parse_frame(multiplied(most), length_max=LENGTH_MAX), base)
    monkeypatch.setattr(delta_module, "pieces_of", None)
    with pytest.raises(Malformed, match="more than 16 times the base"):
        rebuild(parse_frame(multiplied(most + 1), length_max=LENGTH_MAX), base)


def test_d3_a_body_that_repeats_its_base_too_often_is_sent_in_full() -> None:
    base = random.Random(5).randbytes(1_000)  # noqa: S311 - test data
    for times in (wire.COPY_TIMES_MAX, wire.COPY_TIMES_MAX + 1):
        delta = Delta([Op(0, 1_000)] * times, b"")
        frame = encode_frame(
            sha256_hex(base), base * times, base, content_type=None, deflate=False, known=delta
        )
        assert (frame is None) is (times > wire.COPY_TIMES_MAX)


LENGTH = 1_000_000
BOMB = zlib.compress(bytes(50 * LENGTH), 9)
HUNGRY = {
    **WIDE,
    **LONG,
    "deep lists": b"[" * 262_000 + b"\n",
    "deep objects": b'{"a":' * 50_000 + b"\n",
    "a long number": of("9" * 250_000, 1),
    "escapes": of('"' + "\\u0041" * 43_000 + '"', 1),
    "a huge length": of('["insert",1]', 1, length=10**14),
    "copies that multiply": of('["copy",0,1000]', 4_000, length=4 * LENGTH),
    "copies that multiply up to the limit": of('["copy",0,1000]', 1_000, length=LENGTH),
    "behind the base": of('["copy",999999,1000]', 1_000, length=LENGTH),
    "a bomb": of(f'["insert",{LENGTH}]', 1, length=LENGTH, deflate=True) + BOMB,
    "a bomb for one byte": of('["insert",1]', 1, length=1, deflate=True) + BOMB,
    "a bomb behind a long copy": of('["copy",0,1000],["insert",3]', 1, length=1_003, deflate=True)
    + BOMB,
}


@pytest.mark.parametrize("name", HUNGRY)
def test_d2_what_is_refused_takes_no_more_than_its_capped_length(name: str) -> None:
    base = bytes(1_000)
    body = HUNGRY[name]
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            rebuild(parse_frame(body, length_max=LENGTH), base)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # The line as bytes and text; and the length, inflated: nothing is built of it.
    assert peak < 4 * 262_144 + LENGTH + 200_000


def test_d2_a_long_stream_that_is_refused_takes_no_more_than_its_declared_length() -> None:
    length = 32 << 20
    body = of(f'["insert",{length}]', 1, length=length, deflate=True) + zlib.compress(bytes(length))
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="digest"):
            rebuild(parse_frame(body, length_max=length), b"")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < length + (3 << 20)  # what is made at once, twice, and the line


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_d1_streams_of_every_length_inflate_to_what_was_packed(size: int) -> None:
    target = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)  # noqa: S311 - repeatable bytes
    packed = zlib.compress(target)
    line = {"ops": [["insert", size]] if size else [], "length": size, "deflate": True}
    sha = sha256_hex(target)
    frame = {"v": 1, "base": EMPTY_SHA256, "target": sha, "type": None, **line}
    body = json.dumps(frame).encode() + b"\n"
    assert rebuild(parse_frame(body + packed, length_max=size + 1), b"") == target
    for wrong in (packed[:-1], packed + b"x", packed + bytes(200_000)):
        with pytest.raises(Malformed, match="zlib"):
            rebuild(parse_frame(body + wrong, length_max=size + 1), b"")


def test_d3_there_is_no_frame_for_what_is_shorter_in_full() -> None:
    assert frame_of(b"", b"short", deflate=True) is None
    assert frame_of(b"other", b"short" * 20, deflate=False) is None
