# SPDX-License-Identifier: Apache-2.0
"""The real store beside a small model, in any order of events (C1, C2, C3, C5)."""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from rollout_router.claims import (
    ClaimUnreadable,
    FileClaimStore,
    ForceRefused,
    Grant,
    Host,
    LifeLock,
    Moved,
    new_nonce,
)

ROLLOUTS = st.sampled_from(["r1", "r2", "x0"])
MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory in it


@dataclass
class Modelled:
    """What the model knows of one rollout."""

    highest: int = 0  # of every epoch that was ever given out
    grant: Grant | None = None  # the one that stands
    corrupt: bool = False


class Claims(RuleBasedStateMachine):
    """Workers start, die, take, take over, release; operators force; disks corrupt; hosts boot."""

    workers = Bundle("workers")

    @initialize()
    def make(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.host = Host.here()
        self.boots = 0
        self.open()
        self.model = {name: Modelled() for name in ("r1", "r2", "x0")}
        self.locks: dict[str, LifeLock] = {}
        self.dead: set[str] = set()

    def teardown(self) -> None:
        for lock in self.locks.values():
            lock.close()
        shutil.rmtree(self.root)

    def open(self) -> None:
        self.store = FileClaimStore.open(self.root / "state", service="model", host=self.host)

    @rule(target=workers)
    def start(self) -> LifeLock:
        nonce = new_nonce()
        lock = LifeLock.acquire(self.store, nonce=nonce, socket=f"/run/{nonce}.sock")
        self.locks[nonce] = lock
        return lock

    @rule(worker=workers)
    def die(self, worker: LifeLock) -> None:
        worker.close()
        self.dead.add(worker.owner.nonce)

    @rule(target=workers, worker=consumes(workers))
    def reboot(self, worker: LifeLock) -> object:
        """Everybody dies, locks or not, and every epoch file falls back to what was synced."""
        for nonce, lock in self.locks.items():
            lock.close()
            self.dead.add(nonce)
        self.boots += 1
        self.host = replace(self.host, boot_id=f"boot-{self.boots}")
        synced = FileClaimStore.open(self.root / f"fresh{self.boots}", service="model")
        shutil.copytree(synced.state_dir / "epochs", self.root / "state/epochs", dirs_exist_ok=True)
        shutil.rmtree(synced.state_dir)
        self.open()
        return multiple(worker)

    @rule(worker=workers, rollout=ROLLOUTS)
    def take(self, worker: LifeLock, rollout: str) -> None:
        if worker.owner.nonce in self.dead:
            return
        known = self.model[rollout]
        try:
            taken = self.store.take(rollout, worker.owner)
        except ClaimUnreadable:
            assert known.corrupt
            return
        assert not known.corrupt
        if isinstance(taken, Moved):
            assert known.grant
            assert taken.current == known.grant.claim
            assert taken.current.owner != worker.owner
        else:
            assert known.grant is None or known.grant.claim.owner == worker.owner
            self.note(known, taken)

    @rule(worker=workers, rollout=ROLLOUTS)
    def take_over(self, worker: LifeLock, rollout: str) -> None:
        known = self.model[rollout]
        if worker.owner.nonce in self.dead or known.grant is None or known.corrupt:
            return
        proof = self.store.proof_of_death(known.grant.claim.owner)
        assert (proof is not None) == (known.grant.claim.owner.nonce in self.dead)
        if proof:
            taken = self.store.take_over(known.grant.claim, worker.owner, proof)
            assert isinstance(taken, Grant)
            self.note(known, taken)

    @rule(rollout=ROLLOUTS)
    def release(self, rollout: str) -> None:
        known = self.model[rollout]
        if known.grant and not known.corrupt:
            assert self.store.release(known.grant)
            known.grant = None

    @rule(rollout=ROLLOUTS)
    def delete(self, rollout: str) -> None:
        Path(self.store.path_of(rollout)).unlink(missing_ok=True)
        self.model[rollout].grant, self.model[rollout].corrupt = None, False

    @rule(rollout=ROLLOUTS, cut=st.integers(0, 200))
    def corrupt(self, rollout: str, cut: int) -> None:
        path = Path(self.store.path_of(rollout))
        if path.exists():
            path.write_bytes(path.read_bytes()[:cut])
            self.model[rollout].corrupt = True

    @rule(rollout=ROLLOUTS)
    def force(self, rollout: str) -> None:
        known = self.model[rollout]
        expected = known.grant.claim.claim_epoch if known.grant and not known.corrupt else None
        try:
            fenced = self.store.force(rollout, expect_epoch=expected, reason="model")
        except ForceRefused:
            assert known.grant is None
            return
        assert fenced > known.highest
        known.highest, known.grant, known.corrupt = fenced, None, False

    def note(self, known: Modelled, grant: Grant) -> None:
        assert grant.claim.claim_epoch > known.highest  # C2
        if known.grant:
            assert not self.store.stands(known.grant)  # C1
        known.highest, known.grant = grant.claim.claim_epoch, grant

    @invariant()
    def what_stands_is_what_was_granted_last(self) -> None:
        for rollout, known in self.model.items():
            if known.corrupt:
                continue
            assert self.store.read(rollout) == (known.grant.claim if known.grant else None)
            if known.grant:
                assert self.store.stands(known.grant)


Claims.TestCase.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
test_c2_the_store_agrees_with_a_model_in_any_order_of_events = Claims.TestCase
