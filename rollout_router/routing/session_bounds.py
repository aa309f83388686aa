# SPDX-License-Identifier: Apache-2.0
"""Whether a worker may take one more session (R3): the bounds on their number. Pure.

Every session that stands may be lost one day, and a lost one keeps its file for a day. So the bound
of the store is on both together: at it new sessions are refused, and no old one is forgotten.
"""

from rollout_router.errors import Refusal

__all__ = ["SessionBounds"]


class SessionBounds:
    """The bounds of one worker, and what it knows of the store.

    What others claimed, gave back or lost is known from the last count. What this worker holds is
    known exactly, so the store is beyond its bound by what other workers took since at most.

    Args:
        number_max: so many sessions this worker holds.
        remembered_max: so many sessions the store has files of, owned and lost.
    """

    def __init__(self, *, number_max: int = 0, remembered_max: int = 0) -> None:
        self._number_max = number_max
        self._remembered_max = remembered_max
        self._others = 0

    def counted(self, files: int, *, own: int) -> None:
        """The store had *files* of sessions when this worker held *own*."""
        self._others = max(0, files - own)

    def check(self, name: str, *, own: int) -> None:
        """Look whether there is room for one more beside the *own* that this worker holds.

        Raises:
            Refusal: there is none.
        """
        if own >= self._number_max:
            why = f"this worker owns {self._number_max} sessions; closed ones make room"
        elif own + self._others >= self._remembered_max:
            why = (
                f"the store has {self._remembered_max} sessions, owned and lost; closed ones make"
                " room, and lost ones as they are forgotten"
            )
        else:
            return
        raise Refusal("overloaded", f"{name}: {why}", rollout_id=name)
