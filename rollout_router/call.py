# SPDX-License-Identifier: Apache-2.0
"""What the router tells the application about the call it is given, in the ASGI scope (R5, F1).

``scope[CALL_KEY]`` is set by the routing middleware for every HTTP request that names a rollout.
Sinks read it; an application may. It is not set for a request without a rollout identity (R7).
"""

from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = ["CALL_KEY", "Call", "Steps"]

CALL_KEY: Final = "rollout_router.call"


class Steps(Protocol):
    """The gate of a worker, for a call that works in steps and may wait between them."""

    def begin(self) -> bool:
        """Count a step in; False where the gate is closed, and nothing was counted."""
        ...

    def end(self) -> None:
        """The step is over."""
        ...

    async def wait_open(self) -> None:
        """Return once the gate is open."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One dispatched call of one rollout. ``(store_id, claim_epoch)`` is its fencing token."""

    rollout_id: str
    claim_epoch: int | None  # None: routing is off, nothing was claimed (R7)
    worker_id: str
    store_id: str
    steps: Steps | None = field(default=None, repr=False, compare=False)
