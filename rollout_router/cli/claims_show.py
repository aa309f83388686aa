# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims show``: one claim, and every piece of evidence for what is said of it.

It only reads, and shows what it can of a record that cannot be read. The verdict comes from socket
and life lock alone; pids, times and command lines stand beside it for people (C3).
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rollout_router.claims import (
    Claim,
    ClaimReader,
    ClaimsError,
    ClaimUnreadable,
    LockUse,
    StoreUnavailable,
    Unreadable,
    code_of,
    command_of,
    file_facts,
    lock_at,
    process_of,
    stripe_of,
    valid_rollout_id,
)
from rollout_router.cli.claims_owners import Owners, open_store, row_of
from rollout_router.cli.claims_view import name_each, print_table
from rollout_router.cli.flags import SCHEMA, ExitCode, ended_by, json_flag, state_dir_flag

__all__ = ["show", "show_claim"]


@click.command("show")
@click.argument("rollout_id")
@state_dir_flag()
@json_flag()
def show_claim(*, rollout_id: str, state_dir: Path, as_json: bool) -> None:
    """Show one claim with the evidence for the verdict on its owner.

    Exit code 1: there is no claim. Exit code 3: it cannot be read.
    """
    if not valid_rollout_id(rollout_id):
        raise click.UsageError(f"{rollout_id!r} is no rollout id")
    store = open_store(state_dir)
    show(
        store,
        rollout_id,
        what="claim",
        describe=lambda claim: _described(claim, store),
        as_json=as_json,
    )


def show(
    store: ClaimReader,
    rollout_id: str,
    *,
    what: str,
    describe: Callable[[Claim], Mapping[str, Any] | None],
    as_json: bool,
) -> None:
    """Print one claim with the evidence, and exit as :func:`show_claim` says.

    Args:
        store: whose claim.
        rollout_id: under which it stands.
        what: its key in the document.
        describe: tells it; None where it is not what was asked for.
        as_json: one document instead of a table.
    """
    with ended_by(ClaimsError, ExitCode.FAILED):
        found = _read(store, rollout_id)
        claim = describe(found) if isinstance(found, Claim) else None
        if isinstance(found, Claim) and claim is None:
            found = None
        evidence = _evidence(store, rollout_id, found)
    bad = asdict(found) if isinstance(found, Unreadable) else None
    if as_json:
        document = {"schema": SCHEMA, "store_id": store.store_id, what: claim}
        click.echo(json.dumps({**document, "unreadable": bad, "evidence": evidence}))
    else:
        lines = _lines(claim or {"rollout_id": rollout_id, **(bad or {})}, evidence)
        print_table(("", ""), [line for line in lines if line[1] is not None])
    if isinstance(found, Unreadable):
        name_each([found])
        sys.exit(ExitCode.DAMAGE_FOUND)
    if found is None:
        nothing = "rollout {} has no claim" if what == "claim" else "there is no session {}"
        said = f"{nothing.format(rollout_id)} in {store.state_dir}"
        click.echo(f"rollout-router: {said}", err=True)
        sys.exit(ExitCode.FAILED)


def _read(store: ClaimReader, rollout_id: str) -> Claim | Unreadable | None:
    try:
        return store.read(rollout_id)
    except ClaimUnreadable as error:
        return Unreadable(path=error.path, code=error.code)
    except StoreUnavailable as error:  # a stripe that is gone, a directory that is closed to us
        return Unreadable(path=store.path_of(rollout_id), code=code_of(error))


def _described(claim: Claim, store: ClaimReader) -> dict[str, Any]:
    return {
        **row_of(claim, Owners(store)),
        "kind": claim.kind,
        "previous": asdict(claim.previous) if claim.previous else None,
        "lost_because": claim.reason or None,
    }


def _evidence(
    store: ClaimReader, rollout_id: str, found: Claim | Unreadable | None
) -> dict[str, Any]:
    """The same keys always; null where there is nothing to say."""
    path = store.path_of(rollout_id)
    lock = f"{store.state_dir}/locks/{stripe_of(rollout_id)}"
    return {
        **_of_the_owner(store, found if isinstance(found, Claim) else None),
        "checksum": _checksum(found),
        "path": path,
        "file": None if isinstance(facts := file_facts(path), str) else asdict(facts),
        "stripe_lock": {"path": lock, **_users(lock_at(lock))},
    }


def _of_the_owner(store: ClaimReader, claim: Claim | None) -> dict[str, Any]:
    keys = ("connect", "life_lock", "reason", "owner", "age_s", "owner_file", "process")
    if claim is None:
        return dict.fromkeys(keys)
    age = datetime.now(UTC) - datetime.fromisoformat(claim.at)
    if claim.state == "lost":
        lost = f"the session was lost at {claim.at}: {claim.reason or 'nobody said why'}"
        return {**dict.fromkeys(keys), "reason": lost, "age_s": age.total_seconds()}
    identity, judgement = Owners(store).of(claim)
    path = f"{store.state_dir}/owners/{claim.owner.nonce}"
    life = lock_at(path)
    process = asdict(process_of(identity, life=life)) if identity else None
    return {
        "connect": judgement.connect,
        "life_lock": judgement.life,
        "reason": judgement.reason,
        "owner": asdict(identity) if identity else None,
        "age_s": age.total_seconds(),
        "owner_file": {"path": path, "inode": claim.owner.inode, **_users(life)},
        "process": process,
    }


def _checksum(found: Claim | Unreadable | None) -> str | None:
    """``holds``, ``fails``, or null where there are no bytes to be sure of."""
    if isinstance(found, Claim):
        return "holds"
    return "fails" if found is not None and found.code == "checksum" else None


def _users(use: LockUse | str) -> dict[str, Any]:
    if isinstance(use, str):
        return {"holders": None, "waiters": None, "unseen": use}
    named = {
        name: [{"pid": pid, "command": command_of(pid)} for pid in pids]
        for name, pids in asdict(use).items()
    }
    return {**named, "unseen": None}


def _lines(*parts: Mapping[str, Any]) -> list[tuple[str, object]]:
    """One line a fact: nested facts under the name of their whole."""
    lines: list[tuple[str, object]] = []
    for part in parts:
        for name, value in part.items():
            what = name.replace("_", " ")
            if isinstance(value, dict):
                lines += [(f"{what}: {inner}", text) for inner, text in _lines(value)]
            elif isinstance(value, list):
                lines.append((what, "; ".join(map(_process, value)) or "nobody"))
            elif name in {"started_at", "modified_at"} and value is not None:
                lines.append((what, _when(value)))
            else:
                lines.append((what, value))
    return lines


def _process(one: Mapping[str, Any]) -> str:
    return f"{one['pid']} ({one['command'] or 'command not to be seen'})"


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a year that no calendar of ours has
        return str(seconds)
