# SPDX-License-Identifier: Apache-2.0
"""Byte-level deltas: copy a range of the base, or insert bytes. Pure.

D1: ``apply(base, *encode(base, target)) == target`` for all byte strings.

Conversations grow at one place, so the common prefix and the common suffix say nearly everything.
What the base has between them is what changed its place, and it is looked for in two ways. Strings
of JSON are to a body what lines are to a program: one that stands once in that part of the base is
known wherever it stands in the target, and grows to both sides as far as both run together. In what
is left between two such places, short runs of the new bytes are searched in the old and of the old
in the new, nearest first.

Each step has a bound in bytes that it reads, a multiple of those of the target. Beyond it the rest
is inserted, which is always right and only longer.
"""

import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

__all__ = [
    "Delta",
    "Op",
    "apply",
    "common_ends",
    "common_prefix",
    "common_suffix",
    "encode",
    "pieces_of",
]

_BLOCK = 65_536  # slices are compared in blocks: memcmp speed, and little to copy at a difference
_BLOCK_FIRST = 256  # and they grow up to there, because most runs that are compared are short
_ANCHOR = 24  # long enough to be rarely found by chance in JSON, short enough to sit in one item
_STRINGS_FIRST = 64  # so many strings are looked at on each side, enough for metadata,
_STRING_BYTES = 16  # and one more for so many bytes: it takes as long as hashing some 200
_STRINGS_MAX = 65_536
_REACH_BYTES = 8_192  # so far beyond its part of the text a string is followed to its quotes
_COPIES_MAX = 512  # each with an insert before it, far below what a frame may hold
_COPY_COSTS = 6  # bytes of the frame's line that a copy costs more than an insert in its place
_INSERT_COSTS = 24  # for an insert beside it: 14 of the line, and what bytes apart compress worse
_WINDOW_BYTES = 256  # the first search window; each next one is sixteen times as long,
_NEAR_BYTES = 65_536  # the third one is as long as what a turn adds
_DISTANCES = (0, 32, 128, 512, 2_048, 8_192)
_SPAN = 4  # so many times as much of the base is looked at as of the target
_SCANS = 4  # searching may read this many times the bytes that it searches,
_SCAN_BYTES_MAX = 32 * 1024 * 1024  # and no more than this: some ten milliseconds; up to Python
# 3.10, whose find is slow on texts of one or two letters, half a second of such texts
_FIND_BYTES = 256  # what a search costs before it has read anything


class Op(NamedTuple):
    """One step of building the target."""

    offset: Optional[int]  # where in the base to copy from; None: take the next inserted bytes
    size: int  # bytes, above 0


class Delta(NamedTuple):
    """What turns a base into a target: operations, and the inserted bytes in their order."""

    ops: List[Op]
    inserted: bytes


class _Copy(NamedTuple):
    """``target[at:at+size]`` is ``base[offset:offset+size]``."""

    at: int
    offset: int
    size: int


class _Gap(NamedTuple):
    """A part of the target, and the part of the base that may have something of it."""

    at: int
    end: int
    offset: int
    base_end: int


def apply(base: bytes, ops: List[Op], *inserted: bytes) -> bytes:
    """Build the target; *inserted* are the inserted bytes, in one piece or several.

    Raises:
        ValueError: an operation reaches beyond the base or the inserted bytes, or some are left.
    """
    return b"".join(pieces_of(base, ops, *inserted))


def pieces_of(base: bytes, ops: List[Op], *inserted: bytes) -> List[memoryview]:
    """The target in pieces, before anything is built.

    Raises:
        ValueError: as :func:`apply`.
    """
    wanted, there = sum(op.size for op in ops if op.offset is None), sum(map(len, inserted))
    if wanted != there:
        raise ValueError(f"the operations insert {wanted} bytes, {there} are there")
    old, new = memoryview(base), [memoryview(one) for one in reversed(inserted)]
    pieces: List[memoryview] = []
    for offset, size in ops:
        if offset is not None:
            if not 0 <= offset <= len(old) - size:
                raise ValueError(f"copy of {size} bytes at {offset}: the base has {len(old)}")
            pieces.append(old[offset : offset + size])
            continue
        left = size
        while left:
            piece = new.pop()
            if len(piece) > left:
                new.append(piece[left:])
                piece = piece[:left]
            pieces.append(piece)
            left -= len(piece)
    return pieces


