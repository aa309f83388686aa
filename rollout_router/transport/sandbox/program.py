# SPDX-License-Identifier: Apache-2.0
"""The second part of the program: serve until a signal says that it is over."""

import json
import signal
import socket
from typing import Any, Dict, Sequence

from rollout_router.transport.sandbox.flags import shim_arguments
from rollout_router.transport.sandbox.reports import Reports
from rollout_router.transport.sandbox.shim import Shim
from rollout_router.transport.sandbox.start import to_stderr, write_file

__all__ = ["run"]


def run(settings: Dict[str, Any], listener: Any, signals: Sequence[int]) -> int:
    """Serve what arrives at *listener*.

    Args:
        settings: right ones, by flag with underscores.
        listener: a bare listening socket; it is taken over.
        signals: blocked ones; SIGUSR1 writes the statistics, any other ends it.

    Returns:
        The exit code.
    """
    with socket.socket(fileno=listener.detach()) as listening:
        reports = Reports(to_stderr)
        shim = Shim(report=reports.say, **shim_arguments(settings))
        try:
            reports.start()
        except RuntimeError as error:  # no thread could be started
            to_stderr(f"cannot start: {error}")
            return 1
        try:
            return _serve(shim, listening, signals, reports, settings.get("statistics_file"))
        finally:
            reports.close()


def _serve(  # noqa: PLR0917 - one private place
    shim: Shim, listening: socket.socket, signals: Any, reports: Reports, statistics_file: Any
) -> int:
    try:
        shim.start(listening)
        while signal.sigwait(signals) == signal.SIGUSR1:
            _write_statistics(shim, reports, statistics_file)
    except (OSError, RuntimeError) as error:  # no thread could be started
        reports.say(f"cannot start: {error}")
        return 1
    finally:
        shim.stop()
    return 0 if _write_statistics(shim, reports, statistics_file) else 1


def _write_statistics(shim: Shim, reports: Reports, path: Any) -> bool:
    """Whether they are where they were asked for."""
    if path:
        try:
            write_file(path, json.dumps(shim.statistics()))
        except OSError as error:
            reports.say(f"statistics could not be written to {path}: {error}")
            return False
        reports.say(f"statistics written to {path}")
    return True
