# SPDX-License-Identifier: Apache-2.0
"""The bodies that the other side is known to hold, per origin and rollout. Pure, bounded in bytes.

Several bases stay valid at a time, because parallel subagents, title calls and retries share one
rollout. Nothing here locks: the client does.
"""

from collections import OrderedDict
from typing import List, NamedTuple, Optional, Tuple

from rollout_router.transport.sandbox.delta import common_prefix

__all__ = ["Base", "RecentBases", "closest"]

_PER_ROLLOUT = 4  # measured on recorded runs: more than four change nothing
_ROLLOUTS_MAX = 1_024  # a sandbox holds one; this bounds what a misuse can cost

Key = Tuple[str, str]


class Base(NamedTuple):
    """One body, by its digest."""

    sha: str
    body: bytes


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


def closest(bases: List[Base], body: bytes) -> Optional[Base]:
    """The base that begins most like *body*; of equals the newest, and None where there is none."""
    best: Optional[Base] = None
    longest = -1
    for base in bases:
        shared = common_prefix(base.body, body)
        if shared > longest:
            best, longest = base, shared
    return best
