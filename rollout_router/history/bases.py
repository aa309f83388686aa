# SPDX-License-Identifier: Apache-2.0
"""The bases of one rollout: those of one conversation share their bytes (laws H2-H4).

The newest base of a conversation is whole: the very object that was given. The older ones are
differences against it, never against one another, so that any of them is read with one join. When a
body comes that was built from one of them, all are told anew by that body, if they then hold less.

H2  what is read under a digest is, byte for byte, what was kept under it.
H3  :attr:`Bases.held_bytes` is what is really held: whole bodies, rests and pieces. Dropping a base
    never makes it more, and leaves the others readable: the whole body of a dropped base stays,
    without a name, while two or more need it; one that needs it alone becomes whole.
H4  a pinned base is not dropped.

It hashes nothing, and trusts the digests and the operations given.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rollout_router.history.difference import Difference, Operation, inverted, runs_of, through

__all__ = ["NOTHING", "Base", "Bases", "Incoming"]

_PIECES_MAX: Final = 4_096  # of all that are told anew for one body


@dataclass(slots=True, eq=False)
class Base:
    """A named body, whole or told by a whole one."""

    name: bytes  # the sha256 of the body
    held: bytes  # the body, or its difference against that of *told_by*
    told_by: "Base | None" = None  # a whole one, itself named or not
    pins: int = 0  # above 0 it is not dropped

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return self.held.length if isinstance(self.held, Difference) else len(self.held)

    @property
    def pieces(self) -> int:
        """In how many pieces the body is held."""
        return self.held.pieces if isinstance(self.held, Difference) else 1

    def read(self) -> bytes:
        """The body: the object that is held, or one built for this reader."""
        if self.told_by is not None and isinstance(self.held, Difference):
            return self.held.build(self.told_by.held)
        return self.held


@dataclass(frozen=True, slots=True)
class Incoming:
    """A body, and what the bases of its conversation become if they are told by it."""

    body: bytes
    told: Mapping[Base, Difference]


NOTHING: Final = Incoming(b"", {})


@dataclass(slots=True, eq=False)
class Bases:
    """The bases of one rollout; a few, so that they are found by looking at each."""

    held_bytes: int = 0
    """What is held now."""

    _bases: list[Base] = field(default_factory=list)  # least recently used first

    def __len__(self) -> int:
        return len(self._bases)

    def find(self, name: bytes) -> Base | None:
        """The base of that name, from now on the most recently used one."""
        for place, base in enumerate(self._bases):
            if base.name == name:
                self._bases.append(self._bases.pop(place))
                return base
        return None

    def newest(self) -> Base | None:
        """The most recently used of the bases that are whole."""
        return next((base for base in reversed(self._bases) if base.told_by is None), None)

    @property
    def any_loose(self) -> bool:
        """Whether there is a base that is not pinned."""
        return not all(base.pins for base in self._bases)

    def clear(self) -> None:
        """Forget all, pinned or not; whoever still has a base of them has an empty one."""
        for base in self._bases:
            base.held, base.told_by = b"", None
        self._bases.clear()
        self.held_bytes = 0

    def incoming(self, body: bytes, origin: bytes, operations: Sequence[Operation]) -> Incoming:
        """What :meth:`add` takes. Nothing changes yet.

        Nothing is shared where the base has less than half of its bytes in *body*, or where telling
        its conversation anew could take more than 4,096 pieces.

        Args:
            body: not held yet.
            origin: the name of the base that it was built from.
            operations: that built it.
        """
        base = next((base for base in self._bases if base.name == origin), None)
        direct = [] if base is None else runs_of(operations)
        if base is None or 2 * sum(run.size for run in direct) < base.length:
            return Incoming(body, {})
        whole, runs = base, direct
        if base.told_by is not None and isinstance(base.held, Difference):
            whole, runs = base.told_by, through(inverted(base.held.runs()), direct)
        family = [one for one in self._bases if whole in (one, one.told_by)]
        if sum(2 * len(runs) + one.pieces for one in family) > _PIECES_MAX:
            return Incoming(body, {})
        told: dict[Base, Difference] = {}
        for one in family:
            if one is base:
                told[one] = Difference.of(base.read(), direct)
            elif isinstance(one.held, Difference):
                told[one] = one.held.moved(whole.held, runs)
            else:
                told[one] = Difference.of(one.held, runs)
        return Incoming(body, told)

    def add(self, name: bytes, incoming: Incoming) -> Base:
        """Hold a body under a name that is not held yet.

        Bases that were dropped since :meth:`incoming` told of it do not come back.
        """
        whole = Base(name, incoming.body)
        self.held_bytes = self.bytes_with(incoming)
        told = [base for base in self._bases if base in incoming.told]
        if _told_bytes(told, incoming) < _bytes_of(told):
            for base in told:
                base.held, base.told_by = incoming.told[base], whole
        self._bases.append(whole)
        return whole

    def bytes_with(self, incoming: Incoming) -> int:
        """What would be held once *incoming* was added."""
        return _bytes_with(incoming, self._bases)

    def bytes_least(self, incoming: Incoming = NOTHING, *, spare: int) -> int:
        """The same, once all had gone that may, but for the *spare* most recently used ones."""
        loose = self._loose(spare)
        return _bytes_with(incoming, [base for base in self._bases if base not in loose])

    def drop_oldest(self) -> None:
        """Drop the least recently used base that is not pinned, whatever that frees."""
        for base in self._loose(0)[:1]:
            self._drop(base)

    def free_oldest(self, incoming: Incoming = NOTHING, *, spare: int) -> bool:
        """Drop the least recently used loose base without which less is held, if there is one.

        Repeated until it says no, it leads to :meth:`bytes_least`.
        """
        before_bytes = self.bytes_with(incoming)
        for base in self._loose(spare):
            others = [other for other in self._bases if other is not base]
            if _bytes_with(incoming, others) < before_bytes:
                self._drop(base)
                return True
        return False

    def _loose(self, spare: int) -> list[Base]:
        return [base for base in self._bases[: max(len(self) - spare, 0)] if not base.pins]

    def _drop(self, base: Base) -> None:
        self._bases.remove(base)
        whole = base.told_by or base
        left = [other for other in self._bases if other.told_by is whole]
        if len(left) == 1 and whole not in self._bases:
            left[0].held, left[0].told_by = left[0].read(), None
        self.held_bytes = _bytes_of(self._bases)


def _bytes_with(incoming: Incoming, bases: Iterable[Base]) -> int:
    told: list[Base] = []
    rest: list[Base] = []
    for base in bases:
        (told if base in incoming.told else rest).append(base)
    told_bytes = min(_told_bytes(told, incoming), _bytes_of(told))
    return len(incoming.body) + told_bytes + _bytes_of(rest)


def _told_bytes(bases: Iterable[Base], incoming: Incoming) -> int:
    return sum(len(incoming.told[base]) for base in bases)


def _bytes_of(bases: Collection[Base]) -> int:
    """What these hold if there are no others; one that is alone on a nameless body is whole."""
    held_bytes = sum(len(base.held) for base in bases)
    named = set(bases)
    nameless: dict[Base, list[Base]] = {}
    for base in bases:
        if base.told_by is not None and base.told_by not in named:
            nameless.setdefault(base.told_by, []).append(base)
    for whole, told in nameless.items():
        alone = told[0].length - len(told[0].held)
        held_bytes += alone if len(told) == 1 else len(whole.held)
    return held_bytes
