# SPDX-License-Identifier: Apache-2.0
"""Byte-level deltas: copy a range of the base, or insert bytes. Pure.

D1: ``apply(base, *encode(base, target)) == target`` for all byte strings.

Conversations grow at one place, so the common prefix and the common suffix say nearly everything.
What is left between them is searched greedily for anchors: short runs of the new bytes in the old
(something was deleted) or of the old in the new (something was inserted), nearest first. The work
has a bound; beyond it the rest is inserted, which is always right and only longer.
"""

from typing import List, NamedTuple, Optional, Tuple

__all__ = ["Delta", "Op", "apply", "common_prefix", "common_suffix", "encode"]

_BLOCK = 65_536  # slices are compared in blocks: memcmp speed, and little to copy at a difference
_ANCHOR = 24  # long enough to be rarely found by chance in JSON, short enough to sit in one item
_COPY_MIN = 24  # a shorter copy costs more in the frame's line than the bytes it saves
_OPS_MAX = 1_024  # far below what a frame may hold; recorded harness runs needed 42
_WINDOW_BYTES = 256  # the first search window; each next one is sixteen times as long
_DISTANCES = (0, 32, 128, 512, 2_048, 8_192)
_SCANS = 4  # searching may read this many times the bytes that it searches,
_SCAN_BYTES_MAX = 32 * 1024 * 1024  # and no more than this: some ten milliseconds


class Op(NamedTuple):
    """One step of building the target."""

    offset: Optional[int]  # where in the base to copy from; None: take the next inserted bytes
    size: int  # bytes, above 0


class Delta(NamedTuple):
    """What turns a base into a target: operations, and the inserted bytes in their order."""

    ops: List[Op]
    inserted: bytes


def apply(base: bytes, ops: List[Op], inserted: bytes) -> bytes:
    """Build the target.

    Raises:
        ValueError: an operation reaches beyond the base or the inserted bytes, or some are left.
    """
    old, new = memoryview(base), memoryview(inserted)
    pieces = []
    taken = 0
    for offset, count in ops:
        if offset is None:
            pieces.append(new[taken : taken + count])
            taken += count
            continue
        if not 0 <= offset <= len(old) - count:
            raise ValueError(f"copy of {count} bytes at {offset}: the base has {len(old)}")
        pieces.append(old[offset : offset + count])
    if taken != len(new):
        raise ValueError(f"the operations insert {taken} bytes, {len(new)} are there")
    return b"".join(pieces)


def encode(base: bytes, target: bytes) -> Delta:
    """Describe *target* by what *base* has already. Never fails; bounded in time."""
    head = common_prefix(base, target)
    tail = common_suffix(base, target, head, head)
    plan = _Plan(target)
    plan.copy(0, 0, head)
    if head + tail < len(target):
        search = _Search(base, target, len(base) - tail, len(target) - tail)
        search.run(plan, head)
    plan.copy(len(base) - tail, len(target) - tail, tail)
    return plan.delta()


def common_prefix(old: bytes, new: bytes, i: int = 0, j: int = 0) -> int:
    """How many bytes ``old[i:]`` and ``new[j:]`` have in common at their start."""
    limit = min(len(old) - i, len(new) - j)
    done = 0
    while done < limit:
        size = min(_BLOCK, limit - done)
        a, b = old[i + done : i + done + size], new[j + done : j + done + size]
        if a != b:
            return done + _first_difference(a, b)
        done += size
    return limit


def common_suffix(old: bytes, new: bytes, i: int = 0, j: int = 0) -> int:
    """How many bytes ``old[i:]`` and ``new[j:]`` have in common at their end."""
    limit = min(len(old) - i, len(new) - j)
    done = 0
    while done < limit:
        size = min(_BLOCK, limit - done)
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


class _Plan:
    """Operations under construction; neighbours merge, and short copies become inserts."""

    def __init__(self, target: bytes) -> None:
        self.ops: List[Op] = []
        self._target = target
        self._pieces: List[bytes] = []

    def copy(self, offset: int, j: int, count: int) -> None:
        """``target[j:j+count]`` is ``base[offset:offset+count]``."""
        if count < _COPY_MIN:
            self.insert(j, j + count)
            return
        last = self.ops[-1] if self.ops else None
        if last is not None and last.offset is not None and last.offset + last.size == offset:
            self.ops[-1] = Op(last.offset, last.size + count)
        else:
            self.ops.append(Op(offset, count))

    def insert(self, j: int, end: int) -> None:
        """``target[j:end]`` is new."""
        if j == end:
            return
        self._pieces.append(self._target[j:end])
        if self.ops and self.ops[-1].offset is None:
            self.ops[-1] = Op(None, self.ops[-1].size + end - j)
        else:
            self.ops.append(Op(None, end - j))

    def delta(self) -> Delta:
        return Delta(self.ops, b"".join(self._pieces))


class _Search:
    """Goes through ``target[j:target_end]`` and looks for places where the base goes on."""

    def __init__(self, base: bytes, target: bytes, base_end: int, target_end: int) -> None:
        self._base = base
        self._target = target
        self._base_end = base_end
        self._target_end = target_end
        self._budget_bytes = 0

    def run(self, plan: _Plan, start: int) -> None:
        base, target = self._base, self._target
        i = j = start
        searched_bytes = self._base_end + self._target_end - 2 * start
        self._budget_bytes = min(_SCANS * searched_bytes + _BLOCK, _SCAN_BYTES_MAX)
        while j < self._target_end and len(plan.ops) < _OPS_MAX:
            found = self._resume(i, j)
            if found is None:
                break
            at_base, at_target = found
            missed = target[j:at_target]
            back = common_suffix(base[max(0, at_base - len(missed)) : at_base], missed)
            count = common_prefix(base, target, at_base, at_target)
            count = min(count, self._target_end - at_target)
            plan.insert(j, at_target - back)
            plan.copy(at_base - back, at_target - back, count + back)
            i, j = at_base + count, at_target + count
        plan.insert(j, self._target_end)

    def _resume(self, i: int, j: int) -> Optional[Tuple[int, int]]:
        """The nearest pair of positions at which base and target run together again."""
        rest = max(self._base_end - i, self._target_end - j)
        window = _WINDOW_BYTES
        while True:
            for distance in _DISTANCES:
                if self._budget_bytes <= 0:
                    return None
                if distance >= window:
                    break
                found = self._find(self._base, self._target, i, j + distance, window)
                if found >= 0:
                    return found, j + distance
                found = self._find(self._target, self._base, j, i + distance, window)
                if found >= 0:
                    return i + distance, found
            if window >= rest:
                return None
            window *= 16

    def _find(self, within: bytes, source: bytes, start: int, at: int, window: int) -> int:  # noqa: PLR0917 - one private place, two directions
        """Where the anchor at ``source[at]`` stands in ``within[start:start+window]``, or -1."""
        within_end = self._base_end if within is self._base else self._target_end
        source_end = self._base_end if source is self._base else self._target_end
        if at + _ANCHOR > source_end:
            return -1
        end = min(start + window, within_end)
        if end - start < _ANCHOR:
            return -1
        found = within.find(source[at : at + _ANCHOR], start, end)
        self._budget_bytes -= (found if found >= 0 else end) - start
        return found
