# SPDX-License-Identifier: Apache-2.0
"""The records of a claim store and their bytes: claims and owners (laws C1, C5).

Pure: no file is touched here.

The size of a claim file is congruent to its claim epoch modulo 256. A file's inode and its coarse
change time can both repeat within a few milliseconds; size and epoch cannot, so the signature that
the owner checks before each dispatch tells its grant from every later one (C1). The reverse does
not hold: another signature may be the same record in a file that somebody touched, so it is read.
"""

import hashlib
import math
import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from rollout_router.claims.envelope import Malformed, open_envelope, seal_envelope
from rollout_router.claims.epochs import CLAIM_EPOCH_MAX
from rollout_router.claims.names import valid_nonce, valid_rollout_id

__all__ = [
    "REASON_LENGTH_MAX",
    "Claim",
    "Grant",
    "Kind",
    "Moved",
    "Owner",
    "OwnerIdentity",
    "Previous",
    "Signature",
    "State",
    "Unreadable",
    "decode_claim",
    "decode_identity",
    "encode_claim",
    "encode_identity",
    "is_of_another_epoch",
    "signature_of",
]

_AT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_SEAL: Final = b',"sha256":"'
_EPOCH_FIELD: Final = b'"claim_epoch":'
_EPOCH_DIGITS_MAX: Final = len(str(CLAIM_EPOCH_MAX))
_PID_MAX: Final = 2**31 - 1  # pid_t; what is larger cannot even be asked for
REASON_LENGTH_MAX: Final = 200  # characters; of 12 bytes each when escaped: far below 4 KiB

Kind = Literal["rollout", "session"]
State = Literal["owned", "lost"]
_KINDS: Final = frozenset(get_args(Kind))
_STATES: Final = frozenset(get_args(State))


