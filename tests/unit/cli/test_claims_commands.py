# SPDX-License-Identifier: Apache-2.0
"""What each command about claims answers, in one process (C2, C3, C5)."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    StoreUnavailable,
    new_nonce,
    stripe_of,
)
from rollout_router.claims.epochs import encode_highest
from rollout_router.claims.record import encode_claim, encode_identity
from rollout_router.cli.main import main

PROGRAM = "from rollout_router.cli.main import main; main()"


class Store:
    """A store, its workers, and the commands about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claims = FileClaimStore.open(folder / "state", service="model")
        self.root = self.claims.state_dir
        self.workers: list[LifeLock] = []

    def worker(self) -> LifeLock:
        nonce = new_nonce()
        path = f"{self.folder}/{nonce}.sock"
        self.workers.append(LifeLock.acquire(self.claims, nonce=nonce, socket=path))
        return self.workers[-1]

    def take(self, rollout: str, worker: LifeLock, **options: Any) -> Claim:
        taken = self.claims.take(rollout, worker.owner, **options)
        assert isinstance(taken, Grant)
        return taken.claim

    def put(self, claim: Claim) -> None:
        Path(self.claims.path_of(claim.rollout_id)).write_bytes(encode_claim(claim))

    def run(self, *arguments: str, **environment: str) -> Result:
        where = ("--state-dir", str(self.root))
        return CliRunner().invoke(main, [*arguments, *where], env=environment)

    def json(self, *arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json", **environment)
        assert done.exit_code == code, done.output
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["schema"] == 1
        return document


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    one = Store(folder)
    yield one
    for worker in one.workers:
        worker.close()


@pytest.fixture
def three(store: Store) -> dict[str, LifeLock]:
    """Three workers with a claim each: one lives, one is dead, of one nothing can be proven."""
    workers = {name: store.worker() for name in ("alive", "dead", "unknown")}
    for name, worker in workers.items():
        claim = store.take(name, worker)
        if name != "alive":
            store.put(replace(claim, at="2020-01-01T00:00:00Z"))
    workers["dead"].close()
    workers["unknown"].close(remove=True)
    return workers


def listed(document: dict[str, Any]) -> set[str]:
    return {claim["rollout_id"] for claim in document["claims"]}


def test_c3_a_list_says_what_is_known_of_each_owner(
    store: Store, three: dict[str, LifeLock]
) -> None:
    document = store.json("claims", "list")
    assert {c["rollout_id"]: c["verdict"] for c in document["claims"]} == {n: n for n in three}
    assert set(document["claims"][0]) >= {
        *("rollout_id", "claim_epoch", "state", "worker_id", "pid", "socket", "verdict"),
        "claimed_at",
    }
    assert document["unreadable"] == []


@pytest.mark.parametrize("verdict", ["alive", "dead", "unknown"])
def test_c3_a_list_can_be_narrowed(store: Store, three: dict[str, LifeLock], verdict: str) -> None:
    assert listed(store.json("claims", "list", "--verdict", verdict)) == {verdict}
    nonce = three[verdict].owner.nonce
    assert listed(store.json("claims", "list", "--worker", nonce)) == {verdict}
    assert listed(store.json("claims", "list", ROLLOUT_ROUTER_WORKER=nonce)) == {verdict}
    other = {"alive": "dead", "dead": "unknown", "unknown": "alive"}[verdict]
    both = store.json("claims", "list", "--worker", nonce, "--verdict", other)
    assert listed(both) == set()


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(("age", "old"), [("1d", {"dead", "unknown"}), ("999999999d", set())])
def test_c3_a_list_can_be_of_what_is_old(store: Store, age: str, old: set[str]) -> None:
    assert listed(store.json("claims", "list", "--older-than", age)) == old
    assert listed(store.json("claims", "list", ROLLOUT_ROUTER_OLDER_THAN=age)) == old


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--older-than", "yesterday"), "as in 30m"),
        (("--verdict", "sleeping"), "'unknown'"),
        (("--worker", "../x"), "no worker's nonce"),
        (("--rows", "0"), "1<=x<=10000"),
    ],
)
def test_c3_a_filter_that_means_nothing_is_an_error_of_usage(
    store: Store, arguments: tuple[str, ...], said: str
) -> None:
    done = store.run("claims", "list", *arguments)
    assert (done.exit_code, said in done.stderr) == (2, True)


