# SPDX-License-Identifier: Apache-2.0
"""The phases of a checkpoint, and what may follow what. Pure; its documentation is drawn from it.

Resume is also abort: it opens the gate, and what was not committed by then never will be. A
checkpoint whose budget is over has expired: a controller that fell silent parks nobody for ever.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.errors import CheckpointRefusal

__all__ = ["ACTIVE", "TRANSITIONS", "Checkpoint", "Event", "Phase", "after", "follow"]

Phase = Literal[
    "none",
    "preparing",
    "prepared",
    "committed",
    "restoring",
    "restored",
    "resumed",
    "abandoned",
    "unknown",  # never written: for people, where an archive cannot be read
]
Event = Literal["prepare", "renew", "quiet", "commit", "restore", "put_back", "resume", "expire"]

TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = {
    ("none", "prepare"): "preparing",
    ("preparing", "prepare"): "preparing",  # its budget begins anew
    ("prepared", "prepare"): "preparing",  # the gate was opened: quiet is waited for anew
    ("prepared", "renew"): "prepared",  # it was not: its budget begins anew
    ("committed", "renew"): "committed",
    ("preparing", "quiet"): "prepared",
    ("prepared", "commit"): "committed",
    ("committed", "commit"): "committed",  # the same manifest again
    ("resumed", "commit"): "resumed",  # likewise
    ("none", "restore"): "restoring",
    ("restoring", "restore"): "restoring",  # whoever began it died
    ("restoring", "put_back"): "restored",
    ("restored", "restore"): "restored",
    ("resumed", "restore"): "resumed",
    ("preparing", "resume"): "abandoned",
    ("prepared", "resume"): "abandoned",
    ("abandoned", "resume"): "abandoned",
    ("committed", "resume"): "resumed",
    ("restoring", "resume"): "none",  # nothing was brought back, and all of it may be later
    ("restored", "resume"): "resumed",
    ("resumed", "resume"): "resumed",
    ("preparing", "expire"): "abandoned",
    ("prepared", "expire"): "abandoned",
    ("committed", "expire"): "resumed",
    ("restoring", "expire"): "none",
    ("restored", "expire"): "resumed",
}

ACTIVE: Final = frozenset({"preparing", "prepared", "committed", "restoring", "restored"})
"""The phases in which a checkpoint holds the gate; one at a time does."""

_LASTING: Final = frozenset({"committed", "restored", "resumed"})
"""In these a commit or restore is the answer to an earlier one, and begins nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a journal knows of one checkpoint. It is never forgotten: its id is used once.

    A restore that brought nothing back leaves nothing, and may be begun again.

    Without more than an id it is one that never began.
    """

    checkpoint_id: str
    phase: Phase = "none"
    arguments: str = "{}"  # canonical JSON of what commit and restore were asked for
    boot_id: str = ""  # of the machine's run in which `until` counts
    until: float = 0.0  # the end of its budget, in seconds of CLOCK_BOOTTIME
    changed_at: str = ""  # UTC, to print

    def expired(self, boot_id: str, now_s: float) -> bool:
        """Whether its budget is over."""
        return self.phase in ACTIVE and (self.boot_id != boot_id or now_s >= self.until)

    def asked(self, event: Event) -> Any:
        """What *event* was asked for; None where it never was."""
        return json.loads(self.arguments).get(event)


def follow(checkpoint_id: str, phase: Phase, event: Event) -> Phase:
    """The phase after *event*.

    Raises:
        CheckpointRefusal: ``checkpoint_abandoned`` or ``checkpoint_phase``; nothing follows.
    """
    found = TRANSITIONS.get((phase, event))
    if found is not None:
        return found
    if phase == "abandoned":
        raise CheckpointRefusal(
            "checkpoint_abandoned",
            f"checkpoint {checkpoint_id} was abandoned, by a resume or because its budget was over:"
            " nothing is ever published under this id; begin another one",
        )
    if event == "put_back":
        raise CheckpointRefusal(
            "checkpoint_phase",
            f"checkpoint {checkpoint_id} was resumed or its budget was over before all was brought"
            " back: nothing was restored; restore it again, with a longer budget",
        )
    known = "not known here" if phase == "none" else phase
    raise CheckpointRefusal(
        "checkpoint_phase", f"checkpoint {checkpoint_id} is {known}: {event} is not possible then"
    )


def after(found: Checkpoint, event: Event, asked: Mapping[str, Any] | None = None) -> Checkpoint:
    """*found* after *event*, which is asked for the same each time.

    Raises:
        CheckpointRefusal: as :func:`follow`; ``checkpoint_conflict``: it was asked for otherwise.
    """
    done = replace(found, phase=follow(found.checkpoint_id, found.phase, event))
    if asked is None:
        return done
    before = found.asked(event)
    if before not in (None, asked):
        raise CheckpointRefusal(
            "checkpoint_conflict",
            f"checkpoint {found.checkpoint_id}: its {event} was asked for with {_words(before)},"
            f" and now with {_words(asked)}; another one needs another id",
        )
    if before is None and found.phase in _LASTING:
        raise CheckpointRefusal(
            "checkpoint_phase",
            f"checkpoint {found.checkpoint_id} is {found.phase}, and not by a {event}: use another"
            " id, or another journal",
        )
    return replace(done, arguments=canonical({**json.loads(found.arguments), event: asked}))


def _words(asked: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (asked or {}).items() if value)
