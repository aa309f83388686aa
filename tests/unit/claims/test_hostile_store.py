# SPDX-License-Identifier: Apache-2.0
"""Owner files, epoch files and a FORMAT that mean harm: named, refused, passed by (C2, C3, C5)."""

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import (
    Claim,
    ClaimUnreadable,
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    Moved,
    Owner,
    StoreRefused,
    StoreUnavailable,
    Swept,
    Unreadable,
    repair,
    sweep,
)
from rollout_router.claims.epochs import GENERATION_MAX, encode_highest
from rollout_router.claims.names import stripe_of
from rollout_router.claims.record import encode_identity

pytestmark = pytest.mark.usefixtures("unprivileged")  # root is refused nothing

Live = Callable[[], LifeLock]
Tree = Callable[[Path], dict[str, Any]]
Make = Callable[[Path], object]
REBOOTED = replace(Host.here(), boot_id="another-boot")


def granted(taken: Grant | Moved) -> Grant:
    assert isinstance(taken, Grant)
    return taken


def sealed(body: bytes) -> bytes:
    """A record with a true checksum over *body*, whatever that is."""
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def resealed(path: Path, **fields: Any) -> None:
    """Other fields in the same file; None drops one."""
    record = {**json.loads(path.read_bytes()), **fields, "sha256": None}
    kept = {name: value for name, value in record.items() if value is not None}
    path.write_bytes(sealed(json.dumps(kept)[:-1].encode()))


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def aside(path: Path) -> Path:
    return path.with_name("aside")


def put(make: Make) -> Make:
    """Something else in the place of a file, which is kept beside it."""

    def replaced(path: Path) -> None:
        path.rename(aside(path))
        make(path)

    return replaced


NO_FILES: dict[str, Make] = {
    "a link to itself": put(lambda path: path.symlink_to(aside(path))),
    "a dangling link": put(lambda path: path.symlink_to("nowhere")),
    "a loop of links": put(lambda path: path.symlink_to(path)),
    "a directory": put(Path.mkdir),
    "a FIFO": put(os.mkfifo),
    "a socket": put(bind),
}
BYTES: dict[str, Make] = {
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "one bit turned": lambda path: path.write_bytes(b"\xfb" + path.read_bytes()[1:]),
    "huge": lambda path: path.write_bytes(path.read_bytes() + b"\n" * 2**22),
    "400 kB of digits": lambda path: path.write_bytes(b"9" * 400_000),
    "brackets, sealed": lambda path: path.write_bytes(sealed(b'{"v":1,"x":' + b"[" * 3900)),
}


def refuse(path: Path) -> None:
    path.chmod(0)


# Owner files. Damaged bytes leave the lock, which answers; no file at all, or another, is unknown.

IDENTITIES: dict[str, Make] = {
    "a pid of 80 bits": lambda path: resealed(path, pid=2**80),
    "a start that is no number": lambda path: resealed(path, started_at=float("nan")),
    "a start without end": lambda path: resealed(path, started_at=float("inf")),
    "a start of 300 digits": lambda path: resealed(path, started_at=10**300 * 10**300),
    "another worker's name": lambda path: resealed(path, nonce="another"),
    "no socket": lambda path: resealed(path, socket=""),
    "a newer format": lambda path: resealed(path, v=2),
}
OWNERS = {
    **{name: (make, ("unknown", "replaced")) for name, make in NO_FILES.items()},
    **{name: (make, ("alive", "held")) for name, make in {**BYTES, **IDENTITIES}.items()},
    "a file of mode 0000": (refuse, ("unknown", "EACCES")),
}
AFTER_DEATH = {("alive", "held"): ("dead", "free")}


def owner_file(store: FileClaimStore, owner: Owner) -> Path:
    return store.state_dir / "owners" / owner.nonce


def sweeping(store: FileClaimStore) -> Swept:
    return sweep(store, now=datetime.now(UTC), tombstone_age_max=timedelta(hours=1))


def judged(store: FileClaimStore, owner: Owner) -> tuple[str, str]:
    judgement = store.judge(owner)
    dead = judgement.verdict.value == "dead"
    assert (store.proof_of_death(owner) is not None) == dead
    return judgement.verdict.value, judgement.life