def test_c3_a_table_is_bounded_and_says_what_it_left_out(store: Store) -> None:
    worker = store.worker()
    for n in range(5):
        store.take(f"r{n}", worker)
    done = store.run("claims", "list", "--rows", "2").stdout
    assert ["r0" in done, "r1" in done, "r2" in done] == [True, True, False]
    assert "5 claims: owners 5 alive" in done
    assert "3 of them are not in the table" in done
    assert "--json" in done
    assert "not in the table" not in store.run("claims", "list").stdout
    assert len(store.json("claims", "list", "--rows", "2")["claims"]) == 5


def test_c3_show_names_every_piece_of_evidence(store: Store) -> None:
    worker = store.worker()
    claim = store.take("r", worker)
    stripe = Path(store.claims.path_of("r")).parent.name
    with store.claims.holding_stripe(stripe):
        document = store.json("claims", "show", "r")
        text = store.run("claims", "show", "r").stdout
    assert document["claim"]["claim_epoch"] == claim.claim_epoch
    evidence = document["evidence"]
    mine = [{"pid": os.getpid(), "command": evidence["process"]["command"]}]
    assert (evidence["connect"], evidence["life_lock"]) == ("ENOENT", "held")
    assert (evidence["checksum"], evidence["file"]["mode"]) == ("holds", "0600")
    assert evidence["process"]["state"] == "running"
    assert evidence["process"]["started_at"] == evidence["owner"]["started_at"]
    assert evidence["stripe_lock"]["holders"] == mine
    assert evidence["owner_file"]["holders"] == mine
    assert 0 <= evidence["age_s"] < 3600
    assert f"{os.getpid()} (" in text


def test_c3_show_says_that_a_pid_is_another_process_now(store: Store) -> None:
    worker = store.worker()
    store.take("r", worker)
    path = store.root / "owners" / worker.owner.nonce
    before = replace(worker.identity, started_at=1000.0)
    path.write_bytes(encode_identity(before))
    worker.close()
    evidence = store.json("claims", "show", "r")["evidence"]
    assert (evidence["life_lock"], evidence["process"]["state"]) == ("free", "recycled")
    assert "recycled" in store.run("claims", "show", "r").stdout


def test_c5_show_shows_what_it_can_of_an_unreadable_record(store: Store) -> None:
    claim = store.take("r", store.worker())
    path = Path(store.claims.path_of("r"))
    path.write_bytes(encode_claim(claim).replace(b'"owned"', b'"OWNED"'))
    document = store.json("claims", "show", "r", code=3)
    assert document["unreadable"] == {"path": str(path), "code": "checksum"}
    evidence = document["evidence"]
    assert (document["claim"], evidence["checksum"]) == (None, "fails")
    assert evidence["file"]["size_bytes"] == path.stat().st_size
    assert claim.owner.nonce in evidence["file"]["begins"]
    done = store.run("claims", "show", "r")
    assert done.exit_code == 3
    assert all(part in done.stdout for part in (str(path), "checksum", claim.owner.nonce))


def test_c3_show_of_no_claim_ends_with_1_and_the_same_shape(store: Store) -> None:
    none = store.json("claims", "show", "r", code=1)
    store.take("r", store.worker())
    there = store.json("claims", "show", "r")
    assert set(none) == set(there)
    assert set(none["evidence"]) == set(there["evidence"])
    assert none["claim"] is None


