# SPDX-License-Identifier: Apache-2.0
"""What is known of an owner: alive, dead or unknown (law C3).

A socket that is missing or refuses is no proof: a worker that starts, drains, or lost its socket
file to a cleaner looks the same. It only makes us ask. The answer is the life lock: the worker
holds its owner file locked from before the file has its name until the kernel ends the process, so
a shared lock that is granted proves death. A lock is asked for shared, or two who ask at one time
would see each other and call it life.

:func:`decide` is pure; the probes around it never wait. Whatever they cannot tell is unknown, and
unknown is never treated as dead.
"""

import enum
import errno
import fcntl
import os
from dataclasses import InitVar, dataclass
from typing import Final, Literal

from rollout_router.claims.disk import close_unwritten, open_for_reading, read_fd
from rollout_router.claims.envelope import Malformed
from rollout_router.claims.errors import errno_name
from rollout_router.claims.record import Owner, OwnerIdentity, decode_identity

__all__ = ["Judgement", "ProofOfDeath", "Verdict", "decide", "judge", "prove_death"]

_SEAL: Final = object()
_REACHED: Final = frozenset({"OK", "EAGAIN"})  # EAGAIN: the backlog is full, so somebody listens
_SUSPICIOUS: Final = frozenset({"ENOENT", "ECONNREFUSED"})
_NOT_TRIED: Final = "not_tried"


class Verdict(enum.Enum):
    """What is known of an owner."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


_OF_ANOTHER_BOOT: Final = {
    True: (Verdict.DEAD, "it ran in an earlier boot of this host"),
    False: (Verdict.UNKNOWN, "it ran under another boot id, on a file system that may be shared"),
}
_OF_THE_LIFE_LOCK: Final = {
    "free": (Verdict.DEAD, "its life lock is free"),
    "held": (Verdict.ALIVE, "its life lock is held, but its socket does not answer"),
    "missing": (Verdict.UNKNOWN, "its owner file is missing: see `claims reap --owner-missing`"),
    "replaced": (
        Verdict.UNKNOWN,
        "another file stands in its place: see `claims reap --owner-missing`",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOfDeath:
    """That this owner is dead. It never becomes untrue, so it may be older than a stripe lock.

    Only this module makes one.
    """

    owner: Owner
    evidence: Literal["life_lock_free", "other_boot"]
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("a proof of death is found, not made: ask proof_of_death")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and the evidence for it.

    Attributes:
        verdict: the answer.
        connect: what the socket said: ``OK``, the name of an error number, or ``not_tried``.
        life: what the life lock said: ``held``, ``free``, ``missing``, ``replaced`` (another file
            stands there), the name of an error number, or ``not_tried``.
        reason: for people.
        proof: given exactly when the verdict is dead.
    """

    verdict: Verdict
    connect: str
    life: str
    reason: str
    proof: ProofOfDeath | None = None


def decide(*, other_boot: bool, local: bool, connect: str, life: str) -> tuple[Verdict, str]:
    """The verdict and its reason, from what the probes found."""
    if other_boot:
        return _OF_ANOTHER_BOOT[local]
    if connect in _REACHED:
        return Verdict.ALIVE, "its socket answers" if connect == "OK" else "its backlog is full"
    if connect not in _SUSPICIOUS and connect != _NOT_TRIED:
        return Verdict.UNKNOWN, f"its socket could not be asked ({connect})"
    unasked = Verdict.UNKNOWN, f"its life lock could not be asked ({life})"
    return _OF_THE_LIFE_LOCK.get(life, unasked)


def judge(owner: Owner, *, path: str, boot_id: str, local: bool) -> Judgement:
    """Ask the socket, and the life lock if the socket is missing or refuses. Never waits.

    Args:
        owner: as a claim names it.
        path: of its owner file.
        boot_id: of the running kernel.
        local: whether the store's file system is.
    """
    connect = life = _NOT_TRIED
    other_boot = False
    try:
        fd = open_for_reading(path)
    except (OSError, Malformed) as error:
        life = _name_of(error)
    else:
        try:
            identity = _identity(fd, owner)
            other_boot = identity is not None and identity.boot_id != boot_id
            if identity is not None and not other_boot:
                connect = probe_socket(identity.socket)
            if not other_boot and (identity is None or connect in _SUSPICIOUS):
                life = _probe_life(fd, owner, identity)
        finally:
            close_unwritten(fd)
    verdict, reason = decide(other_boot=other_boot, local=local, connect=connect, life=life)
    proof = None
    if verdict is Verdict.DEAD:
        evidence: Literal["other_boot", "life_lock_free"] = (
            "other_boot" if other_boot else "life_lock_free"
        )
        proof = ProofOfDeath(owner=owner, evidence=evidence, seal=_SEAL)
    return Judgement(verdict=verdict, connect=connect, life=life, reason=reason, proof=proof)


def prove_death(owner: Owner, *, path: str, boot_id: str, local: bool) -> ProofOfDeath | None:
    """Ask the life lock alone, whatever the socket says: a forked child may hold the socket open.

    Returns:
        None when the owner lives, or when it cannot be told.
    """
    try:
        fd = open_for_reading(path)
    except (OSError, Malformed):
        return None
    try:
        identity = _identity(fd, owner)
        if identity is not None and identity.boot_id != boot_id:
            return ProofOfDeath(owner=owner, evidence="other_boot", seal=_SEAL) if local else None
        if _probe_life(fd, owner, identity) == "free":
            return ProofOfDeath(owner=owner, evidence="life_lock_free", seal=_SEAL)
        return None
    finally:
        close_unwritten(fd)


def probe_socket(path: str) -> str:
    """``OK``, or the name of the error that a connection attempt gives at once.

    A raw, non-blocking connect: event loops call a full backlog connected.
    """
    if "\0" in path:
        return "EINVAL"  # the kernel would cut it there, or look in its abstract namespace
    import socket  # noqa: PLC0415 - a command that meets no owner starts without it

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            probe.connect(path)
    except OSError as error:
        # A path that is too long is refused by Python itself, without an error number.
        return errno_name(error) if error.errno else "ENAMETOOLONG"
    except UnicodeEncodeError:
        return "EILSEQ"  # a lone surrogate: no file can have that name
    return "OK"


def _probe_life(fd: int, owner: Owner, identity: OwnerIdentity | None) -> str:
    try:
        # A copy names the file that it was made of, and nobody ever locked it.
        if {os.fstat(fd).st_ino, identity.inode if identity else owner.inode} != {owner.inode}:
            return "replaced"
        # Given back with the descriptor. Nobody waits for this lock: its owner took it at birth.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError as error:
        return errno_name(error)
    return "free"


def _identity(fd: int, owner: Owner) -> OwnerIdentity | None:
    """What the owner wrote of itself; None when that cannot be read, and the lock must answer."""
    try:
        identity = decode_identity(read_fd(fd))
    except (OSError, Malformed):
        return None
    return identity if identity.nonce == owner.nonce else None


def _name_of(error: OSError | Malformed) -> str:
    if isinstance(error, Malformed):
        return "replaced"
    return "missing" if error.errno == errno.ENOENT else errno_name(error)
