# SPDX-License-Identifier: Apache-2.0
"""One claim, and every piece of evidence for what is said of it.

It only reads, and shows what it can of a record that cannot be read. The verdict comes from socket
and life lock alone; pids, times and command lines stand beside it for people (C3).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rollout_router.claims import (
    Claim,
    ClaimReader,
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
)
from rollout_router.documents import SCHEMA
from rollout_router.documents.claims import Owners, row_of

__all__ = ["claim_document", "record_document"]


def claim_document(store: ClaimReader, rollout_id: str) -> dict[str, Any]:
    """The claim of *rollout_id*, null without one that can be read, and the evidence.

    Raises:
        StoreUnavailable: this process has no descriptors or memory left.
        ValueError: it is no rollout id.
    """
    return record_document(
        store, rollout_id, what="claim", describe=lambda claim: _described(claim, store)
    )


def record_document(
    store: ClaimReader,
    rollout_id: str,
    *,
    what: str,
    describe: Callable[[Claim], Mapping[str, Any] | None],
) -> dict[str, Any]:
    """As :func:`claim_document`.

    Args:
        store: whose claim.
        rollout_id: under which it stands.
        what: its key in the document.
        describe: tells it; None where it is not what was asked for.
    """
    found = _read(store, rollout_id)
    claim = describe(found) if isinstance(found, Claim) else None
    if isinstance(found, Claim) and claim is None:
        found = None
    return {
        "schema": SCHEMA,
        "store_id": store.store_id,
        what: claim,
        "unreadable": asdict(found) if isinstance(found, Unreadable) else None,
        "evidence": _evidence(store, rollout_id, found),
    }


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
