# SPDX-License-Identifier: Apache-2.0
"""The bases of one worker, bounded in number, bytes and idle time (laws H2-H5, C6).

An *entry* is what the worker remembers under one (rollout, claim epoch); it may be empty. An entry
exists exactly as long as the worker holds that claim, so whoever evicts an entry must release its
claim: :meth:`History.evict_overdue` and :meth:`History.keep` name what they evicted.

H2  a base is content, named by the sha256 of its bytes; there is no cursor to advance.
H3  bytes, entries and idle time are bounded; a base that a call in flight uses is never evicted,
    nor is an entry with a call in flight.
H4  several bases stay per entry, so a failed or dropped call leaves the base that its retry needs.
H5  everything hangs on (rollout, claim epoch); the end of a call touches only its own entry.

Bases of one conversation share their bytes (:mod:`rollout_router.history.bases`); bounds count what
is really held.

Synchronous, for one thread (the event loop's). It hashes nothing and trusts the digests given.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, TypeVar

from rollout_router.history.bases import NOTHING, Base, Bases, Incoming
from rollout_router.history.difference import Operation

__all__ = ["Bounds", "CallHandle", "History", "Key", "Origin", "Statistics"]

_Result = TypeVar("_Result")


class Key(NamedTuple):
    """What everything remembered hangs on (H5)."""

    rollout_id: str
    claim_epoch: int


class Origin(NamedTuple):
    """How a body was built: from the base of which digest, and by which operations."""

    base: str
    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one worker remembers."""

    rollouts_max: int = 4096  # entries without a call in flight go first, least recently used
    bytes_max: int = 2 * 1024**3  # what all bases hold; a body larger than this is not kept
    idle_s_max: float = 3600.0  # an entry without a call for this long gives its claim back
    bases_per_rollout_max: int = 8  # parallel subagents, titles and retries each need one

    def __post_init__(self) -> None:
        for name in ("rollouts_max", "bytes_max", "bases_per_rollout_max"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not (self.idle_s_max > 0 and math.isfinite(self.idle_s_max)):
            raise ValueError(f"idle_s_max must be positive and finite, got {self.idle_s_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot: counts, and the bytes that the bases hold."""

    rollouts: int
    in_flight: int
    bases: int
    bytes: int
    evicted: int


@dataclass(slots=True, eq=False)
class _Entry:
    key: Key
    used_at: float
    in_flight: int = 0
    bases: Bases = field(default_factory=Bases)


class CallHandle:
    """One call in flight: keeps its entry and the bases it uses from eviction until it ends."""

    __slots__ = ("_ended", "_entry", "_history", "_pinned", "began_at")

    def __init__(self, history: "History", entry: _Entry) -> None:
        self._history = history
        self._entry = entry
        self._pinned: list[Base] = []
        self._ended = False
        self.began_at = history.clock()

    @property
    def key(self) -> Key:
        """The (rollout, claim epoch) that this call runs under."""
        return self._entry.key

    def base(self, digest: str) -> bytes | None:
        """The bytes named *digest*, pinned until the call ends; None where they are not held.

        Those of an older base are built for this call, and are not counted.
        """
        base = self._entry.bases.find(bytes.fromhex(digest))
        if base is None:
            return None
        self._pin(base)
        return base.read()

    def newest(self) -> tuple[str, bytes] | None:
        """The most recently used base that is whole, with its digest; it is not pinned."""
        base = self._entry.bases.newest()
        return None if base is None else (base.name.hex(), base.held)

    def keep(self, digest: str, body: bytes, origin: Origin | None = None) -> bool:
        """Hold *body* as a base named *digest*. False where the bounds leave no room for it.

        Entries evicted to make room are named by the next :meth:`History.evict_overdue`.

        Args:
            digest: of *body*, in hex.
            body: held as it is, not copied.
            origin: how it was built from a base, where that is known: they share their bytes then.
        """
        name = bytes.fromhex(digest)
        base = self._history._keep(self._entry, name, body, origin)  # noqa: SLF001 - one module, two faces
        if base is not None:
            self._pin(base)
        return base is not None

    def end(self) -> None:
        """The call is over. Touches only the entry that it began under (H5); idempotent."""
        if self._ended:
            return
        self._ended = True
        self._history.calls.discard(self)
        for base in self._pinned:
            base.pins -= 1
        self._pinned.clear()
        self._entry.in_flight -= 1
        self._history._used(self._entry)  # noqa: SLF001 - one module, two faces
        self._history.on_calls()

    def _pin(self, base: Base) -> None:
        base.pins += 1
        self._pinned.append(base)


class History:
    """The entries of one worker.

    Args:
        bounds: see :class:`Bounds`.
        clock: monotonic seconds.
        on_calls: called when a call was counted in or has ended.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        clock: Callable[[], float],
        on_calls: Callable[[], None] = lambda: None,
    ) -> None:
        self.bounds = bounds
        self.clock = clock
        self.on_calls = on_calls
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._evicted_count = 0
        self._evicted: list[Key] = []
        self.calls: set[CallHandle] = set()  # in flight, those of dropped entries too

    def open(self, key: Key) -> None:
        """Begin an empty entry for a fresh grant (H5).

        Raises:
            ValueError: the entry exists; a grant has an epoch of its own. Nothing changed.
        """
        if key in self._entries:
            raise ValueError(f"there is already an entry for {key}")
        self._entries[key] = _Entry(key=key, used_at=self.clock())

    def begin(self, key: Key) -> CallHandle:
        """Count a call in; the caller must :meth:`CallHandle.end` it.

        Raises:
            KeyError: no such entry.
        """
        entry = self._entries[key]
        entry.in_flight += 1
        self._used(entry)
        call = CallHandle(self, entry)
        self.calls.add(call)
        self.on_calls()
        return call

    def drop(self, key: Key) -> None:
        """Forget an entry at once, calls in flight or not: its claim is no longer ours.

        Calls that began under it still end without touching a later entry (H5).
        """
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.bases.held_bytes
            entry.bases.clear()

    def is_idle(self, key: Key) -> bool:
        """True where the entry exists and no call is in flight under it."""
        entry = self._entries.get(key)
        return entry is not None and entry.in_flight == 0

    def evict_overdue(self) -> list[Key]:
        """Evict idle entries that are over a bound, and name all that were evicted since last time.

        The caller releases their claims: eviction comes before release (H3).
        """
        while len(self._entries) > self.bounds.rollouts_max and self._evict_one_idle():
            pass
        horizon = self.clock() - self.bounds.idle_s_max
        for entry in self._used_before(horizon):
            self._evict(entry)
        evicted, self._evicted = self._evicted, []
        return evicted

    def statistics(self) -> Statistics:
        """What is held now."""
        entries = self._entries.values()
        return Statistics(
            rollouts=len(self._entries),
            in_flight=sum(e.in_flight for e in entries),
            bases=sum(len(e.bases) for e in entries),
            bytes=self._bytes,
            evicted=self._evicted_count,
        )

    def _used(self, entry: _Entry) -> None:
        entry.used_at = self.clock()
        if self._entries.get(entry.key) is entry:
            self._entries.move_to_end(entry.key)

    def _keep(self, entry: _Entry, name: bytes, body: bytes, origin: Origin | None) -> Base | None:
        if self._entries.get(entry.key) is not entry:
            return None  # dropped while the call ran: what it brings is nobody's base (H5)
        if (base := entry.bases.find(name)) is not None:
            return base
        if origin is None:
            incoming = Incoming(body, {})
        else:
            incoming = entry.bases.incoming(body, bytes.fromhex(origin.base), origin.operations)
        if not self._could_fit(incoming, entry):
            return None
        self._make_room(incoming, entry)
        return self._counted(entry, lambda: entry.bases.add(name, incoming))

    def _counted(self, entry: _Entry, change: Callable[[], _Result]) -> _Result:
        before_bytes = entry.bases.held_bytes
        result = change()
        self._bytes += entry.bases.held_bytes - before_bytes
        return result

    def _make_room(self, incoming: Incoming, entry: _Entry) -> None:
        """Free what the bounds ask for; the caller knows that there is enough."""
        while len(entry.bases) >= self.bounds.bases_per_rollout_max:
            self._counted(entry, entry.bases.drop_oldest)
        losses = self._losses(incoming, entry)
        while self._bytes_above(incoming, entry) > 0:
            next(losses)

    def _losses(self, incoming: Incoming, entry: _Entry) -> Iterator[None]:
        """Gives something up each time, the cheapest loss first."""
        while self._evict_one_idle():
            yield
        for other in self._entries.values():
            while other is not entry and self._free_oldest(other, spare=1):
                yield
        while self._free_oldest(entry, incoming, spare=0):
            yield

    def _could_fit(self, incoming: Incoming, entry: _Entry) -> bool:
        """Whether giving up all that may go makes room; asked first, so that no loss is vain."""
        size_bytes, most = len(incoming.body), self.bounds.bases_per_rollout_max
        if size_bytes > self.bounds.bytes_max or most == 0:
            return False
        if len(entry.bases) >= most and not entry.bases.any_loose:
            return False
        needed = self._bytes_above(incoming, entry)
        if needed <= 0:
            return True
        needed -= entry.bases.bytes_with(incoming) - entry.bases.bytes_least(incoming, spare=0)
        for other in self._entries.values():
            if needed <= 0:
                break
            if not other.in_flight:
                needed -= other.bases.held_bytes
            elif other is not entry:
                needed -= other.bases.held_bytes - other.bases.bytes_least(spare=1)
        return needed <= 0

    def _bytes_above(self, incoming: Incoming, entry: _Entry) -> int:
        """How far *incoming* would lead beyond the bound; above 0 where it would."""
        above = self._bytes + len(incoming.body) - self.bounds.bytes_max
        if above <= 0:  # and no sharing makes it more
            return above
        return (
            above - len(incoming.body) - entry.bases.held_bytes + entry.bases.bytes_with(incoming)
        )

    def _free_oldest(self, entry: _Entry, incoming: Incoming = NOTHING, *, spare: int) -> bool:
        return self._counted(entry, lambda: entry.bases.free_oldest(incoming, spare=spare))

    def _used_before(self, horizon: float) -> list[_Entry]:
        """The idle entries last used before *horizon*; entries stand in the order of their use."""
        old = takewhile(lambda entry: entry.used_at < horizon, self._entries.values())
        return [entry for entry in old if not entry.in_flight]

    def _evict_one_idle(self) -> bool:
        for entry in self._entries.values():
            if not entry.in_flight:
                self._evict(entry)
                return True
        return False

    def _evict(self, entry: _Entry) -> None:
        self.drop(entry.key)
        self._evicted.append(entry.key)
        self._evicted_count += 1
