# SPDX-License-Identifier: Apache-2.0
"""nginx and HAProxy with a consistent hash over two workers' sockets, as processes of our own.

One process and one thread each, in the foreground, its files in a folder of ours. Connections to
the workers are kept, nothing is logged, and an answer leaves as it comes.
"""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.processes import environment

__all__ = ["PROXIES", "Proxy"]

PROXIES: Final = ("nginx", "haproxy")
_PLACES: Final = ("/usr/sbin", "/usr/local/sbin")  # where the PATH of a user does not look
_PATIENCE_S: Final = 0.05
_TRIES_MAX: Final = 600
_STOP_S: Final = 10.0

_NGINX: Final = """\
daemon off;
master_process off;
user {user};
pid {folder}/nginx.pid;
error_log {folder}/nginx.log error;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_body_buffer_size 2m;
  client_max_body_size 16m;
  keepalive_requests 100000000;
  keepalive_timeout 3600s;
  upstream workers {{
    hash $uri consistent;
{servers}
    keepalive 1024;
    keepalive_requests 100000000;
    keepalive_timeout 3600s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://workers;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

_HAPROXY: Final = """\
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  option http-keep-alive
  http-reuse always
frontend public
  bind 127.0.0.1:{port} backlog 2048
  default_backend workers
backend workers
  balance uri
  hash-type consistent
{servers}
"""


class Proxy:
    """One that runs; ended by :meth:`stop`.

    Args:
        name: of :data:`PROXIES`.
        folder: for its files; made here.
        sockets: of the workers.

    Raises:
        BenchFailed: it did not start, and does not run.
    """

    def __init__(self, name: str, program: str, folder: Path, sockets: Sequence[str]) -> None:
        self._name = name
        folder.mkdir()
        self.port = _free_port()
        settings = folder / "settings"
        form, line, arguments = _FORMS[name]
        servers = "\n".join(line(number, path) for number, path in enumerate(sockets))
        settings.write_text(
            form.format(folder=folder, port=self.port, servers=servers, user=getpass.getuser())
        )
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - found where programs are
                [program, *arguments(folder, settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )
        self._wait_listening()

    @staticmethod
    def program(name: str) -> str | None:
        """Where the program is; None where it is not installed."""
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
        return shutil.which(name, path=path)

    @property
    def pid(self) -> int:
        """Of its only process."""
        return self._process.pid

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_listening(self) -> None:
        for _ in range(_TRIES_MAX):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                try:
                    self._process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    continue
                break
            return
        self.stop()
        raise BenchFailed(f"{self._name} did not start: {self._log.read_text()[-500:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


_FORMS: Final[
    dict[str, tuple[str, Callable[[int, str], str], Callable[[Path, Path], list[str]]]]
] = {
    "nginx": (
        _NGINX,
        lambda _, path: f"    server unix:{path};",
        lambda folder, settings: [
            *("-p", str(folder), "-c", str(settings)),
            *("-e", str(folder / "nginx.log")),
        ],
    ),
    "haproxy": (
        _HAPROXY,
        lambda number, path: f"  server worker{number} unix@{path}",
        lambda _, settings: ["-db", "-f", str(settings)],
    ),
}
