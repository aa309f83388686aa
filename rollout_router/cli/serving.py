# SPDX-License-Identifier: Apache-2.0
"""What ``rollout-router serve`` does once its settings are read: checks, port, supervisor."""

import asyncio
import errno
import os
import secrets
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

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
from rollout_router.logs import configure
from rollout_router.metrics_files import FOLDER, fold
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


def run_service(config: ServeConfig) -> NoReturn:
    """Serve as *config* says; exits with a message where that cannot be."""
    writing = configure(config.log_format, config.log_level)
    try:
        sys.exit(_served(config, writing.say))
    finally:
        writing.stop()


def _served(config: ServeConfig, say: Callable[[str], None]) -> int:
    try:
        config.settings()
        _check(config, say)
    except (AppNotFound, OSError, ValueError) as error:
        _end(error, ExitCode.USAGE)
    except (ClaimsError, SecretRefused, SinkRefused, SinkUnavailable) as error:
        _end(error, ExitCode.REFUSED)
    listener = listen(config.host, config.port, flag="--port")
    supervisor = Supervisor(
        config,
        listener,
        workers=config.workers,
        ready_file=config.ready_file,
        say=say,
        admin=_admin(config, url_of(listener), say),
        on_ended=partial(_fold, say) if FOLDER in os.environ else None,
    )
    return asyncio.run(supervisor.run())


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


def _admin(config: ServeConfig, public_url: str, say: Callable[[str], None]) -> AdminSlot | None:
    if config.admin_port is None:
        return None
    listener = listen(config.admin_host, config.admin_port, flag="--admin-port")
    url, token = local_url_of(listener), admin_token()
    told = AdminConfig(
        state_dir=str(config.state_dir),
        host=config.admin_host,
        url=url,
        token=token,
        public_url=public_url,
        allow_network_fs=config.allow_network_fs,
        metrics_dir=os.environ[FOLDER],
        log_format=config.log_format,
        log_level=config.log_level,
    )
    shown = shown_url(url, token, config.state_dir)
    return AdminSlot(told, listener, shown=shown, say=say)


def _fold(say: Callable[[str], None], pid: int) -> None:
    """What an ended process counted stays; where it cannot be added up its files stay."""
    try:
        fold(Path(os.environ[FOLDER]), pid)
    except OSError as error:
        say(f"what process {pid} counted is not added up: {error}")


def _check(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Find what cannot work before a worker is started; makes the store."""
    if config.app is not None:
        sys.path.insert(0, "")  # as ``python -m`` has it in the workers
        load_app(config.app)
    private_directory(config.run_dir)
    private_socket_path(config.run_dir, new_nonce())  # every worker's has the same length
    store = FileClaimStore.open(
        config.state_dir, service=config.service, allow_network_fs=config.allow_network_fs
    )
    if config.capture_dir is not None:
        CaptureSink(config.capture_dir, store_id=store.store_id)
    gate = read_gate(config.state_dir)
    if not gate.open:
        left_s = gate.seconds_left(Moment.now())
        end = "until it is opened" if left_s is None else f"for {left_s:.0f} s more"
        say(f"admission is closed by {gate.by}: {gate.why}; calls get 503 {end}")


def _end(error: Exception | str, code: ExitCode) -> NoReturn:
    click.echo(f"rollout-router: {error}", err=True)
    sys.exit(code)