def common_ends(base: bytes, target: bytes) -> Tuple[int, int]:
    """How many bytes they have in common at their start, and behind that at their end."""
    head = common_prefix(base, target)
    return head, common_suffix(base, target, head, head)


def encode(base: bytes, target: bytes, ends: Optional[Tuple[int, int]] = None) -> Delta:
    """Describe *target* by what *base* has already. Never fails; bounded in time.

    Args:
        base: is copied from.
        target: what shall be built.
        ends: what :func:`common_ends` said of them, where that is known.
    """
    head, tail = ends or common_ends(base, target)
    copies = [_Copy(0, 0, head), _Copy(len(target) - tail, len(base) - tail, tail)]
    search = _Search(base, target)
    copies[1:1] = search.nearest(_gap(*copies))
    copies += _strings_copied(base, target, list(map(_gap, copies, copies[1:])))
    copies.sort()
    copies += search.run(copies)
    return _delta(target, sorted(copies))


def common_prefix(
    old: bytes, new: bytes, i: int = 0, j: int = 0, *, most: int = sys.maxsize
) -> int:
    """How many bytes ``old[i:]`` and ``new[j:]`` have in common at their start, up to *most*."""
    limit = min(len(old) - i, len(new) - j, most)
    done = 0
    while done < limit:
        size = min(_BLOCK_FIRST + 8 * done, _BLOCK, limit - done)
        a, at = old[i + done : i + done + size], j + done
        if not new.startswith(a, at):  # one slice less than to compare two of them
            return done + _first_difference(a, new[at : at + size])
        done += size
    return limit


def common_suffix(old: bytes, new: bytes, i: int = 0, j: int = 0) -> int:
    """How many bytes ``old[i:]`` and ``new[j:]`` have in common at their end."""
    limit = min(len(old) - i, len(new) - j)
    done = 0
    while done < limit:
        size = min(_BLOCK_FIRST + 8 * done, _BLOCK, limit - done)
        end_old, end_new = len(old) - done, len(new) - done
        a, b = old[end_old - size : end_old], new[end_new - size : end_new]
        if a != b:
            return done + _equal_at_end(a, b)
        done += size
    return limit


def _first_difference(a: bytes, b: bytes) -> int:
    low, high = 0, len(a)  # a[:low] == b[:low], and the first difference lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _equal_at_end(a: bytes, b: bytes) -> int:
    low, high = 0, len(a)  # a[high:] == b[high:], and the last difference lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if a[middle:high] == b[middle:high]:
            high = middle
        else:
            low = middle
    return len(a) - high


def _gap(last: _Copy, following: _Copy) -> _Gap:
    """What lies between two copies. Nothing of the base does where they changed places."""
    at, offset = last.at + last.size, last.offset + last.size
    reach = _SPAN * (following.at - at) + _BLOCK
    return _Gap(at, following.at, offset, min(following.offset, offset + reach))


def _is_searched(gap: _Gap) -> bool:
    return gap.end - gap.at >= _ANCHOR and gap.base_end - gap.offset >= _ANCHOR


def _strings_copied(base: bytes, target: bytes, gaps: List[_Gap]) -> List[_Copy]:
    """What grows around strings that stand once in these parts of the base, in any order."""
    places: Dict[bytes, int] = {}
    for gap in gaps:
        for offset, text in _strings(base, gap.offset, gap.base_end):
            places[text] = -1 if text in places else offset
    copies: List[_Copy] = []
    for gap in gaps if places else ():
        done = gap.at
        for at, text in _strings(target, gap.at, gap.end):
            known = max(0, done - at)  # the copy before reaches so far into this string
            if len(text) - known < _ANCHOR or places.get(text, -1) < 0:
                continue
            seed = _Copy(at + known, places[text] + known, 0)
            copy = _grown(base, target, seed, gap._replace(at=done))
            if not copy.size:  # the string begins where the gap ends
                continue
            copies.append(copy)
            done = copy.at + copy.size
            if len(copies) == _COPIES_MAX - 3:  # beginning, end and one between them are three
                return copies
    return copies


