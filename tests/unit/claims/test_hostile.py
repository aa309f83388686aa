# SPDX-License-Identifier: Apache-2.0
"""Ids and claim files that mean harm: each is refused alone, and nothing else stops (C1, C5)."""

import hashlib
import json
import os
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
    ForceRefused,
    Grant,
    LifeLock,
    Moved,
    Owner,
    ProofOfDeath,
    Unreadable,
    sweep,
)
from rollout_router.claims.names import stripe_of
from rollout_router.claims.record import encode_claim

pytestmark = pytest.mark.usefixtures("unprivileged")  # root is refused nothing

Live = Callable[[], LifeLock]
Tree = Callable[[Path], dict[str, Any]]
VICTIM = "victim"
NEIGHBOUR = next(f"x{n}" for n in range(9999) if stripe_of(f"x{n}") == stripe_of(VICTIM))


def granted(taken: Grant | Moved) -> Grant:
    assert isinstance(taken, Grant)
    return taken


NO_IDS = {
    "empty": "",
    "a dot": ".",
    "two dots": "..",
    "a path upwards": "../claims",
    "an absolute path": "/etc/passwd",
    "a separator": "a/b",
    "another separator": "a\\b",
    "a NUL": "a\0b",
    "a NUL at the end": "a\0",
    "a newline at the end": "r1\n",
    "a newline at the front": "\nr1",
    "a carriage return": "r1\r",
    "a space": "r 1",
    "a percent sign": "r%31",
    "a hidden name": ".tmp.r1",
    "an option": "-rf",
    "an underscore in front": "_41",
    "201 bytes": "a" * 201,
    "a megabyte": "a" * 2**20,
    "a letter that is composed": "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "a letter that is decomposed": "e\N{COMBINING ACUTE ACCENT}",
    "a Cyrillic look-alike": "r\N{CYRILLIC SMALL LETTER A}",
    "the Kelvin sign": "\N{KELVIN SIGN}1",
    "a long s": "\N{LATIN SMALL LETTER LONG S}1",
    "a fullwidth digit": "r\N{FULLWIDTH DIGIT ONE}",
    "an Arabic digit": "r\N{ARABIC-INDIC DIGIT ONE}",
    "a one dot leader": "r\N{ONE DOT LEADER}1",
    "a soft hyphen": "r\N{SOFT HYPHEN}1",
    "a lone surrogate": "r\ud800",
    "a byte that is no UTF-8": "r\udcff",
}


def test_c1_what_is_no_id_touches_no_file(store: FileClaimStore, live: Live, tree: Tree) -> None:
    lock = live()
    grant = granted(store.take("r1", lock.owner))
    before = tree(store.state_dir)
    attempts: tuple[Callable[[str], object], ...] = (
        store.read,
        lambda rollout_id: store.take(rollout_id, lock.owner),
        lambda rollout_id: store.force(rollout_id, expect_epoch=None, reason="test"),
        lambda rollout_id: store.forceable(rollout_id, expect_epoch=1),
        lambda rollout_id: replace(grant.claim, rollout_id=rollout_id),
    )

    for what, rollout_id in NO_IDS.items():
        for attempt in attempts:
            with pytest.raises(ValueError, match="not a rollout id"):
                attempt(rollout_id)
        assert tree(store.state_dir) == before, what


def test_c1_ids_that_look_alike_never_meet(store: FileClaimStore, live: Live) -> None:
    ids = ["r1", "R1", "r.1", "r-1", "r_1", "r1.", "r1-", "r1_", "r.r1", "r_2e1", "r_2E1", "rl",
           "rI", "a", "A", "a..b", "a.b", "a_b", "a__b", "41", "4_1", "a" * 200, "A" * 200,
           "a" * 199, "A" * 199, "A" * 199 + "B", "A" * 199 + "b", "B" + "A" * 199,
           "h" + "0" * 64, "_".join("a" * 60), ".".join("a" * 60)]  # fmt: skip
    owner = live().owner
    claims = {rollout_id: granted(store.take(rollout_id, owner)) for rollout_id in ids}

    assert len({store.path_of(rollout_id).casefold() for rollout_id in ids}) == len(ids)
    for rollout_id, grant in claims.items():
        assert store.read(rollout_id) == grant.claim
        assert store.stands(grant)
    for done, (rollout_id, grant) in enumerate(claims.items(), 1):
        assert store.release(grant)
        assert store.read(rollout_id) is None
        assert len(list(store.survey())) == len(ids) - done


def sealed(body: bytes) -> bytes:
    """A record with a true checksum over *body*, whatever that is."""
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def with_fields(raw: bytes, **fields: Any) -> bytes:
    record = {**json.loads(raw), **fields}
    del record["sha256"]
    return sealed(json.dumps(record, separators=(",", ":"))[:-1].encode())


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def kept(path: Path) -> Path:
    """The true claim, out of the way."""
    return path.parents[2] / "kept"


