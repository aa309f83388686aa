# SPDX-License-Identifier: Apache-2.0
"""How one harness is pointed at a shim that stands before a gateway: everything that it takes.

:func:`point` is pure; :func:`write` puts the files where they belong.
"""

import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from rollout_router.harness.port import Dialect, Harness, Setup, Target
from rollout_router.transport.sandbox.pool import parse_gateway
from rollout_router.transport.sandbox.wire import is_rollout_id

__all__ = ["SHIM_PORT", "Pointed", "different", "point", "shim_command", "target", "write"]

SHIM_PORT: Final = 8377
"""Where a shim is expected when nothing is said: it must be known before the shim starts."""

_NOT_IN_URLS: Final = " \"'`\\${}<>|^"  # some mean something to a configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointed:
    """A harness that is pointed at a shim."""

    target: Target
    setup: Setup
    shim: Sequence[str]  # starts the shim; empty where it runs already
    command: Sequence[str]  # starts the harness


def target(
    harness: Harness,
    *,
    rollout_id: str,
    shim_url: str,
    model: str,
    dialect: Dialect | None,
    api_key: str,
) -> Target:
    """The model of rollout *rollout_id* behind the shim at *shim_url*.

    Args:
        harness: which.
        rollout_id: whose calls they are.
        shim_url: without ``/ng-rollout`` and ``/v1``.
        model: its name.
        dialect: one of the harness's; its own choice where None.
        api_key: what the harness sends as its key.

    Raises:
        ValueError: one of them cannot be; the message says which, and never holds the key.
    """
    if not is_rollout_id(rollout_id):
        raise ValueError(f"{rollout_id!r} is no rollout id")
    if dialect is not None and dialect not in harness.dialects:
        spoken = ", ".join(harness.dialects)
        raise ValueError(f"{harness.name} does not speak {dialect.value}, but {spoken}")
    if not model.isprintable() or not model:
        raise ValueError(f"{model!r} is no model name")
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise ValueError("the key is empty or holds what no HTTP header can")
    return Target(
        base_url=f"{_server(shim_url)}/ng-rollout/{rollout_id}/v1",
        model=model,
        dialect=dialect or harness.dialects[0],
        api_key=api_key,
    )


def point(
    harness: Harness,
    aim: Target,
    *,
    home: PurePosixPath,
    installed: Path,
    prompt: str,
    shim: Sequence[str] = (),
) -> Pointed:
    """What points *harness* at *aim*.

    Args:
        harness: which.
        aim: of :func:`target`.
        home: an absolute folder, the harness's own.
        installed: where the harness is, as :func:`install.installed_path` says.
        prompt: what the harness is told.
        shim: of :func:`shim_command`.
    """
    return Pointed(
        target=aim,
        setup=harness.set_up(home, aim),
        shim=shim,
        command=harness.command(installed, aim, prompt),
    )


def shim_command(gateway: str, port: int) -> list[str]:
    """Starts the shim, a file of ``rollout-router shim build shim``, on *port*.

    Raises:
        ValueError: *gateway* is no URL of a gateway.
    """
    server = _server(gateway)
    return ["python3", "-I", "-S", "shim", "--gateway", server, "--port", str(port)]


def different(home: Path, files: Mapping[PurePosixPath, str]) -> list[Path]:
    """Those of *files* below *home* that are there with other content, or are no plain files."""
    return [home / path for path, text in files.items() if _differs(home / path, text)]


def write(home: Path, files: Mapping[PurePosixPath, str]) -> list[Path]:
    """Write *files* below *home*, each whole by rename and readable by its owner alone.

    Raises:
        OSError: one cannot be written. Those before it are; none is half written.
    """
    for path, text in files.items():
        to = home / path
        to.parent.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=to.parent, prefix=f".{to.name}.")  # 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(new).replace(to)
        except BaseException:
            Path(new).unlink()
            raise
    return [home / path for path in files]


def _server(url: str) -> str:
    """*url* without a slash at its end."""
    if not url.isascii() or not url.isprintable() or any(one in url for one in _NOT_IN_URLS):
        raise ValueError(f"not a gateway URL (http://host:port/prefix): {url!r}")
    parse_gateway(url)
    server = url.rstrip("/")
    if server.endswith("/v1"):
        raise ValueError(f"leave /v1 out of {url!r}: it follows the rollout id")
    return server


def _differs(path: Path, text: str) -> bool:
    if not os.path.lexists(path):
        return False
    return not stat.S_ISREG(path.lstat().st_mode) or path.read_bytes() != text.encode()
