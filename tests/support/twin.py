# SPDX-License-Identifier: Apache-2.0
"""What a claim store is, without files, locks and processes: the twin of the model's tests.

It answers as the port does: a record, a truth, an epoch, what was granted, what stood in the way,
or the name of a refusal. Who is alive, what cannot be read and which stripe is damaged it is told.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rollout_router.claims import stripe_of
from rollout_router.claims.repairs import UNRECORDED_GENERATIONS

__all__ = ["MISUSE", "REFUSED", "UNAVAILABLE", "UNREADABLE", "Record", "Twin"]

UNREADABLE: Final = "unreadable"
UNAVAILABLE: Final = "unavailable"
REFUSED: Final = "refused"
MISUSE: Final = "misuse"


@dataclass(frozen=True)
class Record:
    """What the twin keeps of a claim."""

    kind: str
    epoch: int
    state: str
    owner: str


@dataclass
class Twin:
    """What a store is, without files, locks and processes."""

    claims: dict[str, Record] = field(default_factory=dict)
    spoilt: set[str] = field(default_factory=set)  # rollouts whose record cannot be read
    life: dict[str, str] = field(default_factory=dict)  # nonce: alive, dead or unknown
    highest: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # of a stripe
    synced: dict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )  # what power loss spares
    damaged: set[str] = field(default_factory=set)  # stripes whose epoch file cannot be read
    generation: int = 1

    def read(self, rollout: str) -> Any:
        return UNREADABLE if rollout in self.spoilt else self.claims.get(rollout)

    def take(self, rollout: str, owner: str, kind: str) -> Any:
        stands = self.read(rollout)
        if stands == UNREADABLE:
            return UNREADABLE
        if stands and (stands.state == "lost" or stands.owner != owner):
            return "moved", stands
        return self._grant(rollout, owner, stands.kind if stands else kind)

    def take_over(self, rollout: str, seen: Record, owner: str) -> Any:
        if seen.kind == "session" or seen.state == "lost":
            return MISUSE
        return self._change(rollout, seen, lambda: self._grant(rollout, owner, seen.kind))

    def release(self, rollout: str, seen: Record) -> Any:
        return self._change(rollout, seen, lambda: self.remove(rollout))

    def lose(self, rollout: str, seen: Record) -> Any:
        if seen.kind != "session":
            return MISUSE
        return self._change(rollout, seen, lambda: self._bury(rollout, seen.epoch))

    def reap(self, rollout: str, seen: Record) -> Any:
        if seen.state == "lost":
            return MISUSE
        return self.lose(rollout, seen) if seen.kind == "session" else self.release(rollout, seen)

    def force(self, rollout: str, expect: int | None) -> Any:
        stands = self.claims.get(rollout)
        named = None if rollout in self.spoilt or stands is None else stands.epoch
        if expect != named or (stands is None and rollout not in self.spoilt):
            return REFUSED
        epoch = self._raise(rollout)
        if epoch == UNAVAILABLE:
            return UNAVAILABLE
        if stands and stands.kind == "session" and rollout not in self.spoilt:
            self._bury(rollout, epoch)
        else:
            self.remove(rollout)
        return epoch

    def sweep(self, *, old: bool) -> None:
        """Everything of the dead goes, and their owner files if everything could be read."""
        for rollout, record in list(self.claims.items()):
            if rollout in self.spoilt:
                continue
            if record.state == "lost":
                if old:
                    self.remove(rollout)
            elif self.life[record.owner] == "dead":
                self.reap(rollout, record)
        if not self.spoilt:
            self.life = {n: "unknown" if v == "dead" else v for n, v in self.life.items()}

    def repair(self) -> None:
        if self.damaged:
            self.generation += 1 + UNRECORDED_GENERATIONS
        for stripe in self.damaged:
            self.highest[stripe] = self.synced[stripe] = self.generation << 32
        self.damaged.clear()

    def reboot(self, *, power_lost: bool) -> None:
        self.generation += 1
        self.life = {n: "dead" if v == "alive" else v for n, v in self.life.items()}
        if power_lost:
            self.highest = self.synced.copy()
            self.damaged.clear()

    def _change(self, rollout: str, seen: Record, change: Callable[[], Any]) -> Any:
        stands = self.read(rollout)
        if stands == UNREADABLE:
            return UNREADABLE
        return change() if stands == seen else False

    def _grant(self, rollout: str, owner: str, kind: str) -> Any:
        epoch = self._raise(rollout)
        if epoch == UNAVAILABLE:
            return UNAVAILABLE
        self.claims[rollout] = Record(kind=kind, epoch=epoch, state="owned", owner=owner)
        return "granted", self.claims[rollout]

    def _raise(self, rollout: str) -> Any:
        stripe = stripe_of(rollout)
        if stripe in self.damaged:
            return UNAVAILABLE
        stands = self.claims.get(rollout)
        standing = stands.epoch if stands and rollout not in self.spoilt else 0
        self.highest[stripe] = max(self.highest[stripe], self.generation << 32, standing) + 1
        return self.highest[stripe]

    def remove(self, rollout: str) -> bool:
        self.claims.pop(rollout, None)
        self.spoilt.discard(rollout)
        return True

    def _bury(self, rollout: str, epoch: int) -> bool:
        self.claims[rollout] = replace(self.claims[rollout], state="lost", epoch=epoch)
        return True
