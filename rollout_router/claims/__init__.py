# SPDX-License-Identifier: Apache-2.0
"""Who owns a rollout: the durable record, its fencing number, and what is known of its owner.

Synchronous and without HTTP: callers run it in threads, never on an event loop. The store is a
directory (:class:`FileClaimStore`) behind a small port (:class:`ClaimStore`).
"""

from rollout_router.claims.errors import (
    ClaimsError,
    ClaimUnreadable,
    ForceRefused,
    StoreRefused,
    StoreUnavailable,
)
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.gate import WHY_LENGTH_MAX, Gate, read_gate, write_gate
from rollout_router.claims.host import Host
from rollout_router.claims.layout import check_access
from rollout_router.claims.life import LifeLock
from rollout_router.claims.port import ClaimStore
from rollout_router.claims.record import (
    ROLLOUT_ID,
    Claim,
    Grant,
    Moved,
    Owner,
    OwnerIdentity,
    Previous,
    Signature,
    Unreadable,
    new_nonce,
    stripe_of,
    valid_rollout_id,
)
from rollout_router.claims.repair import damage, repair
from rollout_router.claims.sweeper import Swept, dead_owners, sweep, sweep_alone
from rollout_router.claims.verdict import Judgement, ProofOfDeath, Verdict

__all__ = [
    "ROLLOUT_ID",
    "WHY_LENGTH_MAX",
    "Claim",
    "ClaimStore",
    "ClaimUnreadable",
    "ClaimsError",
    "FileClaimStore",
    "ForceRefused",
    "Gate",
    "Grant",
    "Host",
    "Judgement",
    "LifeLock",
    "Moved",
    "Owner",
    "OwnerIdentity",
    "Previous",
    "ProofOfDeath",
    "Signature",
    "StoreRefused",
    "StoreUnavailable",
    "Swept",
    "Unreadable",
    "Verdict",
    "check_access",
    "damage",
    "dead_owners",
    "new_nonce",
    "read_gate",
    "repair",
    "stripe_of",
    "sweep",
    "sweep_alone",
    "valid_rollout_id",
    "write_gate",
]
