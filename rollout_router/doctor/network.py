# SPDX-License-Identifier: Apache-2.0
"""Ports that a service would listen on, and the upstream that it would call."""

import http.client
import queue
import socket
import ssl
import threading
from typing import Final
from urllib.parse import urlsplit

from rollout_router.doctor.checked import Checked, fail, ok, skipped, warn
from rollout_router.serve.config import ServeConfig
from rollout_router.serve.supervisor import PortTaken, bind_public

__all__ = ["admin_port", "public_port", "upstream"]

UPSTREAM_S: Final = 5.0
"""For name, connection, TLS and the first line of an answer together."""

_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


def public_port(config: ServeConfig) -> Checked:
    """Whether the public port is free; it is, again, afterwards."""
    return _port(config.host, config.port, "--port")


def admin_port(config: ServeConfig) -> Checked:
    """Whether the admin port is free, and not the public one."""
    if config.admin_port is None:
        return skipped("there is no admin address: no --admin-port")
    same = (config.admin_host, config.admin_port) == (config.host, config.port)
    if same and config.port != 0:
        return fail(f"{config.port} is the public port too", "name another one with --admin-port")
    return _port(config.admin_host, config.admin_port, "--admin-port")


def upstream(config: ServeConfig, *, patience_s: float = UPSTREAM_S) -> Checked:
    """Whether the upstream can be reached and speaks HTTP. Sends no credentials.

    A name server may take longer than any time-out of ours, so that a thread does it, and is left
    behind.
    """
    if config.upstream is None:
        return skipped("no --upstream")
    shown = str(config.shown()["upstream"])
    answers: queue.SimpleQueue[Checked] = queue.SimpleQueue()
    url = config.upstream

    def look() -> None:
        answers.put(_ask(url, shown, patience_s))

    threading.Thread(target=look, name="upstream", daemon=True).start()
    try:
        return answers.get(timeout=patience_s)
    except queue.Empty:
        return fail(
            f"{shown} did not answer within {patience_s:g} s",
            "see that it is up, and the way to it",
        )


def _port(host: str, port: int, flag: str) -> Checked:
    try:
        with bind_public(host, port) as listener:
            free = listener.getsockname()[1]
    except PortTaken as error:
        return fail(str(error.strerror), f"end what listens there, or name another one with {flag}")
    return ok(f"{host}:{free} is free" if port else f"any port of {host}")


def _ask(url: str, shown: str, patience_s: float) -> Checked:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=patience_s)
    path = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1/models"
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except ssl.SSLError as error:
        return fail(f"{shown}: no TLS: {error.reason or error}", "see its certificate, or use http")
    except socket.gaierror as error:
        return fail(
            f"{shown}: no such name: {error.strerror}", "see --upstream and the name server"
        )
    except OSError as error:
        return fail(f"{shown} cannot be reached: {error}", "see that it is up, and the way to it")
    except http.client.HTTPException as error:
        return fail(
            f"{shown} does not speak HTTP: {error!r}", "see the port and the scheme of --upstream"
        )
    finally:
        connection.close()
    found = f"{shown} answers GET {path} with {status}"
    if status == _NOT_FOUND:
        return warn(found, "see that the path of --upstream is right; some servers lack that one")
    return ok(found) if status < _SERVER_ERROR else warn(found, "see what is wrong with it")
