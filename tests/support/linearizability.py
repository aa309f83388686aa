# SPDX-License-Identifier: Apache-2.0
"""Whether what many processes saw of one store can be told as one story (laws C1 to C5).

Pure. Calls overlap; a store is linearizable when each can be given one moment between its start and
its end so that, in the order of those moments, every answer is right. Calls are walked in the order
of time; a configuration is what the store may hold now, and which of the open calls have happened.
A call that was cut off may have happened or not. A call that changes nothing may as well happen as
soon as its answer is right, so only changes make the search branch.

Each rollout is a story of its own. A state is the highest epoch so far and the grant that stands.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

__all__ = ["FREE", "Call", "Grant", "State", "Unexplained", "first_unexplained"]

What = Literal["read", "use", "take", "take_over", "reap", "release", "force"]
_LOOKS: Final = frozenset({"read", "take", "take_over"})  # these tell what stood in their way
_NEEDS_DEATH: Final = frozenset({"take_over", "reap"})
_RAISES_EPOCH: Final = frozenset({"take", "take_over", "force"})
_GRANTS: Final = frozenset({"take", "take_over"})


class Grant(NamedTuple):
    """Who was given the rollout, and under which epoch."""

    epoch: int
    owner: str


class State(NamedTuple):
    """What one rollout's claim is between two calls."""

    highest: int  # of every epoch so far, fences too
    standing: Grant | None


FREE: Final = State(0, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call and what came of it.

    Attributes:
        by: the worker that called.
        names: the grant that the call is about: its own, or the one that it saw before.
        happened: it did what it says; of a ``use``, that the re-check passed.
        epoch: that it raised the store to; None: it was cut off and nobody ever saw which.
        found: what it says stood there, of those that tell.
        unreadable: it found neither a record nor none, for which there is no excuse (C5).
        cut: it never returned, so it may have happened or not, before ``returned_ns``.
    """

    what: What
    by: str
    rollout: str
    invoked_ns: int
    returned_ns: float
    names: Grant | None = None
    happened: bool = False
    epoch: int | None = None
    found: Grant | None = None
    unreadable: bool = False
    cut: bool = False


class Unexplained(NamedTuple):
    """The first call of a rollout that no order explains, and the states that it could have met."""

    call: Call
    states: frozenset[State]


Configuration = tuple[State, frozenset[int]]


def first_unexplained(calls: Iterable[Call], *, doomed_ns: Mapping[str, int]) -> Unexplained | None:
    """Look for a call that cannot be right.

    Args:
        calls: of a store that began empty, in any order.
        doomed_ns: when each worker that died was last known to be alive.
    """
    by_rollout = defaultdict(list)
    for call in calls:
        by_rollout[call.rollout].append(call)
    for story in by_rollout.values():
        if unexplained := _Story(story, doomed_ns).first_unexplained():
            return unexplained
    return None


class _Story:
    def __init__(self, calls: list[Call], doomed_ns: Mapping[str, int]) -> None:
        self.calls = calls
        self.doomed_ns = doomed_ns
        self.open: dict[int, Call] = {}

    def first_unexplained(self) -> Unexplained | None:
        now: set[Configuration] = {(FREE, frozenset())}
        for ends, number in self._moments():
            call = self.calls[number]
            if not ends:
                self.open[number] = call
                now = {self._settled(*configuration) for configuration in now}
                continue
            after = {reached for before in now for reached in self._reach(before, number)}
            if not after and not call.cut:
                return Unexplained(call, frozenset(state for state, _ in now))
            if call.cut:
                after |= now
            del self.open[number]
            now = {(state, done - {number}) for state, done in after}
        return None

    def _moments(self) -> list[tuple[bool, int]]:
        moments = [(call.invoked_ns, False, number) for number, call in enumerate(self.calls)]
        moments += [
            (call.returned_ns, True, number)  # type: ignore[misc]
            for number, call in enumerate(self.calls)
        ]
        return [(ends, number) for _, ends, number in sorted(moments)]

    def _reach(self, start: Configuration, number: int) -> Iterator[Configuration]:
        """Every configuration in which this call has happened, by way of other open calls."""
        waiting, seen = [start], {start}
        while waiting:
            state, done = waiting.pop()
            if number in done:
                yield state, done
                continue
            for other, call in self.open.items():
                if other not in done and (after := self._after(state, call)) is not None:
                    reached = self._settled(after, done | {other})
                    if reached not in seen:
                        seen.add(reached)
                        waiting.append(reached)

    def _settled(self, state: State, done: frozenset[int]) -> Configuration:
        """Let every open call happen that is right in this state and leaves it as it is."""
        return state, done.union(
            number
            for number, call in self.open.items()
            if number not in done and self._after(state, call) == state
        )

    def _after(self, state: State, call: Call) -> State | None:
        """The state after a call; None where it cannot have had this outcome."""
        stood = state.standing
        applies = stood is not None and stood == call.names
        if call.what == "take":
            applies = stood is None or stood.owner == call.by
        if call.unreadable or applies != call.happened:
            return None
        if not applies:
            return state if call.what not in _LOOKS or call.found == stood else None
        if call.what in _NEEDS_DEATH and not self._may_be_dead(stood, call):
            return None
        if call.what not in _RAISES_EPOCH:
            return state if call.what == "use" else State(state.highest, None)
        epoch = state.highest + 1 if call.epoch is None else call.epoch
        if epoch <= state.highest:
            return None
        return State(epoch, Grant(epoch, call.by) if call.what in _GRANTS else None)

    def _may_be_dead(self, stood: Grant | None, call: Call) -> bool:
        return (
            stood is not None
            and self.doomed_ns.get(stood.owner, call.returned_ns) < call.returned_ns
        )