def test_c3_force_as_a_document_says_what_it_would_do_and_did(store: Store) -> None:
    worker = store.worker()
    claim = store.take("r", worker)
    arguments = ("claims", "force", "r", "--expect-epoch", str(claim.claim_epoch), "--reason", "x")
    dry = store.json(*arguments)
    assert (dry["done"], dry["fenced_epoch"]) == (False, None)
    assert (dry["worker_id"], dry["claim_epoch"]) == (worker.owner.nonce, claim.claim_epoch)
    done = store.json(*arguments, "--yes")
    assert (done["done"], done["fenced_epoch"]) == (True, claim.claim_epoch + 1)
    assert store.take("r", worker).claim_epoch > done["fenced_epoch"]


def test_c3_reap_of_a_missing_owner_is_a_dry_run_first(
    store: Store, three: dict[str, LifeLock]
) -> None:
    nonce = three["unknown"].owner.nonce
    arguments = ("claims", "reap", "--owner-missing", nonce)
    assert "freed: 1: unknown" in store.run(*arguments).stdout
    assert store.claims.read("unknown")
    done = store.json(*arguments, "--yes")
    assert (done["owner_missing"], done["freed"], done["moved"]) == (nonce, ["unknown"], [])
    assert listed(store.json("claims", "list")) == {"alive", "dead"}


@pytest.mark.parametrize("name", ["alive", "dead"])
@pytest.mark.parametrize("more", [(), ("--yes",)])
def test_c3_reap_of_a_missing_owner_is_refused_while_its_file_is_there(
    store: Store, three: dict[str, LifeLock], *, name: str, more: tuple[str, ...]
) -> None:
    done = store.run("claims", "reap", "--owner-missing", three[name].owner.nonce, *more)
    assert (done.exit_code, "is there" in done.stderr) == (4, True)
    assert store.claims.read(name)


@pytest.fixture
def orphans(store: Store) -> str:
    """The nonce of a worker with claims of three stripes, whose owner file is gone."""
    worker = store.worker()
    for n in range(3):
        store.take(f"r{n}", worker)
    assert len({stripe_of(f"r{n}") for n in range(3)}) == 3
    worker.close(remove=True)
    return worker.owner.nonce


