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

Synchronous, for one thread (the event loop's). It hashes nothing and trusts the digests given.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

__all__ = ["Bounds", "CallHandle", "History", "Key", "Statistics"]


class Key(NamedTuple):
    """What everything remembered hangs on (H5)."""

    rollout_id: str
    claim_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one worker remembers."""

    rollouts_max: int = 4096  # entries without a call in flight go first, least recently used
    bytes_max: int = 2 * 1024**3  # the sum of all bases; a body larger than this is not kept
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
    """A snapshot: counts, and bytes of bases."""

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
    bases: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # least recently used first
    pins: Counter[str] = field(default_factory=Counter)


class CallHandle:
    """One call in flight: keeps its entry and the bases it uses from eviction until it ends."""

    __slots__ = ("_ended", "_entry", "_history", "_pinned", "began_at")

    def __init__(self, history: "History", entry: _Entry) -> None:
        self._history = history
        self._entry = entry
        self._pinned: list[str] = []
        self._ended = False
        self.began_at = history.clock()

    @property
    def key(self) -> Key:
        """The (rollout, claim epoch) that this call runs under."""
        return self._entry.key

    def base(self, digest: str) -> bytes | None:
        """The bytes named *digest*, pinned until the call ends; None where they are not held."""
        body = self._entry.bases.get(digest)
        if body is not None:
            self._entry.bases.move_to_end(digest)
            self._pin(digest)
        return body

    def keep(self, digest: str, body: bytes) -> bool:
        """Hold *body* as a base named *digest*. False where the bounds leave no room for it.

        Entries evicted to make room are named by the next :meth:`History.evict_overdue`.
        """
        kept = self._history._keep(self._entry, digest, body)  # noqa: SLF001 - one module, two faces
        if kept:
            self._pin(digest)
        return kept

    def end(self) -> None:
        """The call is over. Touches only the entry that it began under (H5); idempotent."""
        if self._ended:
            return
        self._ended = True
        self._history.calls.discard(self)
        for digest in self._pinned:
            self._entry.pins[digest] -= 1
            if not self._entry.pins[digest]:
                del self._entry.pins[digest]
        self._entry.in_flight -= 1
        self._history._used(self._entry)  # noqa: SLF001 - one module, two faces
        self._history.on_calls()

    def _pin(self, digest: str) -> None:
        self._entry.pins[digest] += 1
        self._pinned.append(digest)


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
            self._bytes -= sum(map(len, entry.bases.values()))
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

    def _keep(self, entry: _Entry, digest: str, body: bytes) -> bool:
        if self._entries.get(entry.key) is not entry:
            return False  # dropped while the call ran: what it brings is nobody's base (H5)
        if digest in entry.bases:
            entry.bases.move_to_end(digest)
            return True
        if not self._make_room(len(body), entry):
            return False
        entry.bases[digest] = body
        self._bytes += len(body)
        return True

    def _make_room(self, size_bytes: int, entry: _Entry) -> bool:
        """Free what the bounds ask for, cheapest loss first; False where too much is in use."""
        if not self._could_fit(size_bytes, entry):
            return False
        while len(entry.bases) >= self.bounds.bases_per_rollout_max:
            if not self._drop_one_base(entry, spare=0):
                return False
        while self._bytes + size_bytes > self.bounds.bytes_max:
            if not (
                self._evict_one_idle()
                or any(self._drop_one_base(other, spare=1) for other in self._entries.values())
                or self._drop_one_base(entry, spare=0)
            ):
                return False
        return True

    def _could_fit(self, size_bytes: int, entry: _Entry) -> bool:
        """Whether giving up all that may go makes room; asked first, so that no loss is vain."""
        needed = self._bytes + size_bytes - self.bounds.bytes_max
        if size_bytes > self.bounds.bytes_max or self.bounds.bases_per_rollout_max == 0:
            return False
        if needed <= 0:
            return True
        freed = 0
        for other in self._entries.values():
            if not other.in_flight:
                freed += sum(map(len, other.bases.values()))
            else:
                spare = 0 if other is entry else 1
                loose = list(other.bases)[: len(other.bases) - spare]
                freed += sum(len(other.bases[d]) for d in loose if not other.pins[d])
            if freed >= needed:
                return True
        return False

    def _drop_one_base(self, entry: _Entry, *, spare: int) -> bool:
        """Drop the least recently used base that no call uses, leaving *spare* of the newest."""
        for digest in list(entry.bases)[: len(entry.bases) - spare]:
            if not entry.pins[digest]:
                self._bytes -= len(entry.bases.pop(digest))
                return True
        return False

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