@pytest.mark.parametrize(("make", "expected"), OWNERS.values(), ids=OWNERS)
def test_c3_a_hostile_owner_file_proves_nothing_and_its_lock_still_answers(
    store: FileClaimStore, live: Live, make: Make, expected: tuple[str, str]
) -> None:
    lock, other = live(), live()
    grant = granted(store.take("r1", lock.owner))
    make(owner_file(store, lock.owner))

    # Refused is not damaged: the next sweep may read where its socket is.
    error = StoreUnavailable if make is refuse else ClaimUnreadable
    with pytest.raises(error, match=lock.owner.nonce):
        store.owner(lock.owner.nonce)
    listed = list(store.owners())
    assert other.identity in listed
    assert str(owner_file(store, lock.owner)) in [
        bad.path for bad in listed if isinstance(bad, Unreadable)
    ]
    assert judged(store, lock.owner) == expected
    assert sweeping(store).freed == ()
    assert store.stands(grant)

    lock.close()
    dead = AFTER_DEATH.get(expected, expected)
    assert judged(store, lock.owner) == dead
    assert sweeping(store).freed == ((grant.claim,) if dead[0] == "dead" else ())
    assert judged(store, other.owner) == ("alive", "held")


@pytest.mark.parametrize(
    ("path", "connect"),
    [
        pytest.param("/run/a\0b", "EINVAL", id="a NUL"),
        pytest.param("\0abstract", "EINVAL", id="the abstract namespace"),
        pytest.param("/run/\ud800", "EILSEQ", id="a lone surrogate"),
        pytest.param("/" + "x" * 107, "ENAMETOOLONG", id="108 bytes"),
        pytest.param("/" + "x" * 3000, "ENAMETOOLONG", id="3001 bytes"),
        pytest.param("/nowhere/\udcff", "ENOENT", id="no UTF-8"),
    ],
)
def test_c3_a_socket_path_that_no_file_can_have_is_unknown_and_the_lock_still_proves(
    store: FileClaimStore, live: Live, path: str, connect: str
) -> None:
    lock = live()
    raw = encode_identity(replace(lock.identity, socket=path))
    owner_file(store, lock.owner).write_bytes(raw)

    found = store.judge(lock.owner)
    alive = ("alive", "held") if connect == "ENOENT" else ("unknown", "not_tried")
    assert (found.verdict.value, found.life, found.connect) == (*alive, connect)
    assert store.proof_of_death(lock.owner) is None
    lock.close()
    assert store.proof_of_death(lock.owner)
    assert sweeping(store).sockets == ()


def test_c3_a_missing_owner_file_is_unknown(store: FileClaimStore, live: Live) -> None:
    lock = live()
    owner_file(store, lock.owner).unlink()
    lock.close()

    assert store.owner(lock.owner.nonce) is None
    assert judged(store, lock.owner) == ("unknown", "missing")


def test_c3_a_copy_of_an_owner_file_takes_nothing_from_its_living_worker(
    store: FileClaimStore, live: Live
) -> None:
    """Nobody holds a lock on the copy, and its worker lives: nothing of its own may be swept."""
    lock = live()
    grant = granted(store.take("r1", lock.owner))
    bind(Path(lock.identity.socket))
    path = owner_file(store, lock.owner)
    shutil.copy(path, aside(path))
    aside(path).rename(path)
    copy = replace(lock.owner, inode=path.stat().st_ino)

    assert judged(store, lock.owner) == judged(store, copy) == ("unknown", "replaced")
    swept = sweeping(store)
    assert (swept.freed, swept.owners, swept.sockets) == ((), (), ())
    assert Path(lock.identity.socket).is_socket()
    assert store.stands(grant)


# Epoch files. What stands goes on; nothing new is granted in that stripe until it is repaired.