def _strings(text: bytes, start: int, end: int) -> Iterator[Tuple[int, bytes]]:
    """What stands between quotes there, and where, if it is long enough to look for."""
    if end - start < _ANCHOR:
        return
    start = text.rfind(b'"', max(0, start - _REACH_BYTES), start) + 1 or start
    end = max(end, text.find(b'"', end, end + _REACH_BYTES))
    most = min((end - start) // _STRING_BYTES + _STRINGS_FIRST, _STRINGS_MAX)
    for piece in text[start:end].split(b'"', most)[:most]:
        if len(piece) >= _ANCHOR:
            yield start, piece
        start += len(piece) + 1


def _grown(base: bytes, target: bytes, seed: _Copy, within: _Gap) -> _Copy:
    """The longest copy within a part of the target that takes *seed* in."""
    at, offset, _ = seed
    missed = target[within.at : at]
    back = common_suffix(base[max(0, offset - len(missed)) : offset], missed)
    size = common_prefix(base, target, offset, at, most=within.end - at)
    return _Copy(at - back, offset - back, back + size)


class _Search:
    """Goes through the gaps between copies and looks for places where the base goes on."""

    def __init__(self, base: bytes, target: bytes) -> None:
        self._base = base
        self._target = target
        self._budget_bytes = _BLOCK

    def nearest(self, gap: _Gap) -> List[_Copy]:
        """The copy that begins close by, if it is most of the gap: then little is left of that."""
        seed = self._resume(gap, window_max=_NEAR_BYTES) if _is_searched(gap) else None
        if seed is None:
            return []
        copy = _grown(self._base, self._target, seed, gap)
        return [copy] if 2 * copy.size > gap.end - gap.at else []

    def run(self, copies: List[_Copy]) -> List[_Copy]:
        """More copies, within the gaps between *copies*, and in order there."""
        gaps = [gap for gap in map(_gap, copies, copies[1:]) if _is_searched(gap)]
        searched = sum(gap.end - gap.at + gap.base_end - gap.offset for gap in gaps)
        self._budget_bytes = min(_SCANS * searched + _BLOCK, _SCAN_BYTES_MAX)
        found: List[_Copy] = []
        for gap in gaps:
            left = gap
            while _is_searched(left) and len(copies) + len(found) < _COPIES_MAX:
                seed = self._resume(left, window_max=sys.maxsize)
                if seed is None:
                    break
                copy = _grown(self._base, self._target, seed, left)
                found.append(copy)
                left = left._replace(at=copy.at + copy.size, offset=copy.offset + copy.size)
        return found

    def _resume(self, gap: _Gap, *, window_max: int) -> Optional[_Copy]:
        """The nearest place at which target and base run together again."""
        base, target = self._base, self._target
        window = _WINDOW_BYTES
        while window <= window_max:
            base_end = min(gap.offset + window, gap.base_end)
            end = min(gap.at + window, gap.end)
            for distance in _DISTANCES:
                if self._budget_bytes <= 0:
                    return None
                if distance >= window:
                    break
                at, offset = gap.at + distance, gap.offset + distance
                anchor = target[at : min(at + _ANCHOR, gap.end)]
                found = self._find(anchor, base, gap.offset, base_end)
                if found >= 0:
                    return _Copy(at, found, 0)
                anchor = base[offset : min(offset + _ANCHOR, gap.base_end)]
                found = self._find(anchor, target, gap.at, end)
                if found >= 0:
                    return _Copy(found, offset, 0)
            if base_end == gap.base_end and end == gap.end:
                break
            window *= 16
        return None

    def _find(self, anchor: bytes, within: bytes, start: int, end: int) -> int:
        """Where the anchor stands in ``within[start:end]``, or -1."""
        if len(anchor) < _ANCHOR or end - start < _ANCHOR:
            return -1
        found = within.find(anchor, start, end)
        self._budget_bytes -= (found if found >= 0 else end) - start + _FIND_BYTES
        return found


def _delta(target: bytes, copies: List[_Copy]) -> Delta:
    """Make *copies*, in the order of the target, and insert what lies between them."""
    ops: List[Op] = []
    inserted: List[bytes] = []
    done = 0
    end = _Copy(len(target), 0, 0)
    for (at, offset, size), following in zip([*copies, end], [*copies[1:], end, end]):
        gaps = (at > done) + (following.at > at + size)
        if size <= _COPY_COSTS + gaps * _INSERT_COSTS and at < len(target):
            continue
        if at > done:
            ops.append(Op(None, at - done))
            inserted.append(target[done:at])
        last = ops[-1] if ops else None
        if last is not None and last.offset is not None and last.offset + last.size == offset:
            ops[-1] = Op(last.offset, last.size + size)
        elif size:
            ops.append(Op(offset, size))
        done = at + size
    return Delta(ops, b"".join(inserted))
