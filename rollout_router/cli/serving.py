# SPDX-License-Identifier: Apache-2.0
"""What ``rollout-router serve`` does once its flags are read: checks, the port, the supervisor."""

import asyncio
import errno
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from rollout_router.admin.config import AdminConfig
from rollout_router.claims import (
    ADMIN_NOTE,
    ClaimsError,
    FileClaimStore,
    Moment,
    new_nonce,
    read_gate,
)
from rollout_router.cli.flags import ExitCode
from rollout_router.gateway import CaptureSink, SinkRefused, SinkUnavailable
from rollout_router.routing.key_file import SecretRefused
from rollout_router.routing.run_dir import private_directory, private_socket_path
from rollout_router.serve.admin_slot import AdminSlot
from rollout_router.serve.application import AppNotFound, load_app
from rollout_router.serve.config import ServeConfig
from rollout_router.serve.supervisor import (
    PortTaken,
    Supervisor,
    bind_public,
    local_url_of,
    url_of,
)

__all__ = ["admin_token", "listen", "run_service", "shown_url"]

_TOKEN_BYTES: Final = 32


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
    listener = listen(options["host"], options["port"], flag="--port")
    supervisor = Supervisor(
        config,
        listener,
        workers=options["workers"],
        ready_file=options["ready_file"],
        say=_say,
        admin=_admin(config, url_of(listener)),
    )
    sys.exit(asyncio.run(supervisor.run()))


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """Listen there; exits with a message, and names *flag* where another port would do."""
    try:
        return bind_public(host, port)
    except PortTaken as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = f"; name another with {flag}" if taken else ""
        _end(f"{error.strerror}{advice}", ExitCode.FAILED)


def admin_token() -> str:
    """A new one: nobody can guess it, and it lives as long as the service."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def shown_url(url: str, token: str, state_dir: Path) -> str:
    """An admin address for people: with the token at a terminal; a log is read by others too."""
    if sys.stderr.isatty():
        return f"{url}/#token={token}"
    return f"{url} (what changes anything needs the token in {state_dir / ADMIN_NOTE})"


def _admin(config: ServeConfig, public_url: str) -> AdminSlot | None:
    if config.admin_port is None:
        return None
    listener = listen(config.admin_host, config.admin_port, flag="--admin-port")
    url, token = local_url_of(listener), admin_token()
    told = AdminConfig(
        state_dir=config.state_dir,
        host=config.admin_host,
        url=url,
        token=token,
        public_url=public_url,
        allow_network_fs=config.allow_network_fs,
    )
    shown = shown_url(url, token, Path(config.state_dir))
    return AdminSlot(told, listener, shown=shown, say=_say)


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
        admin_host=options["admin_host"],
        admin_port=options["admin_port"],
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
