# SPDX-License-Identifier: Apache-2.0
"""The delta frame: one line of JSON, a newline, the inserted bytes, and nothing after them. Pure.

D1: what :func:`encode_frame` makes, :func:`rebuild` turns back into the target, byte for byte.
D2: a frame never applies to another base, and a malformed one is refused without allocating more
than its declared, capped length. D3: where a frame would not be smaller there is none.
"""

import hashlib
import itertools
import json
import re
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from rollout_router.transport.sandbox import delta
from rollout_router.transport.sandbox.delta import Delta, Op
from rollout_router.transport.sandbox.wire import (
    COPY_TIMES_MAX,
    DICTIONARY_BYTES,
    LINE_BYTES_MAX,
    OPS_MAX,
    is_delta_type,
    is_sha256,
    sha256_hex,
)

__all__ = [
    "Frame",
    "Malformed",
    "TooLong",
    "encode_frame",
    "marks_max",
    "parse_frame",
    "rebuild",
    "undeflated_bytes",
]

_REQUIRED = {"v", "base", "target", "length", "type", "ops"}
_OPTIONAL = {"deflate"}
_DIGITS_MAX = 15  # below 2**53, so that every JSON implementation reads the same number
_SMALL_BYTES = 262_144  # up to here zlib level 6, which costs 28 ms a megabyte, 18 more than level
# 1, and leaves 15 % less of a first body; level 9 takes half as long again for 1 %
_PACKED_BYTES = 65_536  # of a zlib stream are read at once,
_INFLATED_BYTES = 1_048_576  # and so many are made of them at most
_DEFLATE = b',"deflate":true}'  # how the line of a frame ends whose inserted bytes are compressed
_MARKS = {b",": 3, b"[": 1, b"{": 0}  # that an operation has
_MARKS_MORE = 1_024  # that the rest of the line may have: the type is free to hold some
_HEADER_VALUE = re.compile("[\t\x20-\x7e\x80-\xff]*")


class Malformed(ValueError):  # noqa: N818 - names what the frame is
    """The frame is not what the wire allows; nothing was built from it."""


class TooLong(Malformed):
    """The frame declares a body over the limit."""


class Frame(NamedTuple):
    """A frame whose line is valid. Its operations are not checked against a base yet."""

    base: str  # sha256 hex of the body that the operations copy from
    target: str  # sha256 hex of the body that they build
    length: int  # bytes of that body; the operations add up to it
    type: Optional[str]  # the original Content-Type; None where the request had none
    ops: List[Op]
    deflate: bool
    payload: bytes  # the inserted bytes, or the zlib stream of them


def encode_frame(
    base_sha: str,
    target: bytes,
    base: bytes,
    *,
    content_type: Optional[str],
    deflate: bool,
    target_sha: Optional[str] = None,
    known: Optional[Delta] = None,
) -> Optional[bytes]:
    """The frame that turns *base* into *target*, or None where it would not be smaller (D3).

    Args:
        base_sha: the digest of *base*, by which the server knows it.
        target: the body to send.
        base: a body that the server holds.
        content_type: the request's own, restored by the server.
        deflate: whether inserted bytes may be compressed; they are where that is shorter.
        target_sha: the digest of *target*, where the caller knows it already.
        known: the delta, where the caller has it already.
    """
    ops, inserted = known or delta.encode(base, target)
    document: Dict[str, Any] = {
        "v": 1,
        "base": base_sha,
        "target": target_sha or sha256_hex(target),
        "length": len(target),
        "type": content_type,
        "ops": [_written(op) for op in ops],
    }
    line, payload = json.dumps(document, separators=(",", ":")).encode(), inserted
    if deflate and inserted:
        packed = _deflated(inserted, _dictionary(base, ops))
        if len(packed) + len(_DEFLATE) - 1 < len(inserted):
            line, payload = line[:-1] + _DEFLATE, packed
    if len(line) > LINE_BYTES_MAX or len(ops) > OPS_MAX or _multiplies(ops, base):
        return None
    if len(line) + 1 + len(payload) >= len(target):
        return None
    return b"%s\n%s" % (line, payload)


def undeflated_bytes(frame: bytes, inserted_bytes: int) -> int:
    """How long the frame would be had its inserted bytes, so many, not been compressed."""
    end = frame.index(b"\n")
    if frame.endswith(_DEFLATE, 0, end):
        end -= len(_DEFLATE) - 1
    return end + 1 + inserted_bytes


