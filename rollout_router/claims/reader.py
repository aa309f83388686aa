# SPDX-License-Identifier: Apache-2.0
"""The half of the file store that only reads (laws C3, C5).

It takes no lock and changes nothing: a reader finds the old record or the new one, never a part of
either. What it cannot understand it names and passes by; what it cannot read it does not guess.

Records and verdicts are imported where the first of them is met: what a script asks most often, of
a store in which nothing is owned, needs neither.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from rollout_router.claims.disk import TEMPORARY, peek, read_capped, read_signed
from rollout_router.claims.envelope import Malformed
from rollout_router.claims.errors import (
    ClaimsError,
    ClaimUnreadable,
    StoreUnavailable,
    code_of,
    errno_name,
)
from rollout_router.claims.host import Host
from rollout_router.claims.layout import STRIPE_NAMES, Layout, look_at
from rollout_router.claims.names import file_name, stripe_of, valid_nonce, valid_rollout_id

if TYPE_CHECKING:
    from rollout_router.claims.record import (
        Claim,
        Grant,
        Owner,
        OwnerIdentity,
        Signature,
        Unreadable,
    )
    from rollout_router.claims.verdict import Judgement, ProofOfDeath

__all__ = ["ClaimReader", "rollout_of_file"]

_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")

KNOWN_CLAIMS_MAX: Final = 8192
"""Claims that are looked at instead of read; all are read again when there were more. About 1.5 KB
each, and so many as the rollouts of two workers that a third forwards to."""

_ONE_FILE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EIO})
"""Errors of one file, where its name can be looked up; every other is of the process or the disk,
and ends a survey."""


class ClaimReader:
    """What can be known of one store without changing it. The docstrings are the port's."""

    def __init__(self, layout: Layout) -> None:
        self.state_dir: Final[Path] = layout.root
        self.store_id: Final[str] = layout.format.store_id
        self.service: Final[str] = layout.format.service
        self.boot_id: Final[str] = layout.host.boot_id
        self.local: Final[bool] = layout.local
        self._known: dict[str, tuple[str, Signature, Claim]] = {}  # with its path, as read last

    @classmethod
    def inspect(cls, state_dir: Path, *, host: Host | None = None) -> Self:
        """Open a store for reading: makes and raises nothing.

        Args:
            state_dir: the directory of the store.
            host: another machine than this one.

        Raises:
            StoreRefused: there is none, or this program cannot read it.
        """
        return cls(look_at(state_dir, host=host or Host.here()))

    def read(self, rollout_id: str) -> Claim | None:
        """See the port. Costs one stat where the file is the one that was read last.

        A file is never written again once it has its name, and its signature is no other grant's,
        so that what it said is what it says. Memory holds ``KNOWN_CLAIMS_MAX`` of them.
        """
        known = self._known.get(rollout_id)
        if known is not None:
            path, signature, claim = known
            try:
                found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - as in stands()
            except OSError:
                found = None  # what that means is found out by opening it
            if found and signature == (found.st_ino, found.st_ctime_ns, found.st_size):
                return claim
            self._known.pop(rollout_id, None)
        return self.read_file(self.path_of(rollout_id), rollout_id)

    def stands(self, grant: Grant) -> bool:
        """See the port."""
        path = grant.path
        try:
            found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - 2 us before every dispatch
        except FileNotFoundError:
            self._check_stripe(path)
            return False
        except OSError as error:
            raise StoreUnavailable(f"looking at {path}", error.errno) from error
        if (found.st_ino, found.st_ctime_ns, found.st_size) == grant.signature:
            return True
        # A chmod changes the signature and nothing else: what the record says decides (C3). The two
        # usual answers do without a claim made of it, which would cost more than three plain reads.
        from rollout_router.claims.record import is_of_another_epoch  # noqa: PLC0415 - see above

        raw = peek(path)
        if raw == grant.raw:
            return True
        if is_of_another_epoch(raw, grant.raw):
            return False
        return grant.claim.same_grant(self.read_file(path, grant.claim.rollout_id))

    def survey(self) -> Iterator[Claim | Unreadable]:
        """See the port."""
        for stripe in STRIPE_NAMES:
            directory = f"{self.state_dir}/claims/{stripe}"
            try:
                names = sorted(os.listdir(directory))  # noqa: PTH208 - names
            except OSError as error:
                yield _unreadable_at(directory, code_of(error))
                continue
            for name in names:
                if not name.startswith(TEMPORARY):
                    found = self.record_at(f"{directory}/{name}")
                    if found is not None:
                        yield found

    def record_at(self, path: str) -> Claim | Unreadable | None:
        """What one claim file holds; None where it is gone, released since its name was read.

        Raises:
            StoreUnavailable: this process has no descriptors or memory left.
        """
        try:
            claim = self.read_file(path, None)
        except ClaimUnreadable as error:
            return _unreadable_at(path, error.code)
        except StoreUnavailable as error:
            return _unreadable_at(path, code_of(error))
        if claim is None or path == self.path_of(claim.rollout_id):
            return claim
        return _unreadable_at(path, "wrong_name")

    def count_files(self, *, prefix: str = "") -> int:
        """How many files a survey will meet, about: workers go on. Never raises.

        Costs a microsecond a file, and counts with a *prefix* those of ids that begin with it.
        """
        begin = file_name(prefix) if prefix else ""
        count = 0
        for stripe in STRIPE_NAMES:
            with contextlib.suppress(OSError):  # the survey itself will say so
                names = os.listdir(f"{self.state_dir}/claims/{stripe}")  # noqa: PTH208 - names
                count += sum(name.startswith(begin) for name in names)
        return count

    def owners(self) -> Iterator[OwnerIdentity | Unreadable]:
        """See the port."""
        directory = f"{self.state_dir}/owners"
        for name in _names(directory):
            path = f"{directory}/{name}"
            try:
                identity = self.owner(name)
            except ClaimUnreadable as error:
                yield _unreadable_at(path, error.code)
            except StoreUnavailable as error:
                if error.errno not in _ONE_FILE:
                    raise
                yield _unreadable_at(path, errno_name(error))
            else:
                if identity is not None:
                    yield identity

    def owner(self, nonce: str) -> OwnerIdentity | None:
        """See the port."""
        from rollout_router.claims.record import decode_identity  # noqa: PLC0415 - see above

        path = f"{self.state_dir}/owners/{nonce}"
        if not valid_nonce(nonce):
            raise ClaimUnreadable(path, "wrong_name")
        try:
            identity = decode_identity(read_capped(path))
        except FileNotFoundError:
            return None
        except Malformed as error:
            raise ClaimUnreadable(path, error.code) from error
        except OSError as error:
            raise StoreUnavailable(f"reading {path}", error.errno) from error
        if identity.nonce != nonce:
            raise ClaimUnreadable(path, "wrong_name")
        return identity

    def judge(self, owner: Owner) -> Judgement:
        """See the port."""
        from rollout_router.claims.verdict import judge  # noqa: PLC0415 - see above

        path = f"{self.state_dir}/owners/{owner.nonce}"
        return judge(owner, path=path, boot_id=self.boot_id, local=self.local)

    def proof_of_death(self, owner: Owner) -> ProofOfDeath | None:
        """See the port."""
        from rollout_router.claims.verdict import prove_death  # noqa: PLC0415 - see above

        path = f"{self.state_dir}/owners/{owner.nonce}"
        return prove_death(owner, path=path, boot_id=self.boot_id, local=self.local)

    def path_of(self, rollout_id: str) -> str:
        """The claim file of a rollout; ``ValueError`` when the id is none."""
        if not valid_rollout_id(rollout_id):
            raise ValueError(f"not a rollout id: {rollout_id!r}")
        return f"{self.state_dir}/claims/{stripe_of(rollout_id)}/{file_name(rollout_id)}"

    def read_file(self, path: str, rollout_id: str | None) -> Claim | None:
        """The claim in one file, of whichever rollout when *rollout_id* is None.

        Returns:
            None where no file has that name, in a directory that is there: a directory that is
            gone says nothing of its claims, and is ``StoreUnavailable``.
        """
        from rollout_router.claims.record import decode_claim, signature_of  # noqa: PLC0415 - see above

        try:
            status, raw = read_signed(path)
            claim = decode_claim(raw)
        except FileNotFoundError:
            self._check_stripe(path)
            return None
        except (Malformed, OSError) as error:
            raise _unreadable(path, error) from error
        if rollout_id is None:
            return claim
        if claim.rollout_id != rollout_id:
            raise ClaimUnreadable(path, "wrong_name")
        if len(self._known) >= KNOWN_CLAIMS_MAX:
            self._known.clear()
        self._known[rollout_id] = (path, signature_of(status), claim)
        return claim

    def _check_stripe(self, path: str) -> None:
        directory, _ = os.path.split(path)
        try:
            os.stat(directory)  # noqa: PTH116 - beside the other
        except OSError as error:
            raise StoreUnavailable(f"looking at {directory}", error.errno) from error


def rollout_of_file(path: str) -> str | None:
    """The rollout whose claim file has this name; None where a long id was shortened into it."""
    name = os.path.basename(path)  # noqa: PTH119 - a string, as everywhere here
    rollout = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name.removeprefix("r."))
    return rollout if valid_rollout_id(rollout) and file_name(rollout) == name else None


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith(TEMPORARY))  # noqa: PTH208 - names
    except OSError as error:
        raise StoreUnavailable(f"listing {directory}", error.errno) from error


def _unreadable_at(path: str, code: str) -> Unreadable:
    from rollout_router.claims.record import Unreadable  # noqa: PLC0415 - see above

    return Unreadable(path=path, code=code)


def _unreadable(path: str, error: Malformed | OSError) -> ClaimsError:
    """One file fails closed alone (C5); what may concern others is the store's (C7)."""
    if isinstance(error, Malformed):
        return ClaimUnreadable(path, error.code)
    if error.errno in _ONE_FILE and os.path.lexists(path):
        return ClaimUnreadable(path, errno_name(error))
    return StoreUnavailable(f"reading {path}", error.errno)
