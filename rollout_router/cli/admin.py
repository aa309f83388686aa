# SPDX-License-Identifier: Apache-2.0
"""``rollout-router admin``: the admin address of a store whose workers others started."""

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from rollout_router.claims import ClaimsError, read_admin_note
from rollout_router.cli.claims_view import open_to_read
from rollout_router.cli.flags import (
    ExitCode,
    admin_host_flag,
    admin_port_flag,
    allow_network_fs_flag,
    ended_by,
    state_dir_flag,
)
from rollout_router.cli.interrupts import unwound_by_signals
from rollout_router.metrics_files import FOLDER

__all__ = ["admin"]

_ANSWERS_S: Final = 1.0  # for a connection on this machine


@click.command()
@admin_host_flag()
@admin_port_flag(default=0)
@allow_network_fs_flag()
@state_dir_flag()
def admin(*, admin_host: str, admin_port: int, allow_network_fs: bool, state_dir: Path) -> None:
    """Serve the admin address of a store: page, API and metrics.

    For a store whose workers others started, as NeMo Gym does; `serve` has --admin-port. The
    workers must be this user's, on this machine.
    """
    from rollout_router.admin.config import AdminConfig  # noqa: PLC0415 - slow to import, as below
    from rollout_router.admin.process import serve  # noqa: PLC0415 - as above
    from rollout_router.cli.serving import admin_token, listen, shown_url  # noqa: PLC0415 - as above
    from rollout_router.serve.supervisor import local_url_of  # noqa: PLC0415 - as above

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    open_to_read(state_dir)
    _refuse_second(state_dir)
    listener = listen(admin_host, admin_port, flag="--admin-port")
    url, token = local_url_of(listener), admin_token()
    config = AdminConfig(
        state_dir=str(state_dir.absolute()),
        host=admin_host,
        url=url,
        token=token,
        allow_network_fs=allow_network_fs,
        metrics_dir=os.environ.get(FOLDER),
    )

    def ready() -> None:
        click.echo(f"rollout-router: admin: {shown_url(url, token, state_dir)}", err=True)

    with ended_by(ClaimsError, ExitCode.REFUSED):
        try:
            with unwound_by_signals():  # the server raises the signal that ended it again
                serve(config, listener, on_ready=ready)
        except (KeyboardInterrupt, SystemExit):
            # What waits for a worker in a thread, perhaps for an hour, does not keep the process.
            logging.shutdown()
            os._exit(ExitCode.FINE)


def _refuse_second(state_dir: Path) -> None:
    """One address a store: its note says where that is, and with which token."""
    note = read_admin_note(state_dir)
    if note is None:
        return
    address = urlsplit(note.url)
    try:
        socket.create_connection((address.hostname or "", address.port or 0), _ANSWERS_S).close()
    except (OSError, ValueError):
        return  # nobody is there: the note was left behind
    click.echo(
        f"rollout-router: {note.url} is the admin address of this store already (pid {note.pid})",
        err=True,
    )
    sys.exit(ExitCode.REFUSED)
