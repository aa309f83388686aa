# SPDX-License-Identifier: Apache-2.0
"""The bodies that the other side is known to hold, per origin and rollout. Pure, bounded in bytes.

Several bases stay valid at a time, because parallel subagents, title calls and retries share one
rollout. Nothing here locks: the client does.
"""

from collections import OrderedDict
from typing import List, NamedTuple, Tuple

from rollout_router.transport.sandbox.delta import Delta, common_ends, encode
from rollout_router.transport.sandbox.wire import EMPTY_SHA256

__all__ = ["Base", "Choice", "RecentBases", "closest"]

_PER_ROLLOUT = 4  # measured on recorded runs: more than four change nothing
_POOR = 4  # where more than this part of a body is inserted, another base may have it
_CHANCE_BYTES = 64  # what ends may have in common by chance
_LOOK = 32  # bytes at a place tell whether it may be the same in both
_SAMPLES = 8  # at most: looking for all of them reads
_SCANS = 16  # so many times the bytes of the body, but for the first one
_SAMPLE_BYTES = 24
_REACH_BYTES = 16_384  # beyond so many, and four times as many as the body has, none is looked for
_ROLLOUTS_MAX = 1_024  # a sandbox holds one; this bounds what a misuse can cost

Key = Tuple[str, str]


class Base(NamedTuple):
    """One body, by its digest."""

    sha: str
    body: bytes


_EMPTY = Base(EMPTY_SHA256, b"")


class RecentBases:
    """The last bases of each rollout; the rollout that was used longest ago goes first.

    Args:
        bytes_max: of all bodies together. A body that is larger alone is not remembered.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._rollouts: OrderedDict[Key, List[Base]] = OrderedDict()

    @property
    def bytes_held(self) -> int:
        """Of all bodies together; never above the bound."""
        return self._bytes

    def of(self, origin: str, rollout: str) -> List[Base]:
        """The bases of one rollout, the newest first."""
        key = (origin, rollout)
        if key not in self._rollouts:
            return []
        self._rollouts.move_to_end(key)
        return list(reversed(self._rollouts[key]))

    def add(self, origin: str, rollout: str, base: Base) -> None:
        """Remember a body that the other side said it holds."""
        if len(base.body) > self._bytes_max:
            return
        key = (origin, rollout)
        held = self._rollouts.setdefault(key, [])
        self._rollouts.move_to_end(key)
        for old in held:
            if old.sha == base.sha:
                held.remove(old)
                self._bytes -= len(old.body)
                break
        held.append(base)
        self._bytes += len(base.body)
        if len(held) > _PER_ROLLOUT:
            self._bytes -= len(held.pop(0).body)
        while self._bytes > self._bytes_max or len(self._rollouts) > _ROLLOUTS_MAX:
            self._drop_oldest()

    def forget(self, origin: str, rollout: str) -> None:
        """Drop the bases of one rollout."""
        for base in self._rollouts.pop((origin, rollout), []):
            self._bytes -= len(base.body)

    def forget_origin(self, origin: str) -> None:
        """Drop the bases of all rollouts of one origin."""
        for key in [key for key in self._rollouts if key[0] == origin]:
            self.forget(*key)

    def _drop_oldest(self) -> None:
        key = next(iter(self._rollouts))
        held = self._rollouts[key]
        self._bytes -= len(held.pop(0).body)
        if not held:
            del self._rollouts[key]


class Choice(NamedTuple):
    """A base, and what turns it into the body."""

    base: Base
    delta: Delta


def closest(bases: List[Base], body: bytes) -> Choice:
    """The base that has most of *body*, as a cheap look tells; the empty one where none is held.

    That which begins and ends most like the body is mostly right, a newer one where they do so
    nearly alike. It is not where beginnings tell nothing, because they hold the time, or all end
    alike, in the same tools. So where it leaves much to insert, the base that has most samples of
    that is tried, if any has. At most two deltas are made. A megabyte of a conversation takes some
    twice its sha256, one of which nothing is held 20 to 70 times, and of two letters alone 150.

    Args:
        bases: the newest first.
        body: what they shall build.
    """
    if not bases:
        return Choice(_EMPTY, encode(b"", body))
    first, ends = 0, common_ends(bases[0].body, body)
    for place, base in enumerate(bases[1:], 1):
        if _may_share_more(base.body, body, ends):
            others = common_ends(base.body, body)
            if sum(others) > sum(ends) + _CHANCE_BYTES:
                first, ends = place, others
    choice = Choice(bases[first], encode(bases[first].body, body, ends))
    lacking = choice.delta.inserted
    if _POOR * len(lacking) <= len(body):
        return choice
    reach = 4 * len(body) + _REACH_BYTES
    scanned = sum(min(len(base.body), reach) for base in bases)
    count = max(1, min(_SAMPLES, _SCANS * len(body) // (scanned + 1)))
    step = len(lacking) // count + 1
    samples = [lacking[at : at + _SAMPLE_BYTES] for at in range(0, len(lacking), step)]
    hits = [sum(base.body.find(sample, 0, reach) >= 0 for sample in samples) for base in bases]
    second = hits.index(max(hits))
    if second == first or not hits[second]:
        return choice
    other = Choice(bases[second], encode(bases[second].body, body))
    return min(choice, other, key=lambda one: len(one.delta.inserted))


def _may_share_more(base: bytes, body: bytes, ends: Tuple[int, int]) -> bool:
    """Whether *base* may have longer ends; looks at the bytes that those would have to hold."""
    head, tail = ends
    before, after = len(base) - tail - _CHANCE_BYTES, len(body) - tail - _CHANCE_BYTES
    at = max(0, head - _LOOK)
    if len(base) > head and base[at : head + 1] == body[at : head + 1]:
        return True
    if min(before, after) <= 0:
        return False
    return base[before - 1 : before + _LOOK] == body[after - 1 : after + _LOOK]
