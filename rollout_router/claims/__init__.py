# SPDX-License-Identifier: Apache-2.0
"""Who owns a rollout: the durable record, its fencing number, and what is known of its owner.

Synchronous and without HTTP: callers run it in threads, never on an event loop. The store is a
directory (:class:`FileClaimStore`) behind a small port (:class:`ClaimStore`). Each name is imported
on first use: what only reads (:class:`ClaimReader`) starts without what locks, writes and sweeps.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rollout_router.claims.admin_note import (
        ADMIN_NOTE,
        AdminNote,
        read_admin_note,
        remove_admin_note,
        write_admin_note,
    )
    from rollout_router.claims.errors import (
        AdmissionHeld,
        ClaimsError,
        ClaimUnreadable,
        ForceRefused,
        StoreRefused,
        StoreUnavailable,
        code_of,
    )
    from rollout_router.claims.evidence import (
        FileFacts,
        ProcessFacts,
        command_of,
        file_facts,
        lock_at,
        process_of,
    )
    from rollout_router.claims.files import FileClaimStore
    from rollout_router.claims.gate import (
        WHY_LENGTH_MAX,
        Gate,
        hold_gate,
        read_gate,
        release_gate,
        renew_gate,
        write_gate,
    )
    from rollout_router.claims.host import Host, Moment
    from rollout_router.claims.inspection import Inspection, inspect_store
    from rollout_router.claims.layout import check_access
    from rollout_router.claims.life import LifeLock
    from rollout_router.claims.lock_table import LockUse
    from rollout_router.claims.names import (
        ROLLOUT_ID,
        SOCKET_PATH_BYTES_MAX,
        new_nonce,
        stripe_of,
        valid_nonce,
        valid_rollout_id,
    )
    from rollout_router.claims.orphans import Orphans, free_orphans
    from rollout_router.claims.parts import Finding
    from rollout_router.claims.port import ClaimStore
    from rollout_router.claims.reader import ClaimReader, rollout_of_file
    from rollout_router.claims.record import (
        Claim,
        Grant,
        Moved,
        Owner,
        OwnerIdentity,
        Previous,
        Signature,
        Unreadable,
    )
    from rollout_router.claims.repairs import repair
    from rollout_router.claims.sweeper import Swept, dead_owners, sweep, sweep_alone
    from rollout_router.claims.verdict import Judgement, ProofOfDeath, Verdict

__all__ = [
    "ADMIN_NOTE",
    "ROLLOUT_ID",
    "SOCKET_PATH_BYTES_MAX",
    "WHY_LENGTH_MAX",
    "AdminNote",
    "AdmissionHeld",
    "Claim",
    "ClaimReader",
    "ClaimStore",
    "ClaimUnreadable",
    "ClaimsError",
    "FileClaimStore",
    "FileFacts",
    "Finding",
    "ForceRefused",
    "Gate",
    "Grant",
    "Host",
    "Inspection",
    "Judgement",
    "LifeLock",
    "LockUse",
    "Moment",
    "Moved",
    "Orphans",
    "Owner",
    "OwnerIdentity",
    "Previous",
    "ProcessFacts",
    "ProofOfDeath",
    "Signature",
    "StoreRefused",
    "StoreUnavailable",
    "Swept",
    "Unreadable",
    "Verdict",
    "check_access",
    "code_of",
    "command_of",
    "dead_owners",
    "file_facts",
    "free_orphans",
    "hold_gate",
    "inspect_store",
    "lock_at",
    "new_nonce",
    "process_of",
    "read_admin_note",
    "read_gate",
    "release_gate",
    "remove_admin_note",
    "renew_gate",
    "repair",
    "rollout_of_file",
    "stripe_of",
    "sweep",
    "sweep_alone",
    "valid_nonce",
    "valid_rollout_id",
    "write_admin_note",
    "write_gate",
]

_HOME: Final[Mapping[str, str]] = {
    "ADMIN_NOTE": "admin_note",
    "ROLLOUT_ID": "names",
    "SOCKET_PATH_BYTES_MAX": "names",
    "WHY_LENGTH_MAX": "gate",
    "AdminNote": "admin_note",
    "AdmissionHeld": "errors",
    "Claim": "record",
    "ClaimReader": "reader",
    "ClaimStore": "port",
    "ClaimUnreadable": "errors",
    "ClaimsError": "errors",
    "FileClaimStore": "files",
    "FileFacts": "evidence",
    "Finding": "parts",
    "ForceRefused": "errors",
    "Gate": "gate",
    "Grant": "record",
    "Host": "host",
    "Inspection": "inspection",
    "Judgement": "verdict",
    "LifeLock": "life",
    "LockUse": "lock_table",
    "Moment": "host",
    "Moved": "record",
    "Orphans": "orphans",
    "Owner": "record",
    "OwnerIdentity": "record",
    "Previous": "record",
    "ProcessFacts": "evidence",
    "ProofOfDeath": "verdict",
    "Signature": "record",
    "StoreRefused": "errors",
    "StoreUnavailable": "errors",
    "Swept": "sweeper",
    "Unreadable": "record",
    "Verdict": "verdict",
    "check_access": "layout",
    "code_of": "errors",
    "command_of": "evidence",
    "dead_owners": "sweeper",
    "file_facts": "evidence",
    "free_orphans": "orphans",
    "hold_gate": "gate",
    "inspect_store": "inspection",
    "lock_at": "evidence",
    "new_nonce": "names",
    "process_of": "evidence",
    "read_admin_note": "admin_note",
    "read_gate": "gate",
    "release_gate": "gate",
    "remove_admin_note": "admin_note",
    "renew_gate": "gate",
    "repair": "repairs",
    "rollout_of_file": "reader",
    "stripe_of": "names",
    "sweep": "sweeper",
    "sweep_alone": "sweeper",
    "valid_nonce": "names",
    "valid_rollout_id": "names",
    "write_admin_note": "admin_note",
    "write_gate": "gate",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found
