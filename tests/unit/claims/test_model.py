# SPDX-License-Identifier: Apache-2.0
"""The real store beside a twin in memory, in any order of events (C1, C2, C3, C5).

Both are asked the same and must answer the same; after each step all that can be read is compared.
The twin moves no claim away from an owner that is not dead, so neither does the store.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from support.twin import MISUSE, REFUSED, UNAVAILABLE, UNREADABLE, Record, Twin

from rollout_router.claims import (
    Claim,
    ClaimUnreadable,
    FileClaimStore,
    ForceRefused,
    Grant,
    Host,
    LifeLock,
    Moved,
    ProofOfDeath,
    StoreUnavailable,
    Unreadable,
    new_nonce,
    repair,
    stripe_of,
    sweep,
)
from rollout_router.claims.epochs import encode_highest

KINDS: Final[dict[str, Any]] = {"r2": "rollout", "r7": "session", "r6": "rollout"}
ROLLOUTS = st.sampled_from(sorted(KINDS))  # r2 and r7 share a stripe
SEATS = st.integers(0, 2)  # each has a worker; where one died, the next starts when it is needed
LAST = st.integers(1, 6)  # which of the last grants
STRIPES: Final = sorted({stripe_of(rollout) for rollout in KINDS})
MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory in it
AGE_MAX = timedelta(days=1)

ANSWERS: Final[dict[type[Exception], str]] = {
    ClaimUnreadable: UNREADABLE,
    StoreUnavailable: UNAVAILABLE,
    ForceRefused: REFUSED,
    ValueError: MISUSE,
}


def told(ask: Callable[[], Any]) -> Any:
    """What the store answers, in the twin's words."""
    try:
        answer = ask()
    except tuple(ANSWERS) as error:
        return ANSWERS[type(error)]
    if isinstance(answer, Claim):
        return record(answer)
    if isinstance(answer, Grant):
        return "granted", record(answer.claim)
    if isinstance(answer, Moved):
        return "moved", answer.current and record(answer.current)
    return answer


def record(claim: Claim) -> Record:
    return Record(
        kind=claim.kind, epoch=claim.claim_epoch, state=claim.state, owner=claim.owner.nonce
    )