VICTIM = "victim"
EPOCH_FILES = {
    **NO_FILES,
    **BYTES,
    "another number": lambda path: path.write_bytes(b"1" + path.read_bytes()[1:]),
    "above 2**63": lambda path: path.write_bytes(encode_highest(2**63)),
    "of 20 digits": lambda path: path.write_bytes(encode_highest(10**19)),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("make", EPOCH_FILES.values(), ids=EPOCH_FILES)
def test_c2_a_hostile_epoch_file_stops_the_grants_of_its_stripe_alone_until_repaired(
    store: FileClaimStore, live: Live, tree: Tree, make: Make
) -> None:
    neighbour = next(f"x{n}" for n in range(9999) if stripe_of(f"x{n}") == stripe_of(VICTIM))
    owner = live().owner
    first, kept = granted(store.take(VICTIM, owner)), granted(store.take(neighbour, owner))
    path = store.state_dir / "epochs" / stripe_of(VICTIM)
    make(path)
    before = tree(store.state_dir)

    for attempt in (
        lambda: store.take(VICTIM, owner),
        lambda: store.force(VICTIM, expect_epoch=first.claim.claim_epoch, reason="test"),
    ):
        with pytest.raises(StoreUnavailable, match=rf"{path} .*EBADMSG.*verify --repair"):
            attempt()
    assert tree(store.state_dir) == before
    assert store.stands(first)
    assert store.release(first)
    assert isinstance(store.take("elsewhere", owner), Grant)

    if path.is_dir():
        path.rmdir()
    repair(store)
    again = granted(store.take(VICTIM, owner))
    assert again.claim.claim_epoch > first.claim.claim_epoch
    assert store.stands(kept)


def test_c7_an_epoch_file_that_may_not_be_read_is_refused_and_works_again(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    first = granted(store.take(VICTIM, owner)).claim
    path = store.state_dir / "epochs" / stripe_of(VICTIM)
    for mode in (0, 0o400):
        path.chmod(mode)
        with pytest.raises(StoreUnavailable, match=r"EACCES; give the directory back"):
            store.take(VICTIM, owner)
        assert store.read(VICTIM) == first
    path.chmod(0o600)

    assert granted(store.take(VICTIM, owner)).claim.claim_epoch > first.claim_epoch


# FORMAT. A store that cannot say what it is is not opened, in no boot, and not mended.

FORMATS: dict[str, tuple[Make, str]] = {
    **{name: (make, r"damaged \(not_a_file\): restore it") for name, make in NO_FILES.items()},
    **{name: (make, r"damaged \(\w+\): restore it from a backup") for name, make in BYTES.items()},
    "a file of mode 0000": (refuse, r"EACCES, .*FORMAT.*a --state-dir that this user may write"),
    "a newer format": (lambda path: resealed(path, v=2), r"written by a newer version: run that"),
    "a version that never was": (lambda path: resealed(path, v=0), r"damaged \(version\)"),
    "no store_id": (lambda path: resealed(path, store_id=None), r"damaged \(field\)"),
    "16 stripes": (lambda path: resealed(path, stripes=16), r"16 stripes, this version uses 256"),
    "stripes without end": (lambda path: resealed(path, stripes=float("inf")), "field"),
    "stripes that are no number": (lambda path: resealed(path, stripes=float("nan")), "field"),
    "a list of stripes": (lambda path: resealed(path, stripes=[256]), "field"),
    "generation 0": (lambda path: resealed(path, generation=0), r"damaged \(field\): restore"),
    "a generation below 0": (lambda path: resealed(path, generation=-7), "field"),
    "a generation of 40 bits": (lambda path: resealed(path, generation=2**40), "field"),
    "a generation without end": (lambda path: resealed(path, generation=float("inf")), "field"),
    "a generation in words": (lambda path: resealed(path, generation="two"), "field"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_c2_a_store_with_a_hostile_format_is_refused_and_unchanged(
    store: FileClaimStore, live: Live, tree: Tree, name: str
) -> None:
    make, message = FORMATS[name]
    owner = live().owner
    grant = granted(store.take("r1", owner))
    make(store.state_dir / "FORMAT")
    (store.state_dir / "locks" / "format").unlink()  # not even this is made anew
    before = tree(store.state_dir)

    for service, host in (("model", None), (None, None), ("model", REBOOTED)):
        with pytest.raises(StoreRefused, match=message):
            FileClaimStore.open(store.state_dir, service=service, host=host)
    with pytest.raises(StoreRefused, match=message):
        FileClaimStore.inspect(store.state_dir)
    with pytest.raises(StoreUnavailable, match=r"ESTALE; stop all workers of this store"):
        store.take("r2", owner)
    assert store.stands(grant)
    assert tree(store.state_dir) == before


def test_c2_a_store_whose_generations_are_used_up_is_refused_in_the_next_boot(
    store: FileClaimStore, live: Live, tree: Tree
) -> None:
    owner = live().owner
    resealed(store.state_dir / "FORMAT", generation=GENERATION_MAX)
    last = granted(store.take("r1", owner)).claim
    before = tree(store.state_dir)

    with pytest.raises(StoreRefused, match=r"generations are used up: start a new store"):
        FileClaimStore.open(store.state_dir, service="model", host=REBOOTED)

    assert tree(store.state_dir) == before
    assert last.claim_epoch == (GENERATION_MAX << 32) + 1
    again = FileClaimStore.open(store.state_dir, service="model")
    assert granted(again.take("r1", owner)).claim.claim_epoch == last.claim_epoch + 1

    path = store.state_dir / "epochs" / stripe_of("r1")
    path.write_bytes(b"")
    with pytest.raises(StoreRefused, match="generations are used up"):
        repair(again)
    assert path.read_bytes() == b""


def test_c5_one_claim_of_a_newer_format_does_not_keep_a_store_from_being_opened(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    store.take("r1", owner)
    newer = Path(store.path_of("r1"))
    resealed(newer, v=2)

    again = FileClaimStore.open(store.state_dir, service="model")

    with pytest.raises(ClaimUnreadable, match="run that version"):
        again.take("r1", owner)
    other = granted(again.take("r2", owner)).claim
    assert set(again.survey()) == {Unreadable(path=str(newer), code="newer_format"), other}
    assert isinstance(other, Claim)
