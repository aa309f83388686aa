# SPDX-License-Identifier: Apache-2.0
"""The file that says whether requests are let in (law R6): ``<state>/gate``.

Missing is open. Anything that cannot be read is closed: the file is there because somebody wanted
something, and letting requests in cannot be undone. An operator's closed gate survives restarts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollout_router.claims.disk import publish, read_capped
from rollout_router.claims.envelope import Malformed, open_envelope, seal_envelope
from rollout_router.claims.errors import StoreUnavailable, errno_name
from rollout_router.claims.locks import StripeLocks

__all__ = ["WHY_LENGTH_MAX", "Gate", "load_gate", "read_gate", "write_gate", "writing_gate"]

WHY_LENGTH_MAX: Final = 300
"""Characters in which a gate says why; of 12 bytes each when escaped, below the 4 KiB of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Admission: whether requests are let in, and who decided it, and why. Both may be empty."""

    open: bool
    by: str = ""
    why: str = ""


def read_gate(state_dir: Path) -> Gate:
    """What the gate file says now. Never raises: what cannot be read is a closed gate."""
    path = os.fspath(state_dir / "gate")
    try:
        return load_gate(path)
    except FileNotFoundError:
        return Gate(open=True)
    except OSError as error:
        return _unreadable(path, errno_name(error))
    except Malformed as error:
        return _unreadable(path, error.code)


def load_gate(path: str) -> Gate:
    """What a gate file says.

    Raises:
        Malformed: it says nothing that can be understood.
        OSError: as ``open`` and ``read``.
    """
    fields = open_envelope(read_capped(path))
    is_open, by, why = fields.get("open"), fields.get("by"), fields.get("why")
    if type(is_open) is not bool or type(by) is not str or type(why) is not str:
        raise Malformed("field")
    return Gate(open=is_open, by=by, why=why)


def write_gate(state_dir: Path, gate: Gate) -> None:
    """Replace the gate file of a store durably.

    Raises:
        ValueError: *why* is longer than :data:`WHY_LENGTH_MAX`, or a long *by* makes the file
            larger than 4 KiB. The gate is as it was.
        StoreUnavailable: the gate is as it was.
    """
    path = os.fspath(state_dir / "gate")
    if len(gate.why) > WHY_LENGTH_MAX:
        raise ValueError(
            f"a gate says why in at most {WHY_LENGTH_MAX} characters, not {len(gate.why)}"
        )
    raw = seal_envelope({"open": gate.open, "by": gate.by, "why": gate.why})
    try:
        with writing_gate(state_dir):
            publish(path, raw, durable=True)
    except OSError as error:
        raise StoreUnavailable(f"writing {path}", error.errno) from error


@contextmanager
def writing_gate(state_dir: Path) -> Iterator[None]:
    """Hold the lock of those who write the gate: a lock of its own, so that nothing else delays it.

    Raises:
        StoreUnavailable: it could not be taken in time.
    """
    with StripeLocks(state_dir / "locks").hold("gate", create=True):
        yield


def _unreadable(path: str, code: str) -> Gate:
    return Gate(
        open=False,
        by="rollout_router",
        why=f"{path} is unreadable ({code}): write it anew with `rollout-router admission open`",
    )
