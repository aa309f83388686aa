# SPDX-License-Identifier: Apache-2.0
"""Flags with their environment twins, and the exit codes that every command shares."""

import enum
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from rollout_router.cli.terminal import printable
from rollout_router.documents import SCHEMA
from rollout_router.serve.places import default_state_dir

__all__ = [
    "DURATION",
    "SCHEMA",
    "ExitCode",
    "Seconds",
    "admin_host_flag",
    "admin_port_flag",
    "allow_network_fs_flag",
    "ended_by",
    "flag",
    "journal_flag",
    "json_flag",
    "state_dir_flag",
]


class ExitCode(enum.IntEnum):
    """What a command's end means; stable."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    DAMAGE_FOUND = 3
    REFUSED = 4


class _Duration(click.ParamType[timedelta]):
    """A length of time, as people write it."""

    name = "duration"
    _form = re.compile(r"(\d{1,9})([smhd]?)", re.ASCII)
    _units: Final = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Click's signature."""
        if isinstance(value, timedelta):
            return value
        match = self._form.fullmatch(value)
        if match is None:
            said = "is no duration: write seconds, or a number with s, m, h or d, as in 30m"
            self.fail(f"{value!r} {said}", param, ctx)
        return timedelta(**{self._units[match[2]]: int(match[1])})


class Seconds(click.FloatRange):
    """A finite number of seconds in a range; click itself lets ``nan`` through."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Click's signature."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number of seconds.", param, ctx)
        return number


DURATION: Final = _Duration()
"""``90`` or ``90s``, ``30m``, ``2h``, ``1d``."""


def flag(name: str, *names: str, **options: Any) -> Callable[[Any], Any]:
    """A click option whose environment twin is ROLLOUT_ROUTER_ and the flag's name.

    ``--history-delta/--no-history-delta`` has the twin of its first name.
    """
    twin = name.split("/", 1)[0].lstrip("-").replace("-", "_").upper()
    options.setdefault("show_default", True)
    return click.option(name, *names, envvar=f"ROLLOUT_ROUTER_{twin}", show_envvar=True, **options)


@contextmanager
def ended_by(error: type[Exception], code: ExitCode) -> Iterator[None]:
    """End the command with *code* and the error's own message, escaped, instead of a traceback."""
    try:
        yield
    except error as raised:
        click.echo(f"rollout-router: {printable(raised)}", err=True)
        sys.exit(code)


def state_dir_flag() -> Callable[[Any], Any]:
    """``--state-dir``, for every command that reads or changes the store."""
    return flag(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state_dir,
        help="The claim store of one service.",
    )


def journal_flag(*, required: bool = True) -> Callable[[Any], Any]:
    """``--journal``, for every command that looks into one."""
    return flag(
        "--journal",
        type=click.Path(path_type=Path, dir_okay=False),
        required=required,
        help="The journal of an agent server.",
    )


def json_flag() -> Callable[[Any], Any]:
    """``--json``, for every listing."""
    return flag("--json", "as_json", is_flag=True, help="Print one JSON document.")


def allow_network_fs_flag() -> Callable[[Any], Any]:
    """``--allow-network-fs``, for every command that changes the store."""
    return flag(
        "--allow-network-fs",
        is_flag=True,
        help="Also on a network file system: all workers are on this host and use this mount.",
    )


def admin_host_flag() -> Callable[[Any], Any]:
    """``--admin-host``, for every command that serves the admin address."""
    return flag(
        "--admin-host",
        default="127.0.0.1",
        help="Address of the admin port: reading it needs no password.",
    )


def admin_port_flag(*, default: int | None) -> Callable[[Any], Any]:
    """``--admin-port``, as :func:`admin_host_flag`."""
    unless = "; without it there is none" if default is None else ""
    return flag(
        "--admin-port",
        type=click.IntRange(0, 65535),
        default=default,
        help=f"Port of the admin address: page, API and metrics; 0 picks one{unless}.",
    )