def written(of: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(of(kept(path).read_bytes()))


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("a thesis")


BYTES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty": ("empty", lambda _: b""),
    "huge": ("too_large", lambda raw: raw + b" " * 2**22),
    "400 kB of digits": ("too_large", lambda _: b"9" * 400_000),
    "brackets": ("checksum", lambda _: b"[" * 4096),
    "brackets, sealed": ("not_json", lambda _: sealed(b'{"v":1,"kind":' + b"[" * 3900)),
    "an epoch of 3000 digits": ("field", lambda raw: with_fields(raw, claim_epoch=10**2999)),
    "an epoch without end": ("field", lambda raw: with_fields(raw, claim_epoch=float("inf"))),
    "an inode that is no number": ("field", lambda raw: with_fields(raw, owner={
        "nonce": "a", "inode": float("nan")})),
    "a nonce upwards": ("field", lambda raw: with_fields(raw, owner={
        "nonce": "../../x", "inode": 1})),
    "a nonce with a surrogate": ("field", lambda raw: with_fields(raw, owner={
        "nonce": "\ud800", "inode": 1})),
    "a time in month 13": ("field", lambda raw: with_fields(raw, at="2026-13-01T00:00:00Z")),
    "a time in year 0": ("field", lambda raw: with_fields(raw, at="0000-01-01T00:00:00Z")),
    "of a newer format": ("newer_format", lambda raw: with_fields(raw, v=2)),
    "of another rollout": ("wrong_name", lambda raw: with_fields(raw, rollout_id=NEIGHBOUR)),
}  # fmt: skip
PUTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a link to the claim": ("not_a_file", lambda path: path.symlink_to(kept(path))),
    "a dangling link": ("not_a_file", lambda path: path.symlink_to("nowhere")),
    "a loop of links": ("not_a_file", lambda path: path.symlink_to(path)),
    "a FIFO": ("not_a_file", os.mkfifo),
    "a socket": ("not_a_file", bind),
    "a directory": ("not_a_file", Path.mkdir),
    "a full directory": ("not_a_file", full_directory),
    "a file of mode 0000": ("EACCES", lambda path: path.touch(mode=0)),
}
HOSTILE: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{name: (code, written(of)) for name, (code, of) in BYTES.items()},
    **PUTS,
}


class Scene:
    """A claim of a dead worker with something else in its place, and others around it."""

    def __init__(self, store: FileClaimStore, live: Live) -> None:
        self.store = store
        self.alive, dead = live(), live()
        self.grant = granted(store.take(VICTIM, dead.owner))
        self.session = granted(store.take("session", dead.owner, kind="session"))
        self.others = [
            granted(store.take(rollout_id, self.alive.owner)) for rollout_id in (NEIGHBOUR, "far")
        ]
        dead.close()
        proof = store.proof_of_death(dead.owner)
        assert proof
        self.dead: Owner = dead.owner
        self.proof: ProofOfDeath = proof
        self.path = Path(store.path_of(VICTIM))

    def put(self, make: Callable[[Path], object]) -> None:
        self.path.rename(kept(self.path))
        make(self.path)

    def attempts(self) -> dict[str, Callable[[], object]]:
        """Everything that looks at one claim."""
        seen = self.grant.claim
        return {
            "read": lambda: self.store.read(VICTIM),
            "take": lambda: self.store.take(VICTIM, self.alive.owner),
            "take_over": lambda: self.store.take_over(seen, self.alive.owner, self.proof),
            "stands": lambda: self.store.stands(self.grant),
            "release": lambda: self.store.release(self.grant),
            "reap": lambda: self.store.reap(seen, self.proof),
        }

    def epochs(self) -> bytes:
        return (self.store.state_dir / "epochs" / stripe_of(VICTIM)).read_bytes()


@pytest.fixture
def scene(store: FileClaimStore, live: Live) -> Scene:
    return Scene(store, live)


@pytest.mark.parametrize(("code", "make"), HOSTILE.values(), ids=HOSTILE)
def test_c5_a_hostile_claim_fails_closed_alone_and_unchanged(
    scene: Scene, tree: Tree, code: str, make: Callable[[Path], object]
) -> None:
    scene.put(make)
    store, found = scene.store, Unreadable(path=str(scene.path), code=code)
    before, epochs = tree(scene.path.parent), scene.epochs()

    for attempt in scene.attempts().values():
        with pytest.raises(ClaimUnreadable, match="other rollouts are not affected") as raised:
            attempt()
        assert (raised.value.path, raised.value.code) == (str(scene.path), code)
    with pytest.raises(ForceRefused):
        store.force(VICTIM, expect_epoch=scene.grant.claim.claim_epoch, reason="test")

    survey = list(store.survey())
    assert [record for record in survey if isinstance(record, Unreadable)] == [found]
    assert sorted(c.rollout_id for c in survey if isinstance(c, Claim)) == sorted(
        [NEIGHBOUR, "far", "session"]
    )
    swept = sweep(store, now=datetime.now(UTC), tombstone_age_max=timedelta(hours=1))
    assert swept.unreadable == (found,)
    assert swept.lost == (scene.session.claim,)
    assert swept.owners == ()  # the claim that cannot be read may name it
    assert (tree(scene.path.parent), scene.epochs()) == (before, epochs)
    for other in scene.others:
        assert store.stands(other)
        assert store.release(granted(store.take(other.claim.rollout_id, scene.alive.owner)))


