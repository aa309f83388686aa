# SPDX-License-Identifier: Apache-2.0
"""``rollout-router serve``: the gateway with several workers.

What workers are forked from takes longest to start, so that it starts first, and what serves in
this process is imported meanwhile.
"""

from pathlib import Path
from typing import Any

import click

from rollout_router.cli.flags import (
    Seconds,
    admin_host_flag,
    admin_port_flag,
    default_run_dir,
    flag,
    state_dir_flag,
)
from rollout_router.serve.forking import start_preloading

__all__ = ["serve"]

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command()
@flag("--upstream", metavar="URL", help="Serve this OpenAI-compatible server.")
@flag("--app", metavar="MODULE:ATTR", help="Serve this ASGI application.")
@flag("--service", default="model", help="Name of the service that the store belongs to.")
@flag("--host", default="127.0.0.1", help="Address of the public port.")
@flag("--port", default=8000, type=click.IntRange(0, 65535), help="Public port; 0 picks one.")
@flag("--workers", default=2, type=click.IntRange(1, 256), help="Worker processes.")
@state_dir_flag()
@flag("--run-dir", type=_DIRECTORY, default=default_run_dir, help="Where private sockets lie.")
@flag("--capture-dir", type=_DIRECTORY, help="Record every call of a rollout here.")
@flag("--history-delta/--no-history-delta", default=True, help="Keep bases, rebuild deltas.")
@flag("--route-always", is_flag=True, help="Route rollouts although deltas are off.")
@flag("--history-rollouts", default=4096, type=click.IntRange(0), help="Rollouts kept, a worker.")
@flag("--history-bytes", default=2 * 1024**3, type=click.IntRange(0), help="Bytes kept, a worker.")
@flag(
    "--history-idle-seconds",
    default=3600.0,
    type=Seconds(0, min_open=True),
    help="A rollout without a call for so long is forgotten.",
)
@flag("--rollout-header", default="X-Session-ID", help="Header that names a rollout.")
@flag("--session-cookie", metavar="NAME", help="Cookie that names a session of the application.")
@flag("--session-header", metavar="NAME", help="Header that names one; not with a cookie.")
@flag(
    "--rollout-keys",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the secret of the rollout keys: each call must carry its rollout's key.",
)
@flag(
    "--placement",
    type=click.Choice(["arrival", "balanced"]),
    default="arrival",
    help="Who gets a new rollout: the worker where it first arrives, or the least busy one.",
)
@flag("--server-timing", is_flag=True, help="Tell in Server-Timing what the stages of a call took.")
@flag("--allow-network-fs", is_flag=True, help="Accept a store on a network file system.")
@flag(
    "--drain-seconds",
    default=30.0,
    type=Seconds(0),
    help="How long a leaving worker finishes what it has in hand.",
)
@flag(
    "--keep-alive-grace-seconds",
    default=6.0,
    type=Seconds(0),
    help="How long a leaving worker leaves idle connections open; longer than clients use them.",
)
@flag(
    "--owner-timeout-seconds",
    type=Seconds(0, min_open=True),
    help="How long a forwarded call waits for its owner; if not given, as long as it takes.",
)
@flag(
    "--sweep-seconds",
    default=5.0,
    type=Seconds(0, min_open=True),
    help="How often a worker looks for what dead ones left.",
)
@flag(
    "--connections-max",
    type=click.IntRange(1),
    help="Connections of a worker; unless given, a quarter of its descriptors, at most 16,384.",
)
@flag(
    "--answer-stall-seconds",
    default=600.0,
    type=Seconds(0, min_open=True),
    help="A client that takes nothing of its answer for so long is cut off.",
)
@flag(
    "--hand-over/--no-hand-over",
    default=False,
    help="Hand a client's connection over to the worker that its requests are forwarded to.",
)
@flag(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Written when every worker answers.",
)
@admin_host_flag()
@admin_port_flag(default=None)
def serve(**options: Any) -> None:
    """Run the gateway.

    Without --upstream and --app it serves the embedded scripted model.
    """
    if options["upstream"] and options["app"]:
        raise click.UsageError("--upstream and --app exclude each other")
    if options["ready_file"] and not options["ready_file"].absolute().parent.is_dir():
        raise click.UsageError(f"--ready-file: {options['ready_file'].parent} is no directory")
    if options["upstream"]:
        _check_url(options["upstream"])
    _check_sessions(options)
    start_preloading(
        app=options["app"],
        upstream=options["upstream"],
        capture_dir=options["capture_dir"],
        admin=options["admin_port"],
    )
    from rollout_router.cli.serving import run_service  # noqa: PLC0415 - see the module's docstring

    run_service(options)


def _check_url(url: str) -> None:
    from rollout_router.gateway import Upstream  # noqa: PLC0415 - slow to import, seldom needed

    try:
        Upstream(url)
    except ValueError as error:
        raise click.UsageError(f"--upstream: {error}") from error


def _check_sessions(options: dict[str, Any]) -> None:
    given = [name for name in ("session_cookie", "session_header") if options[name] is not None]
    names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
    if len(given) > 1:
        raise click.UsageError(f"{names} exclude each other")
    if given and not (options["history_delta"] or options["route_always"]):
        raise click.UsageError(
            f"{names} has no effect with --no-history-delta: nothing is routed then; give"
            " --route-always too"
        )
