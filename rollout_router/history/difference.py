# SPDX-License-Identifier: Apache-2.0
"""A body told by another one: what of it stands where in the other, and the rest. Pure.

H2: ``Difference.of(body, runs).build(other) == body``, wherever the runs are true of both; nothing
is searched or compared here. Runs come from the operations that built the other body, read
backwards, so that making a difference takes as long as there are operations and bytes of rest.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from struct import Struct, pack
from typing import Final, NamedTuple, Self

__all__ = ["Difference", "Operation", "Run", "inverted", "runs_of", "through"]

Operation = tuple[int | None, int]
"""Offset in the base that is copied from, or None where new bytes come in; and how many bytes."""

_COUNT: Final = Struct("=q")
_PIECE: Final = Struct("=qq")
_RUN_BYTES_MIN: Final = 2 * _PIECE.size  # a shorter one costs more than its bytes
_REST: Final = -1  # the start of a piece whose bytes are not in the other body


class Run(NamedTuple):
    """``one[start : start + size]`` is ``other[to : to + size]``."""

    start: int
    to: int
    size: int


def runs_of(operations: Iterable[Operation]) -> list[Run]:
    """What stands in the base and in the body that *operations* built from it.

    Returns:
        Runs from the base to the body in their order, disjoint on both sides: each byte of the body
        has one place in the base, and of the places that a byte of the base has, one is taken.
    """
    runs: list[Run] = []
    at = 0
    for offset, size in operations:
        if offset is not None:
            runs.append(Run(offset, at, size))
        at += size
    disjoint: list[Run] = []
    covered = 0
    for start, to, size in sorted(runs):
        skipped = max(covered - start, 0)
        if size - skipped >= _RUN_BYTES_MIN:
            disjoint.append(Run(start + skipped, to + skipped, size - skipped))
            covered = start + size
    return disjoint


def inverted(runs: Iterable[Run]) -> list[Run]:
    """The same runs, seen from the other body."""
    return sorted(Run(to, start, size) for start, to, size in runs)


def through(first: Iterable[Run], second: Sequence[Run]) -> list[Run]:
    """Runs from *a* to *c*, where *first* leads from *a* to *b* and *second* from *b* to *c*."""
    return [
        Run(start + begin - middle, to, size)
        for start, middle, whole in first
        for begin, to, size in _within(second, middle, whole)
    ]


def _within(runs: Sequence[Run], start: int, size: int) -> Iterator[tuple[int, int, int]]:
    """The parts of *runs* that begin and end within ``start : start + size``."""
    end = start + size
    first = bisect_right(runs, (start, inf)) - 1  # it may reach into the range
    for place in range(max(first, 0), len(runs)):
        begin, to, count = runs[place]
        if begin >= end:
            return
        if begin < start:
            begin, to, count = start, to + start - begin, count + begin - start
        if begin + count > end:
            count = end - begin
        if count >= _RUN_BYTES_MIN:
            yield begin, to, count


class Difference(bytes):
    """A body in pieces, packed into one object because a worker holds many.

    The number of pieces; of each its start in the other body, or ``_REST``, and its bytes; then the
    rest, the bytes that are not in the other body, in their order. Its length is all that it holds.
    """

    __slots__ = ()

    @classmethod
    def of(cls, body: bytes, runs: Sequence[Run]) -> Self:
        """*body*, told by the body that *runs* lead to."""
        return cls._packed([(0, len(body))], []).moved(body, runs)

    @classmethod
    def _packed(cls, pieces: Iterable[tuple[int, int]], parts: Iterable[memoryview]) -> Self:
        """Neighbours that are neighbours in the other body too become one, and so do rests."""
        numbers: list[int] = []
        next_start = None
        for start, size in pieces:
            if start == next_start:
                numbers[-1] += size
            else:
                numbers += (start, size)
            next_start = start if start == _REST else start + size
        packed = pack(f"={1 + len(numbers)}q", len(numbers) // 2, *numbers)
        return cls(b"".join((packed, *parts)))

    @property
    def pieces(self) -> int:
        """How many pieces it has."""
        return int(_COUNT.unpack_from(self)[0])

    @property
    def length(self) -> int:
        """How many bytes it builds."""
        return sum(size for _, size in self._split()[0])

    def build(self, other: bytes) -> bytes:
        """The body, from the one that it is told by."""
        old = memoryview(other)
        pieces, rest = self._split()
        parts: list[memoryview] = []
        for start, size in pieces:
            if start == _REST:
                parts.append(rest[:size])
                rest = rest[size:]
            else:
                parts.append(old[start : start + size])
        return b"".join(parts)

    def runs(self) -> Iterator[Run]:
        """What it has of the other body, in order."""
        at = 0
        for start, size in self._split()[0]:
            if start != _REST:
                yield Run(at, start, size)
            at += size

    def moved(self, other: bytes, runs: Sequence[Run]) -> Self:
        """The same body, told by the one that *runs* lead to from *other*, which it is told by."""
        old = memoryview(other)
        told, rest = self._split()
        pieces: list[tuple[int, int]] = []
        parts: list[memoryview] = []
        for start, size in told:
            if start == _REST:
                pieces.append((_REST, size))
                parts.append(rest[:size])
                rest = rest[size:]
                continue
            at = start
            for begin, to, count in _within(runs, start, size):
                if at < begin:
                    pieces.append((_REST, begin - at))
                    parts.append(old[at:begin])
                pieces.append((to, count))
                at = begin + count
            if at < start + size:
                pieces.append((_REST, start + size - at))
                parts.append(old[at : start + size])
        return self._packed(pieces, parts)

    def _split(self) -> tuple[Iterator[tuple[int, int]], memoryview]:
        packed = memoryview(self)
        end = _COUNT.size + self.pieces * _PIECE.size
        return _PIECE.iter_unpack(packed[_COUNT.size : end]), packed[end:]