class Claims(RuleBasedStateMachine):
    """Workers come and go, operators force, clean and repair, disks corrupt, hosts boot."""

    @initialize()
    def make(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.host = Host.here()
        self.boots = 0
        self.twin = Twin()
        self.seats: dict[int, LifeLock] = {}
        self.given: dict[tuple[str, int], str] = {}  # who was ever granted what
        self.highest = dict.fromkeys(KINDS, 0)
        self.recent: list[Grant] = []  # of the grants, the last twelve
        self.kept: dict[str, bytes] = {}  # what spoilt files held before
        self.open()
        self.serve([(0, "r2"), (1, "r7"), (2, "r6")])

    def teardown(self) -> None:
        for lock in self.seats.values():
            lock.close()
        shutil.rmtree(self.root)

    def open(self) -> None:
        self.store = FileClaimStore.open(self.root / "state", service="model", host=self.host)
        self.reader = FileClaimStore.inspect(self.root / "state", host=self.host)

    # Workers.

    def worker(self, seat: int) -> LifeLock:
        if seat not in self.seats:
            nonce = new_nonce()
            self.seats[seat] = LifeLock.acquire(
                self.store, nonce=nonce, socket=f"/run/{nonce}.sock"
            )
            self.twin.life[nonce] = "alive"
        return self.seats[seat]

    @rule(seat=SEATS)
    def die(self, seat: int) -> None:
        if worker := self.seats.pop(seat, None):
            worker.close()
            if self.twin.life[worker.owner.nonce] == "alive":
                self.twin.life[worker.owner.nonce] = "dead"

    @rule(seat=SEATS)
    def leave(self, seat: int) -> None:
        owner = self.worker(seat).owner
        for grant in self.recent:
            if grant.claim.owner == owner:
                (self.lose_it if grant.claim.kind == "session" else self.release_it)(grant)
        self.die(seat)

    @rule(seat=SEATS)
    def clean_the_owner_file_away(self, seat: int) -> None:
        nonce = self.worker(seat).owner.nonce
        (self.root / "state/owners" / nonce).unlink(missing_ok=True)
        self.twin.life[nonce] = "unknown"

    @rule(power_lost=st.booleans())
    def reboot(self, *, power_lost: bool) -> None:
        """What was not synced may be lost; claims too, by the rules that spoil and delete."""
        for seat in list(self.seats):
            self.die(seat)
        self.boots += 1
        self.host = replace(self.host, boot_id=f"boot-{self.boots}")
        if power_lost:
            for stripe in STRIPES:
                synced = self.twin.synced[stripe]
                (self.root / "state/epochs" / stripe).write_bytes(encode_highest(synced))
        self.open()
        self.twin.reboot(power_lost=power_lost)

    # Claims.

    @rule(seat=SEATS, rollout=ROLLOUTS)
    def take(self, seat: int, rollout: str) -> None:
        owner = self.worker(seat).owner
        expected = self.twin.take(rollout, owner.nonce, KINDS[rollout])
        self.granted(expected, lambda: self.store.take(rollout, owner, kind=KINDS[rollout]))

    @rule(seat=SEATS, rollout=ROLLOUTS)
    def take_over(self, seat: int, rollout: str) -> None:
        owner = self.worker(seat).owner
        seen, proof = self.look(rollout)
        if seen and proof:
            expected = self.twin.take_over(rollout, record(seen), owner.nonce)
            self.granted(expected, lambda: self.store.take_over(seen, owner, proof))

    @rule(requests=st.lists(st.tuples(SEATS, ROLLOUTS), min_size=2, max_size=6))
    def serve(self, requests: list[tuple[int, str]]) -> None:
        """What workers do all day: they take what is free and what the dead had."""
        for seat, rollout in requests:
            self.take_over(seat, rollout)
            self.take(seat, rollout)

    @rule(last=LAST)
    def release(self, last: int) -> None:
        for grant in self.recent[-last:][:1]:
            self.release_it(grant)

    @rule(last=LAST)
    def lose(self, last: int) -> None:
        for grant in self.recent[-last:][:1]:
            self.lose_it(grant)

    @rule(rollout=ROLLOUTS)
    def reap(self, rollout: str) -> None:
        seen, proof = self.look(rollout)
        if seen and proof:
            expected = self.twin.reap(rollout, record(seen))
            assert told(lambda: self.store.reap(seen, proof)) == expected

    @rule(old=st.booleans())
    def sweep(self, *, old: bool) -> None:
        now = datetime.now(UTC) + (2 * AGE_MAX if old else timedelta())
        sweep(self.store, now=now, tombstone_age_max=AGE_MAX)
        self.twin.sweep(old=old)

    @rule(rollout=ROLLOUTS)
    def forget(self, rollout: str) -> None:
        stands = self.twin.read(rollout)
        if isinstance(stands, Record) and stands.state == "lost":
            tombstone = self.reader.read(rollout)
            assert tombstone
            assert self.store.forget(tombstone) == self.twin.release(rollout, stands)

    @rule(rollout=ROLLOUTS, off_by=st.sampled_from([0, 0, 0, 1, None]))
    def force(self, rollout: str, off_by: int | None) -> None:
        stands = self.twin.read(rollout)
        named = off_by is not None and isinstance(stands, Record)
        expect = stands.epoch + off_by if named else None
        expected = self.twin.force(rollout, expect)
        fenced = told(lambda: self.store.force(rollout, expect_epoch=expect, reason="model"))
        assert fenced == expected
        if isinstance(fenced, int):
            self.rise(rollout, fenced)

    # Hands and disks.

    @rule(rollout=ROLLOUTS)
    def delete(self, rollout: str) -> None:
        Path(self.store.path_of(rollout)).unlink(missing_ok=True)
        self.twin.remove(rollout)

    @rule(rollout=ROLLOUTS, other=ROLLOUTS, how=st.sampled_from(["cut", "flip", "copy"]))
    def spoil(self, rollout: str, other: str, how: str) -> None:
        stands = [name for name in (rollout, other) if isinstance(self.twin.read(name), Record)]
        if rollout not in stands:
            return
        held = self.kept[rollout] = Path(self.store.path_of(rollout)).read_bytes()
        if how == "copy" and other in stands and other != rollout:
            spoilt = Path(self.store.path_of(other)).read_bytes()
        elif how == "flip":
            at = len(other) + len(held) // 3
            spoilt = held[:at] + bytes([held[at] ^ 1]) + held[at + 1 :]
        else:
            spoilt = held[: len(held) // 4]
        self.put(rollout, spoilt)
        self.twin.spoilt.add(rollout)

    @rule(rollout=ROLLOUTS)
    def restore(self, rollout: str) -> None:
        if rollout in self.twin.spoilt:
            self.put(rollout, self.kept[rollout])
            self.twin.spoilt.discard(rollout)

    @rule(stripe=st.sampled_from(STRIPES), left=st.sampled_from([None, b"", b"0" * 53]))
    def damage_the_epochs(self, stripe: str, left: bytes | None) -> None:
        path = self.root / "state/epochs" / stripe
        if left is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(left)
        self.twin.damaged.add(stripe)

    @rule()
    def repair(self) -> None:
        if self.twin.damaged:
            mended = {Path(part.path).name for part in repair(self.store)}
            assert mended == self.twin.damaged
            self.twin.repair()

    @rule()
    def survey(self) -> None:
        survey = list(self.reader.survey())
        found = {r.rollout_id: record(r) for r in survey if isinstance(r, Claim)}
        assert found == {r: c for r, c in self.twin.claims.items() if r not in self.twin.spoilt}
        assert sum(isinstance(r, Unreadable) for r in survey) == len(self.twin.spoilt)

    # What must be so after each.

    @invariant()
    def readers_see_what_the_twin_holds(self) -> None:
        for rollout in KINDS:
            assert told(partial(self.reader.read, rollout)) == self.twin.read(rollout)

    @invariant()
    def grants_stand_as_long_as_they_should(self) -> None:
        for grant in self.recent:
            stands = self.twin.read(grant.claim.rollout_id)
            expected = stands if stands == UNREADABLE else stands == record(grant.claim)
            assert told(partial(self.store.stands, grant)) == expected

    @invariant()
    def owners_are_known_for_what_they_are(self) -> None:
        known = {n: life for n, life in self.twin.life.items() if life != "unknown"}
        assert {path.name for path in (self.root / "state/owners").iterdir()} == set(known)
        for grant in self.recent:
            owner = grant.claim.owner
            assert self.reader.judge(owner).verdict.value == self.twin.life[owner.nonce]

    # How it is told.

    def release_it(self, grant: Grant) -> None:
        expected = self.twin.release(grant.claim.rollout_id, record(grant.claim))
        assert told(partial(self.store.release, grant)) == expected

    def lose_it(self, grant: Grant) -> None:
        expected = self.twin.lose(grant.claim.rollout_id, record(grant.claim))
        assert told(partial(self.store.lose, grant, reason="it left")) == expected

    def look(self, rollout: str) -> tuple[Claim | None, ProofOfDeath | None]:
        """The claim of an owner, and the proof of its death, which there is only if it is dead."""
        stands = self.twin.read(rollout)
        if not isinstance(stands, Record) or stands.state == "lost":
            return None, None
        seen = self.reader.read(rollout)
        assert seen
        proof = self.store.proof_of_death(seen.owner)
        assert (proof is not None) == (self.twin.life[stands.owner] == "dead")  # C3
        return seen, proof

    def granted(self, expected: Any, ask: Callable[[], Grant | Moved]) -> None:
        answers: list[Grant | Moved] = []

        def keep() -> Grant | Moved:
            answers.append(ask())
            return answers[0]

        assert told(keep) == expected
        if not answers or isinstance(answers[0], Moved):
            return
        claim = answers[0].claim
        assert (claim.rollout_id, claim.claim_epoch) not in self.given  # C1
        self.given[claim.rollout_id, claim.claim_epoch] = claim.owner.nonce
        self.rise(claim.rollout_id, claim.claim_epoch)
        self.recent = [*self.recent[-11:], answers[0]]

    def rise(self, rollout: str, epoch: int) -> None:
        assert epoch > self.highest[rollout]  # C2
        self.highest[rollout] = epoch

    def put(self, rollout: str, raw: bytes) -> None:
        """Another file with these bytes: nothing of the old one is left to know it by."""
        temporary = self.root / "put"
        temporary.write_bytes(raw)
        temporary.rename(self.store.path_of(rollout))


class ManyClaims(Claims):
    """The same for longer, with other examples each time."""


everyday = settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,  # the same examples each time; the long form looks for new ones
    database=None,
    phases=[Phase.generate, Phase.shrink],  # to explain a failure takes minutes
    suppress_health_check=[HealthCheck.too_slow],  # that is the machine's business, not the model's
)
Claims.TestCase.settings = everyday
ManyClaims.TestCase.settings = settings(
    everyday, max_examples=500, stateful_step_count=60, derandomize=False
)
# A failure is made small before it is reported, which may take longer than the tests.
test_c1_c2_c3_c5_the_store_agrees_with_a_model_in_any_order_of_events = pytest.mark.timeout(600)(
    Claims.TestCase
)
test_c1_c2_c3_c5_the_store_agrees_with_a_model_in_many_orders = pytest.mark.long(
    ManyClaims.TestCase
)
