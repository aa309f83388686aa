# SPDX-License-Identifier: Apache-2.0
"""The file that says whether requests are let in (law R6): ``<state>/gate``.

Missing is open. Anything that cannot be read is closed: the file is there because somebody wanted
something, and letting requests in cannot be undone. An operator's closed gate survives restarts.

A gate that is *held* is closed with a budget: it reads as open once the budget is over, or another
kernel runs. Who holds it can renew and open it, and an operator can replace it; nobody else can.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rollout_router.claims.disk import publish, read_capped
from rollout_router.claims.envelope import Malformed, open_envelope, seal_envelope
from rollout_router.claims.errors import AdmissionHeld, StoreUnavailable, errno_name
from rollout_router.claims.host import Moment
from rollout_router.claims.locks import StripeLocks

__all__ = [
    "WHY_LENGTH_MAX",
    "Gate",
    "hold_gate",
    "load_gate",
    "read_gate",
    "release_gate",
    "renew_gate",
    "write_gate",
    "writing_gate",
]

WHY_LENGTH_MAX: Final = 300
"""Characters in which a gate says why; of 12 bytes each when escaped, below the 4 KiB of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Admission: whether requests are let in, and who decided it, and why. Both may be empty."""

    open: bool
    by: str = ""
    why: str = ""
    until: Moment | None = None  # of a closed one: None stays closed until somebody opens it

    def at(self, now: Moment) -> "Gate":
        """What this gate is at *now*: open where its budget is over."""
        return Gate(open=True, by=self.by) if self.seconds_left(now) == 0 else self

    def seconds_left(self, now: Moment) -> float | None:
        """What is left of its budget, 0 where that is over; None where it has none."""
        return None if self.until is None else now.seconds_to(self.until)

    def is_held(self, *, by: str) -> bool:
        """Whether *by* holds it closed, with a budget."""
        return not self.open and self.until is not None and self.by == by


def read_gate(state_dir: Path, *, now: Callable[[], Moment] = Moment.now) -> Gate:
    """What the gate is now. Never raises: what cannot be read is a closed gate."""
    path = os.fspath(state_dir / "gate")
    try:
        gate = load_gate(path)
    except FileNotFoundError:
        return Gate(open=True)
    except OSError as error:
        return _unreadable(path, errno_name(error))
    except Malformed as error:
        return _unreadable(path, error.code)
    try:
        return gate if gate.until is None else gate.at(now())
    except OSError:  # nobody can say whether its budget is over
        return gate


def load_gate(path: str) -> Gate:
    """What a gate file says, whatever the time.

    Raises:
        Malformed: it says nothing that can be understood.
        OSError: as ``open`` and ``read``.
    """
    fields = open_envelope(read_capped(path))
    is_open, by, why = fields.get("open"), fields.get("by"), fields.get("why")
    if type(is_open) is not bool or type(by) is not str or type(why) is not str:
        raise Malformed("field")
    until = None if is_open else _moment(fields.get("until"))
    return Gate(open=is_open, by=by, why=why, until=until)


def write_gate(state_dir: Path, gate: Gate) -> None:
    """Replace the gate file of a store durably, whoever closed it.

    Raises:
        ValueError: *why* is longer than :data:`WHY_LENGTH_MAX`, or a long *by* makes the file
            larger than 4 KiB. The gate is as it was.
        StoreUnavailable: the gate is as it was.
    """
    with _changing(state_dir):
        _publish(state_dir, gate)


def hold_gate(
    state_dir: Path,
    *,
    by: str,
    why: str,
    budget_s: float,
    now: Callable[[], Moment] = Moment.now,
) -> None:
    """Close a gate that is open for *budget_s* from now, or renew what *by* holds.

    Raises:
        AdmissionHeld: somebody else closed it. The gate is as it was, as with all others.
        ValueError, StoreUnavailable: as :func:`write_gate`.
    """
    with _changing(state_dir):
        moment = now()
        found = read_gate(state_dir, now=lambda: moment)
        if not (found.open or found.is_held(by=by)):
            raise AdmissionHeld(found.by, found.why)
        _publish(state_dir, Gate(open=False, by=by, why=why, until=moment.later(budget_s)))


def renew_gate(
    state_dir: Path, *, by: str, budget_s: float, now: Callable[[], Moment] = Moment.now
) -> bool:
    """Begin the budget anew where *by* holds the gate; whether that was so. Else it is left.

    Raises:
        StoreUnavailable: the gate is as it was.
    """
    with _changing(state_dir):
        moment = now()
        found = read_gate(state_dir, now=lambda: moment)
        held = found.is_held(by=by)
        if held:
            _publish(state_dir, replace(found, until=moment.later(budget_s)))
        return held


def release_gate(state_dir: Path, *, by: str, now: Callable[[], Moment] = Moment.now) -> bool:
    """Open the gate where *by* holds it; whether that was so. Anything else is left as it is.

    Raises:
        StoreUnavailable: the gate is as it was.
    """
    with _changing(state_dir):
        held = read_gate(state_dir, now=now).is_held(by=by)
        if held:
            _publish(state_dir, Gate(open=True, by=by))
        return held


@contextmanager
def writing_gate(state_dir: Path) -> Iterator[None]:
    """Hold the lock of those who write the gate: a lock of its own, so that nothing else delays it.

    Raises:
        StoreUnavailable: it could not be taken in time.
    """
    with StripeLocks(state_dir / "locks").hold("gate", create=True):
        yield


@contextmanager
def _changing(state_dir: Path) -> Iterator[None]:
    try:
        with writing_gate(state_dir):
            yield
    except OSError as error:
        raise StoreUnavailable(f"writing {state_dir / 'gate'}", error.errno) from error


def _publish(state_dir: Path, gate: Gate) -> None:
    if len(gate.why) > WHY_LENGTH_MAX:
        raise ValueError(
            f"a gate says why in at most {WHY_LENGTH_MAX} characters, not {len(gate.why)}"
        )
    fields: dict[str, Any] = {"open": gate.open, "by": gate.by, "why": gate.why}
    if gate.until is not None:
        fields["until"] = {"boot_id": gate.until.boot_id, "seconds": gate.until.seconds}
    publish(os.fspath(state_dir / "gate"), seal_envelope(fields), durable=True)


def _moment(told: object) -> Moment | None:
    """When a gate that says *told* opens by itself.

    Raises:
        Malformed: it cannot be understood, so the gate stays closed.
    """
    match told:
        case None:
            return None
        case {"boot_id": str(boot_id), "seconds": float(seconds)}:
            try:
                return Moment(boot_id=boot_id, seconds=seconds)
            except ValueError as error:
                raise Malformed("field") from error
        case _:
            raise Malformed("field")


def _unreadable(path: str, code: str) -> Gate:
    return Gate(
        open=False,
        by="rollout_router",
        why=f"{path} is unreadable ({code}): write it anew with `rollout-router admission open`",
    )