def _check(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence at each call
    if not holds:
        raise ValueError(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The worker that a claim names: its nonce, and the inode of the owner file it locked."""

    nonce: str
    inode: int

    def __post_init__(self) -> None:
        _check(valid_nonce(self.nonce), f"not a worker's nonce: {self.nonce!r}")
        _check(self.inode > 0, "an inode is above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The claim that this one replaced. For people; no decision reads it."""

    claim_epoch: int
    nonce: str

    def __post_init__(self) -> None:
        _check(0 < self.claim_epoch <= CLAIM_EPOCH_MAX, "a claim epoch is in 1..2**63-1")
        _check(valid_nonce(self.nonce), f"not a worker's nonce: {self.nonce!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The durable record that a worker owns a rollout."""

    kind: Kind
    rollout_id: str
    claim_epoch: int  # only ever rises (C2)
    state: State  # lost: a session's tombstone, which says 410 until it expires (R3)
    owner: Owner
    previous: Previous | None
    at: str  # ISO 8601 in UTC with a trailing Z; for people and for tombstones, never a proof
    reason: str = ""  # of a tombstone: why the session was lost

    def __post_init__(self) -> None:
        _check(self.kind in _KINDS, "a claim is of a rollout or a session")
        _check(valid_rollout_id(self.rollout_id), f"not a rollout id: {self.rollout_id!r}")
        _check(0 < self.claim_epoch <= CLAIM_EPOCH_MAX, "a claim epoch is in 1..2**63-1")
        _check(self.state in _STATES, "a claim is owned or lost")
        _check(self.state == "owned" or self.kind == "session", "only a session can be lost")
        _check(_AT.fullmatch(self.at) is not None, "at is UTC in ISO 8601 with a Z")
        datetime.fromisoformat(self.at)  # its digits are a time, for tombstones are aged by it
        _check(len(self.reason) <= REASON_LENGTH_MAX, "a reason has at most 200 characters")

    def same_grant(self, other: "Claim | None") -> bool:
        """Whether *other* is this very grant, in this very state."""
        return other is not None and (
            (self.rollout_id, self.claim_epoch, self.state, self.owner)
            == (other.rollout_id, other.claim_epoch, other.state, other.owner)
        )


class Signature(NamedTuple):
    """What one ``stat`` shows of a claim file; taken after its rename, under the stripe lock."""

    inode: int
    changed_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A claim that this process was given, and how to see that its file still stands."""

    claim: Claim
    signature: Signature
    path: str  # of its file
    raw: bytes = field(repr=False)  # in its file


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Somebody else's record, or none, stood there under the lock: nothing was changed."""

    current: Claim | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file of the store that cannot be understood: reported, left alone, never repaired."""

    path: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerIdentity:
    """What a worker writes into its owner file: where it listens, and facts for people."""

    nonce: str
    inode: int
    pid: int
    started_at: float  # start of the process, seconds since 1970; for people, not proof
    boot_id: str
    socket: str  # the path of its private socket, at most 107 bytes
    service: str
    at: str

    def __post_init__(self) -> None:
        Owner(nonce=self.nonce, inode=self.inode)
        _check(0 < self.pid <= _PID_MAX, "a pid is above 0 and has 31 bits")
        _check(math.isfinite(self.started_at), "a start time is finite")
        _check(bool(self.boot_id) and bool(self.socket) and bool(self.service), "no field is empty")

    @property
    def owner(self) -> Owner:
        """What claims of this worker name."""
        return Owner(nonce=self.nonce, inode=self.inode)


def encode_claim(claim: Claim) -> bytes:
    """The bytes of a claim file."""
    previous = claim.previous
    fields = {
        "kind": claim.kind,
        "rollout_id": claim.rollout_id,
        "claim_epoch": claim.claim_epoch,
        "state": claim.state,
        "owner": {"nonce": claim.owner.nonce, "inode": claim.owner.inode},
        "previous": previous and {"claim_epoch": previous.claim_epoch, "nonce": previous.nonce},
        "at": claim.at,
        "reason": claim.reason,
    }
    return seal_envelope(fields, remainder=claim.claim_epoch)


def decode_claim(raw: bytes) -> Claim:
    """The claim in *raw*.

    Raises:
        Malformed: see :func:`open_envelope`; ``field`` when one is missing, of a wrong type or
            out of its bounds.
    """
    fields = open_envelope(raw)
    try:
        owner, previous = _object(fields, "owner"), fields["previous"]
        return Claim(
            kind=_text(fields, "kind"),  # type: ignore[arg-type] # Claim checks its literals
            rollout_id=_text(fields, "rollout_id"),
            claim_epoch=_integer(fields, "claim_epoch"),
            state=_text(fields, "state"),  # type: ignore[arg-type] # as above
            owner=Owner(nonce=_text(owner, "nonce"), inode=_integer(owner, "inode")),
            previous=None if previous is None else _previous(_object(fields, "previous")),
            at=_text(fields, "at"),
            reason=_text({"reason": "", **fields}, "reason"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed("field") from error


def is_of_another_epoch(raw: bytes, own: bytes) -> bool:
    """Whether *raw* is a whole claim of the same rollout as that in *own*, under another epoch.

    Looks at bytes alone: records of one rollout begin alike, up to the epoch. False decides
    nothing: :func:`decode_claim` does, at three times the cost.
    """
    begins = own.index(_EPOCH_FIELD) + len(_EPOCH_FIELD)
    ends = raw.find(b",", begins, begins + _EPOCH_DIGITS_MAX + 1)
    epoch = raw[begins:ends]
    if ends < 0 or not epoch.isdigit() or not raw.startswith(own[:begins]):
        return False
    seal = raw.rfind(_SEAL)
    digest = hashlib.sha256(raw[:seal]).hexdigest().encode()
    tail = raw[seal:].rstrip(b" \n")
    return epoch != own[begins:ends] and tail == _SEAL + digest + b'"}'


def signature_of(status: os.stat_result) -> Signature:
    """What tells this file from every other grant that stood or will stand in its place."""
    return Signature(status.st_ino, status.st_ctime_ns, status.st_size)


def encode_identity(identity: OwnerIdentity) -> bytes:
    """The bytes of an owner file."""
    return seal_envelope({name: getattr(identity, name) for name in OwnerIdentity.__slots__})


def decode_identity(raw: bytes) -> OwnerIdentity:
    """The identity in *raw*.

    Raises:
        Malformed: as :func:`decode_claim`.
    """
    fields = open_envelope(raw)
    try:
        return OwnerIdentity(
            nonce=_text(fields, "nonce"),
            inode=_integer(fields, "inode"),
            pid=_integer(fields, "pid"),
            started_at=_number(fields, "started_at"),
            boot_id=_text(fields, "boot_id"),
            socket=_text(fields, "socket"),
            service=_text(fields, "service"),
            at=_text(fields, "at"),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Malformed("field") from error


def _previous(fields: dict[str, Any]) -> Previous:
    return Previous(claim_epoch=_integer(fields, "claim_epoch"), nonce=_text(fields, "nonce"))


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(name)
    return value


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields[name]
    return value if isinstance(value, float) else float(_integer(fields, name))


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields[name]
    if not isinstance(value, dict):
        raise TypeError(name)
    return value
