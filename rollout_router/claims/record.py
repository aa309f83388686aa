# SPDX-License-Identifier: Apache-2.0
"""The records of a claim store and their bytes: claims, owners and their names (laws C1, C5).

Pure: no file is touched here. A record is one JSON object of at most 4 KiB whose last member is a
sha256 over the bytes before it, so a reader takes a whole record or none (C5). Reading is tolerant
of unknown fields; writing is strict. A newer ``v`` is refused and never guessed at.

The size of a claim file is congruent to its claim epoch modulo 256. A file's inode and its coarse
change time can both repeat within a few milliseconds; size and epoch cannot, so the signature that
the owner checks before each dispatch tells its grant from every later one (C1). The reverse does
not hold: another signature may be the same record in a file that somebody touched, so it is read.
"""

import hashlib
import json
import math
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args

__all__ = [
    "CLAIM_EPOCH_MAX",
    "REASON_LENGTH_MAX",
    "RECORD_BYTES_MAX",
    "ROLLOUT_ID",
    "STRIPES",
    "Claim",
    "Grant",
    "Kind",
    "Malformed",
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
    "file_name",
    "is_of_another_epoch",
    "new_nonce",
    "open_envelope",
    "seal_envelope",
    "stripe_of",
    "valid_nonce",
    "valid_rollout_id",
]

FORMAT_VERSION: Final = 1
RECORD_BYTES_MAX: Final = 4096
STRIPES: Final = 256  # a change of the count is a change of the format
CLAIM_EPOCH_MAX: Final = 2**63 - 1  # fits the signed 64-bit integer of every database and language
ROLLOUT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_NONCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_AT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_ENVELOPE: Final = re.compile(rb'(\{.+),"sha256":"([0-9a-f]{64})"\}[ \n]*', re.DOTALL)
_SEAL: Final = b',"sha256":"'
_EPOCH_FIELD: Final = b'"claim_epoch":'
_EPOCH_DIGITS_MAX: Final = len(str(CLAIM_EPOCH_MAX))
_NAME_BYTES_MAX: Final = 180
_KEPT: Final = "abcdefghijklmnopqrstuvwxyz0123456789-"
_ESCAPES: Final = {code: f"_{code:02x}" for code in range(128) if chr(code) not in _KEPT}
_PID_MAX: Final = 2**31 - 1  # pid_t; what is larger cannot even be asked for
_SIGNATURE_MODULUS: Final = 256
_NAMES_CACHED: Final = (
    4096  # the path is needed before every dispatch, and costs more than its stat
)
REASON_LENGTH_MAX: Final = 200  # characters; of 12 bytes each when escaped: far below 4 KiB

Kind = Literal["rollout", "session"]
State = Literal["owned", "lost"]
_KINDS: Final = frozenset(get_args(Kind))
_STATES: Final = frozenset(get_args(State))


class Malformed(ValueError):  # noqa: N818 - names the state of the bytes
    """Bytes that are no record. ``code`` is one of the codes of ``ClaimUnreadable``."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


def valid_rollout_id(text: str) -> bool:
    """Whether *text* may name a rollout: 1 to 200 of ``A-Za-z0-9._-``, the first alphanumeric."""
    return ROLLOUT_ID.fullmatch(text) is not None


def valid_nonce(text: str) -> bool:
    """Whether *text* may name a worker: at most 32 characters, safe in file and socket names."""
    return _NONCE.fullmatch(text) is not None


def new_nonce() -> str:
    """A random name for one worker: 20 hexadecimal digits, never used before or again."""
    return secrets.token_hex(10)


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


@lru_cache(maxsize=_NAMES_CACHED)
def file_name(rollout_id: str) -> str:
    """The name of a claim file: unique also where a file system folds case; at most 180 bytes."""
    encoded = "r." + rollout_id.translate(_ESCAPES)
    if len(encoded) <= _NAME_BYTES_MAX:
        return encoded
    return f"{encoded[:100]}_.h{hashlib.sha256(rollout_id.encode()).hexdigest()}"


@lru_cache(maxsize=_NAMES_CACHED)
def stripe_of(rollout_id: str) -> str:
    """The stripe of a rollout, as two hexadecimal digits."""
    return hashlib.sha256(rollout_id.encode()).hexdigest()[:2]


def seal_envelope(fields: dict[str, Any], *, remainder: int | None = None) -> bytes:
    """The bytes of one record: *fields*, a format version before them, a checksum behind them.

    Args:
        fields: JSON values.
        remainder: when given, spaces make the size congruent to it modulo 256.

    Raises:
        ValueError: the record would be above 4 KiB.
    """
    body = json.dumps({"v": FORMAT_VERSION, **fields}, separators=(",", ":"))[:-1].encode()
    raw = body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
    if remainder is not None:
        raw += b" " * ((remainder - len(raw) - 1) % _SIGNATURE_MODULUS)
    raw += b"\n"
    _check(len(raw) <= RECORD_BYTES_MAX, "a record has at most 4096 bytes")
    return raw


def open_envelope(raw: bytes) -> dict[str, Any]:
    """The fields of one record, its checksum verified.

    Raises:
        Malformed: ``empty``, ``too_large``, ``checksum``, ``not_json``, ``version`` or
            ``newer_format``.
    """
    if not raw:
        raise Malformed("empty")
    if len(raw) > RECORD_BYTES_MAX:
        raise Malformed("too_large")
    match = _ENVELOPE.fullmatch(raw)
    if match is None or hashlib.sha256(match[1]).hexdigest().encode() != match[2]:
        raise Malformed("checksum")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Malformed("not_json") from error
    version = fields.get("v")
    if type(version) is not int or version < 1:
        raise Malformed("version")
    if version > FORMAT_VERSION:
        raise Malformed("newer_format")
    return dict(fields)


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
