# SPDX-License-Identifier: Apache-2.0
"""The claims of one service in one directory of one host (laws C1 to C5, C7).

Every change is one transaction under the lock of its stripe: read again, compare with what the
caller saw, raise the epoch file, write a temporary file, rename it. The rename is the moment of
the grant. A reader takes no lock: it finds the old record or the new one (C5).

What this store does not do: it never decides that an owner is dead because of time, and it never
repairs a record. What it cannot read or write it reports, and changes nothing.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rollout_router.claims.creation import create_or_open
from rollout_router.claims.disk import publish, read_capped, write_in_place
from rollout_router.claims.envelope import Malformed
from rollout_router.claims.epochs import (
    EpochsExhausted,
    decode_highest,
    encode_highest,
    next_epoch,
)
from rollout_router.claims.errors import (
    ClaimUnreadable,
    ForceRefused,
    StoreUnavailable,
)
from rollout_router.claims.host import Host
from rollout_router.claims.layout import Format, Layout, read_format
from rollout_router.claims.locks import LOCK_TIMEOUT_S, StripeLocks
from rollout_router.claims.names import stripe_of
from rollout_router.claims.reader import ClaimReader
from rollout_router.claims.record import (
    REASON_LENGTH_MAX,
    Claim,
    Grant,
    Kind,
    Moved,
    Owner,
    Previous,
    encode_claim,
    signature_of,
)
from rollout_router.claims.verdict import ProofOfDeath

__all__ = ["FileClaimStore"]


_log = logging.getLogger(__name__)


class FileClaimStore(ClaimReader):
    """The reference store. Safe for threads and processes; children of a fork must open anew.

    One from :meth:`inspect` changes claims only while FORMAT is of this boot; :meth:`open` others.
    """

    def __init__(self, layout: Layout, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        super().__init__(layout)
        self._layout = layout
        self._locks = StripeLocks(layout.root / "locks", timeout_s=lock_timeout_s)
        # One tuple, replaced as a whole: threads read it without a lock.
        self._format: tuple[tuple[int, int], Format] = ((0, 0), layout.format)

    @classmethod
    def open(
        cls,
        state_dir: Path,
        *,
        service: str | None,
        allow_network_fs: bool = False,
        host: Host | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> "FileClaimStore":
        """Open a store to work with; make it where none is, raise its generation once a boot.

        Args:
            state_dir: the directory of the store.
            service: whose claims these are. None: of whichever service; never makes a store.
            allow_network_fs: all workers promise to be on one host and to use one mount.
            host: another machine than this one.
            lock_timeout_s: the bound on each wait for a stripe.

        Raises:
            StoreRefused: says why and what to do.
        """
        layout = create_or_open(
            state_dir,
            service=service,
            host=host or Host.here(),
            allow_network_fs=allow_network_fs,
        )
        return cls(layout, lock_timeout_s=lock_timeout_s)

    def with_lock_timeout(self, lock_timeout_s: float) -> "FileClaimStore":
        """The same store, opened before, whose locks are waited for *lock_timeout_s*."""
        return FileClaimStore(self._layout, lock_timeout_s=lock_timeout_s)

    def take(self, rollout_id: str, owner: Owner, *, kind: Kind = "rollout") -> Grant | Moved:
        """See the port."""
        with self._transaction(rollout_id) as path:
            current = self.read_file(path, rollout_id)
            if current is not None and (
                current.state == "lost" or current.owner.nonce != owner.nonce
            ):
                return Moved(current=current)
            if current is not None and current.kind == "session":
                kind = "session"
            return self._grant(path, rollout_id, owner=owner, kind=kind, current=current)

    def take_over(self, seen: Claim, owner: Owner, proof: ProofOfDeath) -> Grant | Moved:
        """See the port."""
        _check_proof(seen, proof)
        if seen.kind == "session":
            raise ValueError("a session never moves (R3): reap it")
        with self._transaction(seen.rollout_id) as path:
            current = self.read_file(path, seen.rollout_id)
            if not seen.same_grant(current):
                return Moved(current=current)
            return self._grant(path, seen.rollout_id, owner=owner, kind=seen.kind, current=current)

    def release(self, grant: Grant) -> bool:
        """See the port."""
        return self._remove(grant.claim)

    def lose(self, grant: Grant, *, reason: str) -> bool:
        """See the port."""
        if grant.claim.kind != "session":
            raise ValueError("only a session leaves a tombstone: release the claim")
        return self._bury(grant.claim, reason=reason)

    def reap(self, seen: Claim, proof: ProofOfDeath) -> bool:
        """See the port."""
        _check_proof(seen, proof)
        if seen.kind == "session":
            return self._bury(seen, reason="the worker that owned it died")
        return self._remove(seen)

    def forget(self, tombstone: Claim) -> bool:
        """See the port."""
        if tombstone.state != "lost":
            raise ValueError("only a tombstone is forgotten")
        return self._remove(tombstone)

    def force(self, rollout_id: str, *, expect_epoch: int | None, reason: str) -> int:
        """See the port."""
        with self._transaction(rollout_id) as path:
            current = self.forceable(rollout_id, expect_epoch=expect_epoch)
            epoch = self._raise_epoch(rollout_id, current=current)
            if current is not None and current.kind == "session":
                fenced = replace(current, claim_epoch=epoch)
                self._write_tombstone(path, fenced, reason=reason)
            else:
                os.unlink(path)  # noqa: PTH108 - strings, as everywhere in a transaction
        _log.warning("rollout %s was forced past claim epoch %d: %s", rollout_id, epoch, reason)
        return epoch

    def forceable(self, rollout_id: str, *, expect_epoch: int | None) -> Claim | None:
        """What ``force`` with the same arguments would remove now; changes nothing.

        Returns:
            The claim; None for a record that is unreadable, as was expected.

        Raises:
            ForceRefused: as ``force``.
            StoreUnavailable: the store cannot be read.
        """
        try:
            current = self.read(rollout_id)
        except ClaimUnreadable as error:
            if error.code == "newer_format":
                raise ForceRefused(str(error)) from error
            if expect_epoch is not None:
                raise ForceRefused(
                    f"{error.path} is unreadable ({error.code}), so nobody can see claim epoch "
                    f"{expect_epoch} in it: restore it, or leave out --expect-epoch to force it"
                ) from error
            if os.path.isdir(error.path) and not os.path.islink(error.path):  # noqa: PTH112, PTH114 - strings, as everywhere here
                raise ForceRefused(
                    f"{error.path} is a directory, and nothing of ours makes one there: move it "
                    "away; its rollout is free then"
                ) from error
            return None
        if current is None:
            raise ForceRefused(f"rollout {rollout_id} has no claim: there is nothing to force")
        epoch = current.claim_epoch
        if expect_epoch is None:
            raise ForceRefused(
                f"rollout {rollout_id} is at claim epoch {epoch} and can be read: say that you "
                f"mean this claim with --expect-epoch {epoch}"
            )
        if epoch != expect_epoch:
            raise ForceRefused(
                f"rollout {rollout_id} is at claim epoch {epoch}, not at {expect_epoch}: look "
                f"again with `rollout-router claims show {rollout_id}`"
            )
        return current

    @contextmanager
    def holding_format(self) -> Iterator[None]:
        """Hold ``locks/format``: owner files and FORMAT change only under it.

        Raises:
            StoreUnavailable: it could not be taken in time.
        """
        with self._locks.hold("format"):
            yield

    @contextmanager
    def holding_stripe(self, stripe: str) -> Iterator[None]:
        """Hold one stripe of a store that is still ours; for changes that are no grants.

        Raises:
            StoreUnavailable: the lock could not be taken, or the store was replaced.
        """
        with self._locks.hold(stripe):
            self._check_store()
            yield

    @contextmanager
    def _transaction(self, rollout_id: str) -> Iterator[str]:
        path = self.path_of(rollout_id)
        with self.holding_stripe(stripe_of(rollout_id)):
            try:
                yield path
            except OSError as error:
                raise StoreUnavailable(f"writing {path}", error.errno) from error

    def _check_store(self) -> None:
        """Notice a raised generation, and a store that was replaced under a running worker."""
        path = f"{self.state_dir}/FORMAT"
        known, _ = self._format
        try:
            status = os.stat(path)  # noqa: PTH116 - as above
        except OSError as error:
            raise StoreUnavailable(f"looking at {path}", errno.ESTALE) from error
        stamp = (status.st_ino, status.st_ctime_ns)
        if stamp == known:
            return
        found = read_format(self.state_dir)
        if found.store_id != self.store_id:
            raise StoreUnavailable(f"{self.state_dir} is another store now", errno.ESTALE)
        if found.boot_id != self.boot_id:
            raise StoreUnavailable(f"{self.state_dir} is not opened in this boot yet", errno.ESTALE)
        self._format = (stamp, found)

    def _grant(
        self, path: str, rollout_id: str, *, owner: Owner, kind: Kind, current: Claim | None
    ) -> Grant:
        claim = Claim(
            kind=kind,
            rollout_id=rollout_id,
            claim_epoch=self._raise_epoch(rollout_id, current=current),
            state="owned",
            owner=owner,
            previous=None
            if current is None
            else Previous(claim_epoch=current.claim_epoch, nonce=current.owner.nonce),
            at=_now(),
        )
        # Not durable: after a power cut the generation is above every epoch that was granted (C2).
        raw = encode_claim(claim)
        status = publish(path, raw, durable=False)
        return Grant(claim=claim, signature=signature_of(status), path=path, raw=raw)

    def _raise_epoch(self, rollout_id: str, *, current: Claim | None) -> int:
        """Find the next epoch and put it on record, before anything is granted under it."""
        path = f"{self.state_dir}/epochs/{stripe_of(rollout_id)}"
        try:
            epoch = next_epoch(
                highest=decode_highest(read_capped(path)),
                generation=self._format[1].generation,
                standing=current.claim_epoch if current else 0,
            )
        except (FileNotFoundError, Malformed) as error:
            raise StoreUnavailable(
                f"the epoch file {path} is damaged or missing", errno.EBADMSG
            ) from error
        except EpochsExhausted as error:
            raise StoreUnavailable(f"the epochs of {path}", errno.EOVERFLOW) from error
        write_in_place(path, encode_highest(epoch))
        return epoch

    def _remove(self, seen: Claim) -> bool:
        with self._transaction(seen.rollout_id) as path:
            if not seen.same_grant(self.read_file(path, seen.rollout_id)):
                return False
            os.unlink(path)  # noqa: PTH108 - as above
            return True

    def _bury(self, seen: Claim, *, reason: str) -> bool:
        with self._transaction(seen.rollout_id) as path:
            if not seen.same_grant(self.read_file(path, seen.rollout_id)):
                return False
            self._write_tombstone(path, seen, reason=reason)
            return True

    def _write_tombstone(self, path: str, session: Claim, *, reason: str) -> None:
        lost = replace(session, state="lost", reason=reason[:REASON_LENGTH_MAX], at=_now())
        publish(path, encode_claim(lost), durable=False)


def _check_proof(seen: Claim, proof: ProofOfDeath) -> None:
    if proof.owner != seen.owner:
        raise ValueError(f"the proof is of worker {proof.owner.nonce}, not {seen.owner.nonce} (C3)")
    if seen.state != "owned":
        raise ValueError("a tombstone has no owner to die")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