def test_c7_reap_of_a_missing_owner_goes_on_past_what_it_cannot_free(
    store: Store, orphans: str
) -> None:
    (store.root / "epochs" / stripe_of("r1")).write_bytes(b"damaged")
    arguments = ("claims", "reap", "--owner-missing", orphans, "--yes")
    done = store.json(*arguments, code=1)
    assert set(done["freed"]) == {"r0", "r2"}
    (bad,) = done["failed"]
    assert (bad["rollout_id"], bad["code"]) == ("r1", "EBADMSG")
    assert listed(store.json("claims", "list")) == {"r1"}
    text = store.run(*arguments)
    assert (text.exit_code, "freed: 0" in text.stdout) == (1, True)
    assert f"could not be cleared: {store.claims.path_of('r1')} (EBADMSG)" in text.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_c7_reap_of_a_missing_owner_that_is_ended_says_what_it_did(
    store: Store, orphans: str, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    force, first = FileClaimStore.force, min((f"r{n}" for n in range(3)), key=stripe_of)

    def end_after_one(self: FileClaimStore, rollout_id: str, **options: Any) -> int:
        if rollout_id != first:
            raise StoreUnavailable("it is another store now", errno.ESTALE)
        return force(self, rollout_id, **options)

    monkeypatch.setattr(FileClaimStore, "force", end_after_one)
    arguments = ("claims", "reap", "--owner-missing", orphans, "--yes")
    done = store.run(*arguments, *["--json"] * as_json)
    assert done.exit_code == 1
    if as_json:
        assert json.loads(done.stdout)["freed"] == [first]
    else:
        assert f"freed: 1: {first}" in done.stdout
        assert "this much was done" in done.stdout
    assert "it is another store now" in done.stderr


def test_c3_show_and_verify_know_of_holders_in_another_pid_namespace(store: Store) -> None:
    """There the kernel's list of locks leaves out the processes of this one."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root and unshare")
    store.take("r", store.worker())
    stripe = Path(store.claims.path_of("r")).parent
    (stripe / ".tmp.x").touch(0o600)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        inside = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROGRAM)
        where = ("--state-dir", str(store.root))
        command = [*inside, "claims", *arguments, *where]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    with store.claims.holding_stripe(stripe.name):
        shown = json.loads(run("show", "r", "--json").stdout)["evidence"]
        text = run("show", "r").stdout
        busy = run("verify")
    for use in (shown["stripe_lock"], shown["owner_file"]):
        assert (use["holders"], use["waiters"]) == (None, None)
        assert "outside of this PID namespace" in use["unseen"]
    assert (shown["life_lock"], shown["process"]["state"]) == ("held", "unseen")
    assert "nobody" not in text
    assert (busy.returncode, busy.stderr) == (0, "")
    assert ".tmp.x (temporary)" in run("verify").stderr


def test_c2_verify_mends_what_is_behind_and_says_so(store: Store) -> None:
    worker = store.worker()
    before = store.take("r", worker).claim_epoch
    path = store.root / "epochs" / Path(store.claims.path_of("r")).parent.name
    path.write_bytes(encode_highest(0))
    found = store.json("claims", "verify", code=3)
    assert [(bad["path"], bad["code"]) for bad in found["damaged"]] == [(str(path), "behind")]
    assert "verify --repair" in found["damaged"][0]["remedy"]
    mended = store.json("claims", "verify", "--repair")
    assert ([bad["code"] for bad in mended["mended"]], mended["damaged"]) == (["behind"], [])
    assert store.take("r", worker).claim_epoch > before


def test_c5_verify_says_what_to_do_with_each_thing(store: Store) -> None:
    (store.root / "owners").chmod(0o755)
    (store.root / "un known").touch()
    done = store.run("claims", "verify")
    assert done.exit_code == 3
    assert "2 things are wrong" in done.stdout
    assert f"chmod 700 {store.root}/owners" in done.stderr
    assert "un known (unknown_file): nothing of ours has that name" in done.stderr


def test_c5_workers_are_listed_though_records_are_damaged(
    store: Store, three: dict[str, LifeLock]
) -> None:
    (store.root / "owners" / three["dead"].owner.nonce).write_bytes(b"x")
    Path(store.claims.path_of("alive")).write_bytes(b"")
    document = store.json("workers", "list", code=3)
    assert [(one["id"], one["claims"]) for one in document["workers"]] == [
        (three["alive"].owner.nonce, 0)
    ]
    assert {bad["code"] for bad in document["unreadable"]} == {"empty", "checksum"}


CHANGING = [
    ("claims", "force", "r", "--reason", "x", "--expect-epoch", "{epoch}", "--yes"),
    ("claims", "reap", "--yes"),
    ("claims", "verify", "--repair"),
]


@pytest.mark.parametrize("command", CHANGING, ids=lambda command: command[1])
def test_c1_a_network_file_system_is_changed_only_when_allowed(
    store: Store, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    epoch = str(store.take("r", store.worker()).claim_epoch)
    away = replace(Host.here(), mountinfo="1 0 0:1 / / rw - nfs4 server:/ rw")
    monkeypatch.setattr(Host, "here", lambda: away)
    arguments = [part.format(epoch=epoch) for part in command]
    refused = store.run(*arguments)
    assert (refused.exit_code, "--allow-network-fs" in refused.stderr) == (4, True)
    assert store.claims.read("r")
    assert store.run(*arguments, "--allow-network-fs").exit_code == 0
    # A command that reads needs no leave.
    assert store.run("claims", "list").exit_code == 0
    again = store.run(*arguments, ROLLOUT_ROUTER_ALLOW_NETWORK_FS="1")
    assert "--allow-network-fs" not in again.output
