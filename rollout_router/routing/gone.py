# SPDX-License-Identifier: Apache-2.0
"""A client that leaves, told by our own server to whoever serves it, without a task that waits.

ASGI says it through ``receive`` alone: somebody has to wait there all the time that a call takes.
Our protocol puts a :class:`Gone` into the scope of each request. Another server does not, and there
a task waits.
"""

from collections.abc import Callable
from typing import Final

__all__ = ["GONE_KEY", "Gone"]

GONE_KEY: Final = "rollout_router.gone"
"""Where it stands in the scope; nothing from outside can set it."""


class Gone:
    """Whether the client of one request has left. One listener at a time."""

    __slots__ = ("_then", "_told")

    def __init__(self) -> None:
        self._told = False
        self._then: Callable[[], None] | None = None

    def tell(self) -> None:
        """It has left."""
        self._told = True
        if self._then is not None:
            self._then()

    def listen(self, then: Callable[[], None]) -> Callable[[], None]:
        """Call *then* when it leaves, at once where it has; gives what ends that."""
        self._then = then
        if self._told:
            then()
        return self._forget

    def _forget(self) -> None:
        self._then = None
