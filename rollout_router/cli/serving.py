# SPDX-License-Identifier: Apache-2.0
"""What ``rollout-router serve`` does once its flags are read: checks, the port, the supervisor."""

import asyncio
import errno
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from rollout_router.claims import ClaimsError, FileClaimStore, Moment, new_nonce, read_gate
from rollout_router.cli.flags import ExitCode
from rollout_router.gateway import CaptureSink, SinkRefused, SinkUnavailable
from rollout_router.routing.key_file import SecretRefused
from rollout_router.routing.run_dir import private_directory, private_socket_path
from rollout_router.serve.application import AppNotFound, load_app
from rollout_router.serve.config import ServeConfig
from rollout_router.serve.supervisor import PortTaken, Supervisor, bind_public

__all__ = ["run_service"]


def run_service(options: dict[str, Any]) -> NoReturn:
    """Serve as *options* say; exits with a message where that cannot be."""
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
        hand_over=options["hand_over"],
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
        left_s = gate.seconds_left(Moment.now())
        end = "until it is opened" if left_s is None else f"for {left_s:.0f} s more"
        _say(f"admission is closed by {gate.by}: {gate.why}; calls get 503 {end}")


def _say(line: str) -> None:
    # A log that is full, or that nobody reads any more, must not end the service.
    with suppress(OSError):
        click.echo(f"rollout-router: {line}", err=True)


def _end(error: Exception | str, code: ExitCode) -> NoReturn:
    _say(str(error))
    sys.exit(code)
