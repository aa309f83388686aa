# SPDX-License-Identifier: Apache-2.0
"""What a file or directory of a store must be, and what to do when it is not (laws C1, C5).

Everything belongs to the user that owns the store's directory: directories 0700, files 0600. A
finding names a thing by its path and a code; the codes are stable, the remedies are for people.
"""

import os
import shlex
import stat
from dataclasses import dataclass
from typing import Final

from rollout_router.claims.envelope import Malformed
from rollout_router.claims.errors import code_of
from rollout_router.claims.gate import load_gate

__all__ = ["Finding", "finding", "gate_damage", "wrong_with"]

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_PERMISSIONS: Final = 0o777

_REPAIR: Final = "run `rollout-router claims verify --repair`"
_MOVE: Final = "move it away"
_REAP: Final = "run `rollout-router claims reap --yes`"
_OWNER_MISSING: Final = (
    "Once its worker is dead, or to fence it: run "
    "`rollout-router claims reap --owner-missing {nonce} --yes`"
)

_REMEDIES: Final = {
    "missing": f"with no worker running, {_REPAIR}",
    "not_a_directory": f"{_MOVE}; then, with no worker running, {_REPAIR}",
    "not_a_file": f"{_MOVE}; then, with no worker running, {_REPAIR}",
    "not_empty": "nothing of ours writes into a lock file: truncate -s 0 {path}",
    "unknown_file": f"nothing of ours has that name: {_MOVE}",
    "temporary": f"a writer died over it: {_REAP}",
    "dead_owner": f"no claim names this dead worker: {_REAP}",
    "epoch": _REPAIR,
    "behind": _REPAIR,
    "gate": "requests are refused: run `rollout-router admission open`",
    "owner": "once you know that its worker is dead, or that it never was a worker's, remove it: "
    "rm {path}",
    "copied": f"it is a copy, which proves nothing. {_OWNER_MISSING}; then rm {{path}}",
    "newer_format": "a newer version wrote it: run that version",
    "owner_missing": f"nobody can prove its owner dead. {_OWNER_MISSING}",
    "owner_replaced": f"nobody can prove its owner dead. {_OWNER_MISSING}",
    "claim": "restore it, or run `rollout-router claims force {rollout} --reason TEXT --yes`",
    "claim_not_a_file": f"{_MOVE}: its rollout is free then",
}
_ELSE: Final = "give it back to the user that runs the workers, or look at its disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a store."""

    path: str
    code: str
    remedy: str


def finding(path: str, code: str, *, place: str = "", **names: str) -> Finding:
    """That *code* is wrong with *path*.

    Args:
        path: of the thing.
        code: what is wrong with it.
        place: what the remedy goes by, where that is not the code.
        names: what the remedy speaks of.
    """
    quoted = {name: shlex.quote(value) for name, value in {"path": path, **names}.items()}
    todo = _REMEDIES.get(place or code, _ELSE).format(**quoted)
    return Finding(path=path, code=code, remedy=todo)


def wrong_with(path: str, *, user: int, directory: bool = False) -> list[Finding]:
    """What is wrong with the kind, the user and the mode of what stands at *path*.

    Args:
        path: of a part of a store.
        user: to whom the store's directory belongs.
        directory: it must be one; else a regular file. Links are neither.

    Raises:
        StoreUnavailable: this process has no descriptors or memory left.
    """
    try:
        status = os.lstat(path)
    except OSError as error:
        return [finding(path, code_of(error))]
    if not (stat.S_ISDIR if directory else stat.S_ISREG)(status.st_mode):
        return [finding(path, "not_a_directory" if directory else "not_a_file")]
    found: list[Finding] = []
    if status.st_uid != user:
        todo = f"chown {user} {shlex.quote(path)}"
        found.append(Finding(path=path, code="wrong_user", remedy=todo))
    mode = _DIRECTORY_MODE if directory else _FILE_MODE
    if status.st_mode & _PERMISSIONS != mode:
        todo = f"chmod {mode:03o} {shlex.quote(path)}"
        found.append(Finding(path=path, code="mode", remedy=todo))
    return found


def gate_damage(path: str) -> str | None:
    """The code of what keeps the gate file at *path* from being read; workers take it as closed."""
    try:
        load_gate(path)
    except FileNotFoundError:
        return None  # opened since
    except Malformed as error:
        return error.code
    except OSError as error:
        return code_of(error)
    return None