def parse_frame(
    body: bytes,
    *,
    length_max: int,
    line_bytes_max: int = LINE_BYTES_MAX,
    ops_max: int = OPS_MAX,
) -> Frame:
    """Read a frame and check all that can be checked without its base.

    Args:
        body: the whole request body.
        length_max: the most bytes that a rebuilt body may have.
        line_bytes_max: the most bytes of the JSON line, its newline not counted.
        ops_max: the most operations.

    Raises:
        TooLong: the declared length is over *length_max*.
        Malformed: anything else is wrong; the message says what.
    """
    end = body.find(b"\n", 0, line_bytes_max + 1)
    if end < 0:
        raise Malformed(f"no newline within the first {line_bytes_max} bytes")
    line = body[:end]
    for mark, most in marks_max(ops_max).items():
        if line.count(mark) > most:
            raise Malformed(f"more {mark.decode()} than {ops_max} operations have")
    document = _document(line)
    _check_keys(document)
    version = document["v"]
    if type(version) is not int or version != 1:
        raise Malformed(f"v must be 1, not {_shown(version)}")
    length = document["length"]
    if type(length) is not int:
        raise Malformed(f"length must be an integer, not {_shown(length)}")
    if length > length_max:
        raise TooLong(f"the frame declares {length} bytes, the limit is {length_max}")
    deflate = document.get("deflate", False)
    if type(deflate) is not bool:
        raise Malformed(f"deflate must be true or false, not {_shown(deflate)}")
    ops = _operations(document["ops"], length, ops_max)
    payload = body[end + 1 :]
    insert_bytes = _insert_bytes(ops)
    if not deflate and len(payload) != insert_bytes:
        raise Malformed(f"{insert_bytes} inserted bytes are declared, {len(payload)} are there")
    return Frame(
        base=_digest(document, "base"),
        target=_digest(document, "target"),
        length=length,
        type=_content_type(document["type"]),
        ops=ops,
        deflate=deflate,
        payload=payload,
    )


def rebuild(frame: Frame, base: bytes) -> bytes:
    """The body that the harness wrote: built, and its length and digest checked (D1, D2).

    Args:
        frame: from :func:`parse_frame`.
        base: the bytes that the caller holds under ``frame.base``.

    Raises:
        Malformed: an operation leaves the base, the copies multiply it, the zlib stream is wrong,
            or the digest differs.
    """
    if _multiplies(frame.ops, base):
        raise Malformed(f"the copies are more than {COPY_TIMES_MAX} times the base")
    inserted = _inflated(frame, base) if frame.deflate else [frame.payload]
    try:
        pieces = delta.pieces_of(base, frame.ops, *inserted)
    except ValueError as error:
        raise Malformed(str(error)) from None
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != frame.target:  # before anything is built
        raise Malformed("the rebuilt body does not have the digest that the frame names")
    return b"".join(pieces)


def _multiplies(ops: List[Op], base: bytes) -> bool:
    """Whether a short frame would cost a long body: what was read bounds what is built."""
    copied = sum(op.size for op in ops if op.offset is not None)
    return copied > COPY_TIMES_MAX * len(base)


def marks_max(ops_max: int) -> Dict[bytes, int]:
    """How many of each mark of JSON the line of a frame may hold; to count them is not to read."""
    return {mark: times * ops_max + _MARKS_MORE for mark, times in _MARKS.items()}


def _document(line: bytes) -> Dict[str, Any]:
    try:
        document = json.loads(
            line.decode("utf-8"),
            parse_int=_integer,
            parse_float=_no_number,
            parse_constant=_no_number,
            object_pairs_hook=_object,
        )
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the first line is not JSON: {error}") from None
    if type(document) is not dict:
        raise Malformed("the first line is not a JSON object")
    return document


def _integer(text: str) -> int:
    if len(text) > _DIGITS_MAX or text[0] == "-":
        raise Malformed(f"number out of range: {text[:24]}")
    return int(text)


def _no_number(text: str) -> int:
    raise Malformed(f"not an integer: {text[:24]}")


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise Malformed("a key stands there twice")
    return document


def _check_keys(document: Dict[str, Any]) -> None:
    missing = sorted(_REQUIRED - document.keys())
    if missing:
        raise Malformed(f"missing: {', '.join(missing)}")
    unknown = sorted(document.keys() - _REQUIRED - _OPTIONAL)
    if unknown:
        raise Malformed(f"unknown: {', '.join(map(_shown, unknown[:4]))}")


