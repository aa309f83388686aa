# SPDX-License-Identifier: Apache-2.0
"""Everything that is wrong with a store is named, and nothing that is not (C1, C2, C5)."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Finding,
    Gate,
    Grant,
    LifeLock,
    Moved,
    free_orphans,
    inspect_store,
    repair,
    sweep,
    sweep_alone,
    write_gate,
)
from rollout_router.claims.creation import write_format
from rollout_router.claims.envelope import seal_envelope
from rollout_router.claims.epochs import decode_highest, encode_highest, floor_of
from rollout_router.claims.inspection import Inspection
from rollout_router.claims.layout import read_format
from rollout_router.claims.record import encode_claim, encode_identity

Live = Callable[[], LifeLock]
DAY = datetime.now(UTC) - datetime.fromisoformat("2000-01-01T00:00:00Z")


def claimed(taken: Grant | Moved) -> Claim:
    assert isinstance(taken, Grant)
    return taken.claim


def look(store: FileClaimStore, step: Callable[[], object] = lambda: None) -> Inspection:
    return inspect_store(store, step=step)


def named(store: FileClaimStore) -> set[tuple[str, str]]:
    root = store.state_dir
    return {
        (os.path.relpath(bad.path, root), bad.code) for bad in look(store).findings if bad.remedy
    }


def test_c5_nothing_is_wrong_with_a_store_in_use(store: FileClaimStore, live: Live) -> None:
    owner = live().owner  # and one without claims
    live()
    for n in range(20):
        store.take(f"r{n}", owner)
    session = store.take("s", owner, kind="session")
    assert isinstance(session, Grant)
    store.lose(session, reason="test")
    write_gate(store.state_dir, Gate(open=False, by="operator", why="test"))
    sweep_alone(store, now=datetime.now(UTC), tombstone_age_max=DAY)
    assert look(store).findings == ()


def remove(path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fill(path: Path) -> None:
    path.write_bytes(b"x")


def open_up(path: Path) -> None:
    path.chmod(0o755)


def as_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(mode=0o700)


def as_link(path: Path) -> None:
    remove(path)
    path.symlink_to("/etc/hostname")


def as_file(path: Path) -> None:
    remove(path)
    path.touch(0o600)


def of_nobody(path: Path) -> None:
    os.chown(path, 65534, -1)


def wrong_gate(path: Path) -> None:
    path.write_bytes(seal_envelope({"open": "yes"}))
    path.chmod(0o600)


CASES = [
    (".", open_up, "mode"),
    ("owners", open_up, "mode"),
    ("owners", remove, "missing"),
    ("owners", as_file, "not_a_directory"),
    ("claims/07", remove, "missing"),
    ("claims/07", as_link, "not_a_directory"),
    ("claims/07", open_up, "mode"),
    ("FORMAT", open_up, "mode"),
    ("gate", fill, "checksum"),
    ("gate", wrong_gate, "field"),
    ("gate", as_directory, "not_a_file"),
    ("locks/07", remove, "missing"),
    ("locks/07", fill, "not_empty"),
    ("locks/07", as_directory, "not_a_file"),
    ("locks/07", open_up, "mode"),
    ("locks/format", remove, "missing"),
    ("epochs/07", remove, "missing"),
    ("epochs/07", empty, "checksum"),
    ("epochs/07", as_directory, "not_a_file"),
    ("epochs/07", open_up, "mode"),
    ("{claim}", empty, "empty"),
    ("{claim}", fill, "checksum"),
    ("{claim}", as_directory, "not_a_file"),
    ("{claim}", as_link, "not_a_file"),
    ("{claim}", open_up, "mode"),
    ("{owner}", fill, "checksum"),
    ("{owner}", open_up, "mode"),
    ("stray", as_directory, "unknown_file"),
    ("locks/stray", fill, "unknown_file"),
    ("epochs/stray", fill, "unknown_file"),
    ("claims/stray", as_directory, "unknown_file"),
    ("claims/07/stray", fill, "unknown_file"),
    ("owners/.stray", fill, "unknown_file"),
    (".tmp.x", fill, "temporary"),
    ("claims/07/.tmp.x", fill, "temporary"),
    ("owners/.tmp.x", fill, "temporary"),
    ("epochs/.tmp.x", fill, "temporary"),
]


@pytest.mark.parametrize(("part", "damage", "code"), CASES)
def test_c5_each_damage_is_named_by_a_code_with_what_to_do(
    store: FileClaimStore, live: Live, *, part: str, damage: Callable[[Path], None], code: str
) -> None:
    owner = live().owner
    store.take("r", owner)
    claim = os.path.relpath(store.path_of("r"), store.state_dir)
    path = part.format(claim=claim, owner=f"owners/{owner.nonce}")

    damage(store.state_dir / path)

    assert (path, code) in named(store)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("part", ["claims", "epochs/07", "FORMAT"])
def test_c1_what_belongs_to_another_user_is_named(store: FileClaimStore, part: str) -> None:
    of_nobody(store.state_dir / part)
    assert named(store) == {(part, "wrong_user")}


def test_c5_a_writer_at_work_leaves_nothing_wrong(store: FileClaimStore) -> None:
    paths = [store.state_dir / "claims" / "07" / ".tmp.x", store.state_dir / "owners" / ".tmp.x"]
    for path in paths:
        path.touch(0o600)
    with store.holding_stripe("07"), store.holding_format():
        assert look(store).findings == ()
    found = look(store).findings
    assert [(bad.path, bad.code) for bad in found] == [(str(p), "temporary") for p in paths[::-1]]


def test_c5_what_a_writer_renamed_meanwhile_is_not_named(store: FileClaimStore, live: Live) -> None:
    """A name that was listed and is gone at the end of the pass is nobody's leftover."""
    store.take("r", live().owner)
    temporary = Path(store.path_of("r")).with_name(".tmp.x")
    temporary.touch(0o600)
    assert look(store, step=lambda: temporary.unlink(missing_ok=True)).findings == ()


