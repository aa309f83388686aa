# SPDX-License-Identifier: Apache-2.0
"""What the router tells the application about the call it is given, in the ASGI scope (R5, F1).

``scope[CALL_KEY]`` is set by the routing middleware for every HTTP request that names a rollout.
Sinks read it; an application may. It is not set for a request without a rollout identity (R7).
"""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

__all__ = ["CALL_KEY", "Call", "Steps"]

CALL_KEY: Final = "rollout_router.call"


class Steps(Protocol):
    """How a call that lasts for hours lets the gate close between its steps (R6).

    A call is in hand, and keeps a closed gate from being quiet, until it ends. From its first
    :meth:`begin` on it is so only while a step runs, and never while it waits in :meth:`wait_open`:

        while not steps.begin():
            await steps.wait_open()
        try:
            ...  # an effect, and its record
        finally:
            steps.end()

    Several steps of one call may run at a time. The end of the call ends them all. On the event
    loop alone.
    """

    def begin(self) -> bool:
        """Count a step in; False where the gate is closed, and nothing was counted.

        Raises:
            RuntimeError: the call is over.
        """
        ...

    def end(self) -> None:
        """A step is over.

        Raises:
            RuntimeError: none runs.
        """
        ...

    async def wait_open(self) -> None:
        """Return once the gate is open; of a worker that has closed its own for good, never.

        Raises:
            RuntimeError: the call is over.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One dispatched call of one rollout. ``(store_id, claim_epoch)`` is its fencing token."""

    rollout_id: str
    claim_epoch: int | None  # None: routing is off, nothing was claimed (R7)
    worker_id: str
    store_id: str
    steps: Steps | None = field(default=None, compare=False, repr=False)  # None as claim_epoch is

    def named(self) -> dict[str, Any]:
        """Who it is, as the fields of a log line."""
        return {
            "rollout_id": self.rollout_id,
            "claim_epoch": self.claim_epoch,
            "worker_id": self.worker_id,
        }