FORCED = {name: HOSTILE[name] for name in HOSTILE if name != "of a newer format"}


@pytest.mark.parametrize("name", [name for name in FORCED if "directory" not in name])
def test_c2_force_frees_the_rollout_of_a_hostile_claim(scene: Scene, name: str) -> None:
    _, make = FORCED[name]
    scene.put(make)
    true = kept(scene.path).read_bytes()

    assert scene.store.forceable(VICTIM, expect_epoch=None) is None
    fenced = scene.store.force(VICTIM, expect_epoch=None, reason="test")

    assert fenced > scene.grant.claim.claim_epoch
    assert scene.store.read(VICTIM) is None
    assert not scene.store.stands(scene.grant)
    assert granted(scene.store.take(VICTIM, scene.alive.owner)).claim.claim_epoch > fenced
    assert kept(scene.path).read_bytes() == true


@pytest.mark.parametrize("name", [name for name in FORCED if "directory" in name])
def test_c2_force_removes_no_directory_and_the_operator_moves_it_away(
    scene: Scene, tree: Tree, name: str
) -> None:
    _, make = FORCED[name]
    scene.put(make)
    before = tree(scene.path.parent)

    with pytest.raises(ForceRefused, match=rf"{scene.path} is a directory.*move it away"):
        scene.store.force(VICTIM, expect_epoch=None, reason="test")
    assert tree(scene.path.parent) == before

    scene.path.rename(scene.path.parents[2] / "moved")
    again = granted(scene.store.take(VICTIM, scene.alive.owner))
    assert again.claim.claim_epoch > scene.grant.claim.claim_epoch
    assert not scene.store.stands(scene.grant)


def test_c5_a_claim_cut_off_anywhere_is_refused_or_whole(scene: Scene) -> None:
    raw = scene.path.read_bytes()
    whole = len(raw.rstrip())

    for length in range(len(raw)):
        scene.path.write_bytes(raw[:length])
        if length >= whole:  # what is missing is filling
            assert scene.store.read(VICTIM) == scene.grant.claim
            assert scene.store.stands(scene.grant)
            continue
        with pytest.raises(ClaimUnreadable):
            scene.store.read(VICTIM)
        with pytest.raises(ClaimUnreadable):
            scene.store.stands(scene.grant)


@pytest.mark.parametrize("turned", [0x01, 0x20, 0x80, 0xFF])
def test_c5_a_claim_with_a_byte_turned_anywhere_is_refused(scene: Scene, turned: int) -> None:
    raw = scene.path.read_bytes()
    for at in range(len(raw.rstrip())):
        scene.path.write_bytes(raw[:at] + bytes([raw[at] ^ turned]) + raw[at + 1 :])
        with pytest.raises(ClaimUnreadable):
            scene.store.read(VICTIM)

    scene.path.write_bytes(raw)
    assert scene.store.stands(scene.grant)


def test_c1_a_hard_link_to_another_claim_claims_nothing(scene: Scene) -> None:
    raw = encode_claim(scene.others[0].claim)
    scene.path.unlink()
    os.link(scene.store.path_of(NEIGHBOUR), scene.path)

    for attempt in scene.attempts().values():
        with pytest.raises(ClaimUnreadable, match="wrong_name"):
            attempt()
    scene.store.force(VICTIM, expect_epoch=None, reason="test")
    assert Path(scene.store.path_of(NEIGHBOUR)).read_bytes() == raw
    assert scene.store.stands(scene.others[0])


def test_c5_a_file_with_a_name_that_no_rollout_has_is_named_and_left(scene: Scene) -> None:
    names = [b"\xff", b"r.\n", b"r.VICTIM", b"r" * 255, b"r._41_.h"]
    directory = os.fsencode(scene.path.parent)
    for name in names:
        with open(os.path.join(directory, name), "wb") as file:  # noqa: PTH123,PTH118 - bytes
            file.write(encode_claim(scene.grant.claim))

    found = [record for record in scene.store.survey() if isinstance(record, Unreadable)]

    assert {(os.fsencode(os.path.basename(bad.path)), bad.code) for bad in found} == {  # noqa: PTH119 - bytes
        (name, "wrong_name") for name in names
    }
    assert scene.store.stands(scene.grant)
