# SPDX-License-Identifier: Apache-2.0
"""``rollout-router serve``: the gateway with several workers.

What workers are forked from takes longest to start, so that it starts first, and the settings and
what serves in this process are imported meanwhile. What it has to import is guessed from the raw
command line, environment and file: a wrong guess costs time, and is put right by the workers.
"""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import click

from rollout_router.cli.flags import ExitCode, ended_by
from rollout_router.cli.setting_flags import SettingsCommand, asks_for_help, told_by
from rollout_router.metrics_files import count_together
from rollout_router.serve.forking import start_preloading

__all__ = ["serve"]

_GUESSED: Final = ("app", "upstream", "capture_dir", "admin_port")
_GUESSED_BYTES_MAX: Final = 1024**2  # of a file: a longer one is refused later


class _Serve(SettingsCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not (ctx.resilient_parsing or asks_for_help(args)):  # as a shell completes
            app, upstream, capture_dir, admin = _guess(args, os.environ)
            if admin is not None:
                with ended_by(OSError, ExitCode.FAILED):  # no room anywhere
                    count_together()  # what is forked from counts there from its beginning
            start_preloading(app=app, upstream=upstream, capture_dir=capture_dir, admin=admin)
        with _uncollected():
            return super().parse_args(ctx, args)


@click.command(cls=_Serve)
@click.pass_context
def serve(ctx: click.Context, /, **_: object) -> None:
    """Run the gateway.

    Without --upstream and --app it serves the embedded scripted model.
    """
    with _uncollected():
        config = told_by(ctx).config
        from rollout_router.cli.serving import run_service  # noqa: PLC0415 - see the module's docstring

    run_service(config)


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is imported within stays: looking through it for garbage takes a seventh of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _guess(args: Sequence[str], environ: Mapping[str, str]) -> Iterator[object]:
    """What is probably said of each of ``_GUESSED``; nothing is judged here."""

    def said(name: str) -> str | None:
        flag = f"--{name.replace('_', '-')}"
        found = environ.get(f"ROLLOUT_ROUTER_{name.upper()}") or None
        for place, one in enumerate(args):
            if one == flag and place + 1 < len(args):
                found = args[place + 1]
            elif one.startswith(f"{flag}="):
                found = one.partition("=")[2]
        return found

    of_file: Mapping[str, object] = {}
    if (path := said("config")) is not None and os.path.isfile(path):  # noqa: PTH113 - as below
        import tomllib  # noqa: PLC0415 - each thing that is imported here delays what starts first

        try:
            with open(path, "rb") as file:  # noqa: PTH123 - its name is a string
                of_file = tomllib.loads(file.read(_GUESSED_BYTES_MAX).decode())
        except (OSError, ValueError, RecursionError):
            of_file = {}  # it is read again, and what is wrong is said then
    return (said(name) or of_file.get(name) for name in _GUESSED)