def _digest(document: Dict[str, Any], key: str) -> str:
    value = document[key]
    if type(value) is not str or not is_sha256(value):
        raise Malformed(f"{key} must be a sha256 in lower-case hex, not {_shown(value)}")
    return value


def _content_type(value: object) -> Optional[str]:
    """A value that may stand in a header, so that no line can be smuggled in behind it."""
    if value is None:
        return None
    if type(value) is not str or _HEADER_VALUE.fullmatch(value) is None:
        raise Malformed(f"type is not a header value: {_shown(value)}")
    if is_delta_type(value):
        raise Malformed("type names a delta frame: a frame does not carry frames")
    return value


def _operations(value: object, length: int, ops_max: int) -> List[Op]:
    if type(value) is not list:
        raise Malformed(f"ops must be a list, not {_shown(value)}")
    if len(value) > ops_max:
        raise Malformed(f"{len(value)} operations, the limit is {ops_max}")
    ops: List[Op] = []
    total = 0
    for raw in value:
        op = _operation(raw)
        ops.append(op)
        total += op.size
    if total != length:
        raise Malformed(f"the operations build {total} bytes, length says {length}")
    return ops


def _operation(raw: object) -> Op:
    if type(raw) is list and raw and all(type(number) is int for number in raw[1:]):
        name, numbers = raw[0], raw[1:]
        if name == "copy" and len(numbers) == 2 and numbers[1]:  # noqa: PLR2004 - offset and count
            return Op(numbers[0], numbers[1])
        if name == "insert" and len(numbers) == 1 and numbers[0]:
            return Op(None, numbers[0])
    raise Malformed(f"not an operation: {_shown(raw)}")


def _written(op: Op) -> List[Any]:
    return ["insert", op.size] if op.offset is None else ["copy", op.offset, op.size]


def _insert_bytes(ops: List[Op]) -> int:
    return sum(op.size for op in ops if op.offset is None)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 48 else text[:45] + "..."  # noqa: PLR2004 - enough to recognise it


def _dictionary(base: bytes, ops: List[Op]) -> bytes:
    """The last 32,768 bytes that the operations before the first insert build."""
    pieces: List[bytes] = []
    needed = DICTIONARY_BYTES
    leading = list(itertools.takewhile(lambda op: op.offset is not None, ops))
    for offset, count in reversed(leading):
        end = (offset or 0) + count
        piece = base[max(end - count, end - needed) : end]
        pieces.append(piece)
        needed -= len(piece)
        if needed == 0:
            break
    return b"".join(reversed(pieces))


def _deflated(inserted: bytes, dictionary: bytes) -> bytes:
    level = 6 if len(inserted) <= _SMALL_BYTES else 1
    packer = zlib.compressobj(level, zdict=dictionary) if dictionary else zlib.compressobj(level)
    return packer.compress(inserted) + packer.flush()


def _inflated(frame: Frame, base: bytes) -> List[bytes]:
    """The inserted bytes in pieces, as many as the operations want: more is never taken.

    zlib holds twice what it makes at once, so it makes little at once.
    """
    expected = _insert_bytes(frame.ops)
    dictionary = _dictionary(base, frame.ops)
    unpacker = zlib.decompressobj(zdict=dictionary) if dictionary else zlib.decompressobj()
    pieces: List[bytes] = []
    size = read = 0
    packed = b""
    try:
        # One byte more than declared is enough to see that the stream does not end there.
        while not unpacker.eof and size <= expected and (packed or read < len(frame.payload)):
            if not packed:
                packed = frame.payload[read : read + _PACKED_BYTES]
                read += len(packed)
            piece = unpacker.decompress(packed, min(_INFLATED_BYTES, expected + 1 - size))
            packed = unpacker.unconsumed_tail
            pieces.append(piece)
            size += len(piece)
    except zlib.error as error:
        raise Malformed(f"the inserted bytes are no zlib stream: {error}") from None
    if size != expected or not unpacker.eof:
        raise Malformed(f"the zlib stream does not inflate to exactly {expected} bytes")
    following = len(unpacker.unused_data) + len(frame.payload) - read
    if following:
        raise Malformed(f"{following} bytes follow the zlib stream")
    return pieces
