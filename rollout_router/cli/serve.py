# SPDX-License-Identifier: Apache-2.0
"""``rollout-router serve``: the gateway with several workers."""

import asyncio
import errno
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from rollout_router.claims import ClaimsError, FileClaimStore, new_nonce, read_gate
from rollout_router.cli.flags import ExitCode, Seconds, default_run_dir, flag, state_dir_flag
from rollout_router.gateway import CaptureSink, SinkRefused, SinkUnavailable
from rollout_router.routing.key_file import SecretRefused
from rollout_router.routing.run_dir import private_directory, private_socket_path
from rollout_router.serve.application import AppNotFound, load_app
from rollout_router.serve.config import ServeConfig
from rollout_router.serve.supervisor import PortTaken, Supervisor, bind_public

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
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Written when every worker answers.",
)
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
    try:
        config = _config(options)
        config.settings()
        _check(config)
    except (AppNotFound, OSError, ValueError) as error:
        _end(error, ExitCode.USAGE)
    except (ClaimsError, SecretRefused, SinkRefused, SinkUnavailable) as error:
        _end(error, ExitCode.REFUSED)
    try:
        listener = bind_public(options["host"], options["port"])
    except PortTaken as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = "; name another with --port" if taken else ""
        _end(f"{error.strerror}{advice}", ExitCode.FAILED)
    supervisor = Supervisor(
        config,
        listener,
        workers=options["workers"],
        ready_file=options["ready_file"],
        say=_say,
    )
    sys.exit(asyncio.run(supervisor.run()))


def _config(options: dict[str, Any]) -> ServeConfig:
    def absolute(path: Path | None) -> str | None:
        return None if path is None else str(path.absolute())

    return ServeConfig(
        state_dir=str(options["state_dir"].absolute()),
        run_dir=str(options["run_dir"].absolute()),
        service=options["service"],
        capture_dir=absolute(options["capture_dir"]),
        upstream=options["upstream"],
        app=options["app"],
        history_delta=options["history_delta"],
        route_always=options["route_always"],
        history_rollouts=options["history_rollouts"],
        history_bytes=options["history_bytes"],
        history_idle_s=options["history_idle_seconds"],
        rollout_header=options["rollout_header"],
        session_cookie=options["session_cookie"],
        session_header=options["session_header"],
        rollout_keys_file=absolute(options["rollout_keys"]),
        placement=options["placement"],
        server_timing=options["server_timing"],
        allow_network_fs=options["allow_network_fs"],
        drain_s=options["drain_seconds"],
        keep_alive_grace_s=options["keep_alive_grace_seconds"],
        owner_timeout_s=options["owner_timeout_seconds"],
        sweep_s=options["sweep_seconds"],
        connections_max=options["connections_max"],
        answer_stall_s=options["answer_stall_seconds"],
    )


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


def _check(config: ServeConfig) -> None:
    """Find what cannot work before a worker is started; makes the store."""
    if config.app is not None:
        sys.path.insert(0, "")  # as ``python -m`` has it in the workers
        load_app(config.app)
    private_directory(Path(config.run_dir))
    private_socket_path(Path(config.run_dir), new_nonce())  # every worker's has the same length
    store = FileClaimStore.open(
        Path(config.state_dir), service=config.service, allow_network_fs=config.allow_network_fs
    )
    if config.capture_dir is not None:
        CaptureSink(Path(config.capture_dir), store_id=store.store_id)
    gate = read_gate(Path(config.state_dir))
    if not gate.open:
        _say(f"admission is closed by {gate.by}: {gate.why}; calls get 503 until it is opened")


def _say(line: str) -> None:
    # A log that is full, or that nobody reads any more, must not end the service.
    with suppress(OSError):
        click.echo(f"rollout-router: {line}", err=True)


def _end(error: Exception | str, code: ExitCode) -> NoReturn:
    _say(str(error))
    sys.exit(code)
