# SPDX-License-Identifier: Apache-2.0
"""What the router tells the application about the call it is given, in the ASGI scope (R5, F1).

``scope[CALL_KEY]`` is set by the routing middleware for every HTTP request that names a rollout.
Sinks read it; an application may. It is not set for a request without a rollout identity (R7).
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["CALL_KEY", "Call"]

CALL_KEY: Final = "rollout_router.call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One dispatched call of one rollout. ``(store_id, claim_epoch)`` is its fencing token."""

    rollout_id: str
    claim_epoch: int | None  # None: routing is off, nothing was claimed (R7)
    worker_id: str
    store_id: str
