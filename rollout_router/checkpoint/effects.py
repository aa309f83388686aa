# SPDX-License-Identifier: Apache-2.0
"""What became of an effect, as the function that performs it says it.

    Performed      it was done, and this is the result
    NotPerformed   it certainly was not: refused before anything happened, or never sent
    Lost           it may have been: the answer did not come

Whatever else it raises ends the run with nothing recorded.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rollout_router.checkpoint.wire import Operation

__all__ = ["Lost", "NotPerformed", "Performed", "Send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """The result of one operation.

    Attributes:
        value: what JSON can hold.
        revision: of the environment after it, where it acted on one.
    """

    value: Any
    revision: int | None = None


class NotPerformed(Exception):  # noqa: N818 - what became of it
    """The effect did not happen; the same operation may be sent again.

    Args:
        why: for people.
        retry_after_s: how long the server asks to be left alone.
        tried: the server began, and set it back: it is not asked for ever.
    """

    def __init__(self, why: str, *, retry_after_s: float = 0.0, tried: bool = False) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s
        self.tried = tried


class Lost(Exception):  # noqa: N818 - what became of it
    """It cannot be known whether the effect happened."""


Send = Callable[[Operation], Awaitable[Performed]]
"""Performs one operation, which names itself to the receiver."""
