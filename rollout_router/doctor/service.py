# SPDX-License-Identifier: Apache-2.0
"""What a service would find: its application, its store, the secret of its rollout keys."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from rollout_router.claims import (
    ClaimReader,
    ClaimsError,
    Moment,
    Owner,
    Unreadable,
    Verdict,
    read_gate,
)
from rollout_router.claims.creation import first_trace_of_use
from rollout_router.claims.layout import known_format
from rollout_router.doctor.checked import Checked, fail, ok, refused, skipped, warn
from rollout_router.routing.key_file import SecretRefused, read_secret
from rollout_router.serve.config import ServeConfig

__all__ = ["application", "rollout_keys", "store"]

APPLICATION_S: Final = 60.0
"""For the import of an application; some load a model's tokenizer."""

_IMPORT: Final = """
import sys
from rollout_router.serve.application import AppNotFound, load_app
sys.path.insert(0, "")
try:
    load_app(sys.argv[1])
except AppNotFound as error:
    sys.exit(str(error))
"""


def application(config: ServeConfig, *, patience_s: float = APPLICATION_S) -> Checked:
    """Whether ``--app`` can be imported; in a process of its own, which ends then."""
    if config.app is None:
        return skipped("no --app")
    try:
        done = subprocess.run(  # noqa: S603 - this Python; what it imports is what a start would
            [sys.executable, "-P", "-c", _IMPORT, config.app],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=patience_s,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return fail(
            f"{config.app} was not imported within {patience_s:g} s", "see what it waits for"
        )
    if done.returncode == 0:
        return ok(f"{config.app} can be imported")
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return fail(
        said[-1] if said else f"importing {config.app} ended with {done.returncode}",
        "mend it, or name another --app; it is looked for in the current directory first",
    )


def store(config: ServeConfig) -> Checked:
    """What stands at the state directory: whose it is, the gate, and what dead workers left."""
    root = Path(os.path.realpath(config.state_dir))
    try:
        found = known_format(root, service=config.service)
        if found is not None:
            return _standing(ClaimReader.inspect(root))
        used = first_trace_of_use(root)
    except ClaimsError as error:
        return refused(error)
    if used:
        return fail(
            f"{root} has no FORMAT but was used ({used})",
            "restore FORMAT from a backup, or move the directory away",
        )
    return ok(f"there is none at {root} yet: the first start makes it")


def _standing(reader: ClaimReader) -> Checked:
    said = f"service {reader.service}, format 1, store {reader.store_id}"
    gate = read_gate(reader.state_dir)
    if not gate.open:
        left_s = gate.seconds_left(Moment.now())
        until = "" if left_s is None else f", for {left_s:.0f} s more"
        return warn(
            f"{said}; admission is closed by {gate.by}: {gate.why}{until}",
            "calls get 503 until `rollout-router admission open`",
        )
    verdicts = [
        reader.judge(Owner(nonce=one.nonce, inode=one.inode)).verdict
        for one in reader.owners()
        if not isinstance(one, Unreadable)
    ]
    said += f"; {verdicts.count(Verdict.ALIVE)} living workers"
    if dead := verdicts.count(Verdict.DEAD):
        return warn(
            f"{said}, and files of {dead} dead ones",
            "nothing: workers clear them within seconds. See `rollout-router claims reap`",
        )
    return ok(said)


def rollout_keys(config: ServeConfig) -> Checked:
    """Whether the secret can be read, and by nobody else."""
    if config.rollout_keys is None:
        return skipped("no --rollout-keys: whoever reaches the port can name any rollout")
    try:
        read_secret(config.rollout_keys)
    except (OSError, SecretRefused, ValueError) as error:
        return refused(error)
    return ok(f"{config.rollout_keys} can be read by this user")