def only(store: FileClaimStore) -> Finding:
    (found,) = look(store).findings
    return found


def test_c2_an_epoch_file_that_is_behind_a_claim_is_found_and_mended_upwards(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    first, second = (claimed(store.take("r", owner)) for _ in range(2))
    path = store.state_dir / "epochs" / Path(store.path_of("r")).parent.name
    path.write_bytes(encode_highest(first.claim_epoch))

    found = look(store)

    assert [(bad.path, bad.code) for bad in found.findings] == [(str(path), "behind")]
    assert found.behind == {path.name: second.claim_epoch}
    assert [bad.code for bad in repair(store, behind=found.behind)] == ["behind"]
    assert look(store).findings == ()
    assert claimed(store.take("r", owner)).claim_epoch > floor_of(2)


def test_c2_after_a_power_cut_the_generation_stands_above_a_file_that_is_behind(
    store: FileClaimStore, live: Live
) -> None:
    claim = claimed(store.take("r", live().owner))
    path = store.state_dir / "epochs" / Path(store.path_of("r")).parent.name
    path.write_bytes(encode_highest(0))
    repair_is_due = [bad.code for bad in look(store).findings]
    before = replace(claim, claim_epoch=floor_of(1) - 1)
    Path(store.path_of("r")).write_bytes(encode_claim(before))
    assert (repair_is_due, look(store).findings) == (["behind"], ())


def raised(store: FileClaimStore) -> bytes:
    """FORMAT as it was, in a store whose generation is one higher now."""
    path = store.state_dir / "FORMAT"
    before = path.read_bytes()
    fields = read_format(store.state_dir)
    write_format(store.state_dir, replace(fields, generation=fields.generation + 1))
    return before


@pytest.mark.parametrize("evidence", ["claim", "epoch"])
def test_c2_a_format_from_a_backup_is_named_and_raised_above_every_epoch_on_record(
    store: FileClaimStore, live: Live, evidence: str
) -> None:
    before = raised(store)
    owner = live().owner
    grant = store.take("r", owner)
    epoch = claimed(grant).claim_epoch
    assert epoch > floor_of(2)
    path = store.state_dir / "epochs" / Path(store.path_of("r")).parent.name
    if evidence == "claim":
        path.write_bytes(encode_highest(0))
    else:
        assert isinstance(grant, Grant)
        store.release(grant)
        assert decode_highest(path.read_bytes()) == epoch
    assert [bad for bad in look(store).findings if bad.path.endswith("FORMAT")] == []

    (store.state_dir / "FORMAT").write_bytes(before)
    found = look(store)
    (behind,) = (bad for bad in found.findings if bad.path == f"{store.state_dir}/FORMAT")
    assert (behind.code, "verify --repair" in behind.remedy) == ("behind", True)
    repair(store, behind=found.behind)
    assert look(store).findings == ()
    for stripe in ("r", "elsewhere"):
        assert claimed(store.take(stripe, owner)).claim_epoch > floor_of(3)


@pytest.mark.parametrize("name", ["README", "{nonce}"])
def test_c3_an_owner_file_that_does_not_say_whose_it_is_is_one_finding(
    store: FileClaimStore, live: Live, name: str
) -> None:
    """Nobody holds its lock; that makes no dead worker of a file that nobody can read."""
    lock = live()
    lock.close()
    path = store.state_dir / "owners" / name.format(nonce=lock.owner.nonce)
    if name == "README":
        (store.state_dir / "owners" / lock.owner.nonce).unlink()
    path.write_bytes(b"hands off")
    path.chmod(0o600)
    found = only(store)
    assert (found.path, found.code) == (str(path), "checksum")
    assert f"is dead, or that it never was a worker's, remove it: rm {path}" in found.remedy


def test_c3_a_claim_whose_owner_file_is_gone_is_named_with_the_way_out(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    store.take("r", owner)
    (store.state_dir / "owners" / owner.nonce).unlink()
    found = only(store)
    assert (found.path, found.code) == (store.path_of("r"), "owner_missing")
    assert f"claims reap --owner-missing {owner.nonce} --yes" in found.remedy


def test_c3_a_claim_whose_owner_file_was_replaced_is_named(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    store.take("r", owner)
    path = store.state_dir / "owners" / owner.nonce
    raw = path.read_bytes()
    path.rename(store.state_dir.parent / "aside")
    path.write_bytes(raw)
    path.chmod(0o600)
    found = {bad.code: bad for bad in look(store).findings}
    assert found["owner_replaced"].path == store.path_of("r")
    assert found["copied"].path == str(path)
    assert len(found) == 2
    for bad in found.values():
        assert f"claims reap --owner-missing {owner.nonce} --yes" in bad.remedy
    free_orphans(store, owner.nonce, dry_run=False, step=lambda: None)
    left = only(store)
    assert (left.code, f"rm {path}" in left.remedy) == ("copied", True)
    path.unlink()
    assert look(store).findings == ()


def test_c3_a_copy_of_another_boot_is_dead_and_the_sweeper_s(
    store: FileClaimStore, live: Live
) -> None:
    """A store that was copied to another disk, and then the host was started anew."""
    lock = live()
    store.take("r", lock.owner)
    path = store.state_dir / "owners" / lock.owner.nonce
    path.rename(store.state_dir.parent / "aside")
    path.write_bytes(encode_identity(replace(lock.identity, boot_id="earlier")))
    path.chmod(0o600)
    assert look(store).findings == ()
    sweep(store, now=datetime.now(UTC), tombstone_age_max=DAY)
    assert not path.exists()
    assert store.read("r") is None


def test_c3_a_claim_that_was_released_meanwhile_has_no_missing_owner(
    store: FileClaimStore, live: Live
) -> None:
    """A worker that leaves while the pass goes on: first its claim goes, then its file."""
    lock = live()
    grants = [store.take(f"r{n}", lock.owner) for n in range(2)]
    (store.state_dir / "owners" / lock.owner.nonce).unlink()

    def leave() -> None:
        for grant in grants:
            assert isinstance(grant, Grant)
            store.release(grant)

    steps: Iterator[Callable[[], None]] = iter([lambda: None, leave])

    def step() -> None:
        next(steps)()

    assert look(store, step=step).findings == ()


def test_c3_an_owner_file_of_the_dead_is_named_once_no_claim_names_it(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    grant = store.take("r", lock.owner)
    assert isinstance(grant, Grant)
    lock.close()
    assert look(store).findings == ()
    store.release(grant)
    found = only(store)
    assert (Path(found.path).name, found.code) == (lock.owner.nonce, "dead_owner")
    Path(store.path_of("r")).write_bytes(b"")  # it may name that worker
    Path(store.path_of("r")).chmod(0o600)
    assert only(store).code == "empty"
