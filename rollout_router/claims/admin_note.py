# SPDX-License-Identifier: Apache-2.0
"""``<state>/admin``: where the store's admin address is, and what opens it, for its user alone.

No claim depends on it. It is written by rename and removed by whoever wrote it; one that was killed
leaves it behind, until the next writes its own.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rollout_router.claims.disk import publish, read_capped
from rollout_router.claims.envelope import Malformed
from rollout_router.claims.errors import StoreUnavailable
from rollout_router.claims.gate import writing_gate

__all__ = ["ADMIN_NOTE", "AdminNote", "read_admin_note", "remove_admin_note", "write_admin_note"]

ADMIN_NOTE: Final = "admin"
"""Its name in the directory of the store."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminNote:
    """One running admin address."""

    url: str
    token: str = field(repr=False)
    pid: int  # of its process, by which it knows its own note


def write_admin_note(state_dir: Path, note: AdminNote) -> None:
    """Put *note* in the place of any other.

    Raises:
        StoreUnavailable: what stood there stands.
    """
    raw = json.dumps({"v": _VERSION, **asdict(note)}).encode()
    try:
        with writing_gate(state_dir):  # by which a sweep knows that a temporary file is at work
            publish(os.fspath(state_dir / ADMIN_NOTE), raw, durable=False)
    except OSError as error:
        raise StoreUnavailable(f"writing {state_dir / ADMIN_NOTE}", error.errno) from error


def read_admin_note(state_dir: Path) -> AdminNote | None:
    """The note that stands; None where there is none that can be read."""
    try:
        fields = json.loads(read_capped(os.fspath(state_dir / ADMIN_NOTE)))
        return AdminNote(url=str(fields["url"]), token=str(fields["token"]), pid=int(fields["pid"]))
    except (OSError, Malformed, ValueError, KeyError, TypeError):
        return None


def remove_admin_note(state_dir: Path, *, pid: int) -> None:
    """Remove the note that the process *pid* wrote; another's stays.

    Raises:
        StoreUnavailable: it stays.
    """
    try:
        with writing_gate(state_dir):
            note = read_admin_note(state_dir)
            if note is not None and note.pid == pid:
                (state_dir / ADMIN_NOTE).unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"removing {state_dir / ADMIN_NOTE}", error.errno) from error
