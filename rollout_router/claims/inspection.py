# SPDX-License-Identifier: Apache-2.0
"""Everything that is wrong with a store, each thing with a code and what to do (laws C1 to C5).

One pass that changes nothing, while workers go on. So nothing is called wrong by one look alone:
what a writer at work leaves for a moment is looked at again at the end of the pass. Only where a
temporary file stands does it ask, for an instant, for the lock of those who write there.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rollout_router.claims.admin_note import ADMIN_NOTE
from rollout_router.claims.disk import TEMPORARY
from rollout_router.claims.epochs import floor_of, generation_of
from rollout_router.claims.errors import ClaimUnreadable, StoreUnavailable, code_of
from rollout_router.claims.evidence import is_held
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.layout import PARTS, STRIPE_NAMES, read_format
from rollout_router.claims.names import valid_nonce
from rollout_router.claims.parts import Finding, finding, gate_damage, wrong_with
from rollout_router.claims.reader import rollout_of_file
from rollout_router.claims.record import Claim, Unreadable
from rollout_router.claims.repairs import highest_of
from rollout_router.claims.sweeper import dead_owners

__all__ = ["Inspection", "inspect_store"]

_STRIPES: Final = frozenset(STRIPE_NAMES)
_OTHER_LOCKS: Final = frozenset({"format", "gate", "sweep"})  # the last two once they were needed
_USABLE: Final = frozenset({"mode", "wrong_user"})
"""What may be wrong with a thing that can be looked into all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What one pass found."""

    findings: tuple[Finding, ...]
    behind: Mapping[str, int]  # stripes whose epoch file is behind a claim: that claim's epoch


def inspect_store(store: FileClaimStore, *, step: Callable[[], object]) -> Inspection:
    """Look at every part of a store.

    Args:
        store: opened, or inspected.
        step: called before each claim file.

    Raises:
        StoreUnavailable: FORMAT is gone or damaged since, or this process has no descriptors or
            memory left.
    """
    floor = floor_of(read_format(store.state_dir).generation)
    root = str(store.state_dir)
    run = _Pass(store=store, root=root, user=os.stat(root).st_uid)  # noqa: PTH116 - a string
    run.top()
    run.locks()
    run.owners()
    for stripe in STRIPE_NAMES:
        highest_claim = run.claims(stripe, step=step)
        # After the claims: what is granted from here on only makes the epoch file higher.
        run.epochs(stripe, floor=floor, highest_claim=highest_claim)
    run.look_again()
    return Inspection(findings=tuple(run.found), behind=run.behind)


@dataclass(slots=True)
class _Pass:
    store: FileClaimStore
    root: str
    user: int  # to whom everything must belong
    found: list[Finding] = field(default_factory=list)
    behind: dict[str, int] = field(default_factory=dict)
    temporary: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # its writers' locks
    dead: set[str] = field(default_factory=set)  # nonces of workers that wrote who they are
    named: set[str] = field(default_factory=set)  # nonces
    inodes: dict[str, int] = field(default_factory=dict)  # of owner files
    strays: list[Claim] = field(default_factory=list)  # the owner file was not there at one look
    all_read: bool = True
    highest: int = 0  # epoch on record anywhere

    def top(self) -> None:
        """The directory itself, what lies in it, and directories that hold nothing but stripes."""
        names = self._directory(self.root, writers=("format", "gate"))
        for name in sorted({*names, "FORMAT"}.difference(PARTS)):
            path = f"{self.root}/{name}"
            if name not in {"FORMAT", "gate", ADMIN_NOTE}:
                self._note(path, "unknown_file")
            elif (
                self._file(path, may_go=name == ADMIN_NOTE)
                and name == "gate"
                and (code := gate_damage(path))
            ):
                self._note(path, code, place="gate")
        for part in ("epochs", "claims"):
            # A repair holds the format lock while it writes an epoch file anew.
            for name in self._directory(f"{self.root}/{part}", writers=("format",)):
                if name not in _STRIPES:
                    self._note(f"{self.root}/{part}/{name}", "unknown_file")

    def locks(self) -> None:
        """One empty file a stripe, and one for FORMAT."""
        directory = f"{self.root}/locks"
        names = set(self._directory(directory, writers=()))
        for name in sorted(names | _STRIPES | {"format"}):
            path = f"{directory}/{name}"
            if name not in _STRIPES | _OTHER_LOCKS:
                self._note(path, "unknown_file")
            elif self._file(path) and os.path.getsize(path):  # noqa: PTH202 - a string
                self._note(path, "not_empty")

    def owners(self) -> None:
        """Owner files. Proofs of death come first: the dead take no claim that the pass misses."""
        try:
            self.dead = {owner.nonce for owner in dead_owners(self.store)}
        except StoreUnavailable:  # the next line says so
            self.dead = set()
        for nonce in self._directory(f"{self.root}/owners", writers=("format",)):
            path = f"{self.root}/owners/{nonce}"
            if not valid_nonce(nonce):
                self._note(path, "unknown_file")
            elif self._file(path, may_go=True) and not self._says_whose(nonce, path):
                self.dead.discard(nonce)

    def _says_whose(self, nonce: str, path: str) -> bool:
        """Whether an owner file says whose it is; what is wrong with that is noted."""
        inode = self._inode_of(nonce)
        try:
            identity = self.store.owner(nonce)
        except ClaimUnreadable as error:
            self._note(path, error.code, place="owner")
            return False
        except StoreUnavailable as error:
            self._note(path, code_of(error))
            return False
        if identity and inode not in {identity.inode, None} and nonce not in self.dead:
            self._note(path, "copied", nonce=nonce)
        return True

    def claims(self, stripe: str, *, step: Callable[[], object]) -> int:
        """The claims of a stripe; the highest epoch among them, 0 where there is none."""
        directory = f"{self.root}/claims/{stripe}"
        before = len(self.found)
        names = self._directory(directory, writers=(stripe,))
        self.all_read &= all(one.code in _USABLE for one in self.found[before:])
        highest = 0
        for name in names:
            step()
            path = f"{directory}/{name}"
            if not name.startswith("r."):
                self._note(path, "unknown_file")
            elif not self._file(path, may_go=True, kind="claim_not_a_file"):
                self.all_read = self.all_read and not os.path.lexists(path)
            elif isinstance(found := self.store.record_at(path), Unreadable):
                self.all_read = False
                self._unreadable(found)
            elif found is not None:
                highest = max(highest, found.claim_epoch)
                self._owner_of(found)
        self.highest = max(self.highest, highest)
        return highest

    def epochs(self, stripe: str, *, floor: int, highest_claim: int) -> None:
        """The epoch file of a stripe: everything granted from now on is above it, and *floor*."""
        path = f"{self.root}/epochs/{stripe}"
        if not self._file(path, missing="epoch"):
            return
        highest = highest_of(path)
        if isinstance(highest, str):
            highest = highest_of(path)  # a grant may have been writing it
        if isinstance(highest, str):
            self._note(path, highest, place="epoch")
            return
        self.highest = max(self.highest, highest)
        if max(highest, floor) < highest_claim:
            self._note(path, "behind")
            self.behind[stripe] = highest_claim

    def look_again(self) -> None:
        """What was wrong for a moment is not wrong."""
        for path, writers in self.temporary:
            if not self._being_written(writers) and os.path.lexists(path):
                # Nobody writes one among the locks.
                self._note(path, "temporary", place="" if writers else "unknown_file")
        for claim in self.strays:
            inode = self._inode_of(claim.owner.nonce)
            current = self.store.record_at(self.store.path_of(claim.rollout_id))
            stands = isinstance(current, Claim) and claim.same_grant(current)
            if stands and inode != claim.owner.inode and not self.store.proof_of_death(claim.owner):
                self._stray(claim, "owner_missing" if inode is None else "owner_replaced")
        for nonce in sorted(self.dead - self.named) if self.all_read else ():
            path = f"{self.root}/owners/{nonce}"
            if os.path.lexists(path):
                self._note(path, "dead_owner")
        # A FORMAT from a backup. Read now: whoever raises it writes epochs above it afterwards.
        if generation_of(self.highest) > read_format(self.store.state_dir).generation:
            self._note(f"{self.root}/FORMAT", "behind")

    def _directory(self, path: str, *, writers: tuple[str, ...]) -> list[str]:
        """The names in a directory, without temporary files, which are looked at in the end."""
        wrong = wrong_with(path, user=self.user, directory=True)
        self.found += wrong
        if any(one.code not in _USABLE for one in wrong):
            return []
        try:
            names = sorted(os.listdir(path))  # noqa: PTH208 - names
        except OSError as error:
            self._note(path, code_of(error))
            return []
        left = [name for name in names if name.startswith(TEMPORARY)]
        self.temporary += [(f"{path}/{name}", writers) for name in left]
        return [name for name in names if not name.startswith(TEMPORARY)]

    def _file(
        self, path: str, *, may_go: bool = False, kind: str = "not_a_file", missing: str = "missing"
    ) -> bool:
        """Whether a file can be looked into; what is wrong with it is noted."""
        usable = True
        for one in wrong_with(path, user=self.user):
            usable &= one.code in _USABLE
            place = {"not_a_file": kind, "missing": missing}.get(one.code)
            if place and not (may_go and one.code == "missing"):
                self._note(path, one.code, place=place)
            elif not place:
                self.found.append(one)
        return usable

    def _owner_of(self, claim: Claim) -> None:
        if claim.state == "lost":
            return  # a tombstone needs no owner file
        self.named.add(claim.owner.nonce)
        inode = self.inodes.get(claim.owner.nonce)
        if inode is None and (inode := self._inode_of(claim.owner.nonce)) is not None:
            self.inodes[claim.owner.nonce] = inode
        if inode != claim.owner.inode:
            self.strays.append(claim)

    def _inode_of(self, nonce: str) -> int | None:
        try:
            return os.lstat(f"{self.root}/owners/{nonce}").st_ino
        except OSError:
            return None

    def _being_written(self, writers: tuple[str, ...]) -> bool:
        return any(is_held(f"{self.root}/locks/{name}") for name in writers)

    def _unreadable(self, record: Unreadable) -> None:
        place = record.code if record.code == "newer_format" or record.code.isupper() else "claim"
        rollout = rollout_of_file(record.path) or "ID"
        self._note(record.path, record.code, place=place, rollout=rollout)

    def _stray(self, claim: Claim, code: str) -> None:
        path = self.store.path_of(claim.rollout_id)
        self._note(path, code, nonce=claim.owner.nonce)

    def _note(self, path: str, code: str, *, place: str = "", **names: str) -> None:
        self.found.append(finding(path, code, place=place, **names))
