# SPDX-License-Identifier: Apache-2.0
"""packaging/nginx.conf under a real nginx, in front of a real gateway: docs/guides/nginx.md.

Only its two ports are replaced. The nginx is the test's own: one process, in a private folder.
"""

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.control import Call, Control
from support.gateway import PATIENCE_S, Gateway, Process, Shim, client_at, kill_and_wait
from support.ports import quiet_port

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "packaging" / "nginx.conf").read_text(encoding="utf-8")
BODY_BYTES_MAX = 64 * 1024**2
EVENT = "data: x\n\n"
Stream = tuple[Call, http.client.HTTPResponse, http.client.HTTPConnection]

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


class Nginx(Process):
    """A running nginx with the packaged configuration."""

    program = shutil.which("nginx") or "nginx"

    def __init__(self, folder: Path, upstream: str, configuration: str = CONFIGURATION) -> None:
        address = f"127.0.0.1:{quiet_port()}"
        self.url = f"http://{address}"
        super().__init__([*_flags(folder, address, upstream, configuration), "-g", "daemon off;"])
        self.wait_line("start worker process")


def _flags(folder: Path, address: str, upstream: str, configuration: str) -> list[str]:
    site = configuration.replace("127.0.0.1:9000", upstream).replace("127.0.0.1:8080", address)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nerror_log stderr notice;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}include {folder}/site.conf;\n}}\n"
    )
    return ["-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


@pytest.fixture
def nginx(folder: Path) -> Iterator[Callable[..., Nginx]]:
    """Start nginx in front of a URL; it is stopped afterwards."""
    started: list[Nginx] = []

    def start(url: str, configuration: str = CONFIGURATION) -> Nginx:
        own = folder / f"n{len(started)}"
        own.mkdir(mode=0o755)
        folder.chmod(0o755)  # the workers of an nginx that root starts are another user's
        started.append(Nginx(own, urlsplit(url).netloc, configuration))
        return started[-1]

    yield start
    for one in started:
        assert one.stop() == 0


def test_nginx_takes_the_configuration_and_the_guide_shows_all_of_it(folder: Path) -> None:
    flags = _flags(folder, "127.0.0.1:8080", "127.0.0.1:9000", CONFIGURATION)
    done = subprocess.run(["nginx", *flags, "-t"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    page = (ROOT / "docs" / "guides" / "nginx.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    assert CONFIGURATION.endswith(shown)


@pytest.fixture
def stream(
    serve: Callable[..., Gateway], control: Control, nginx: Callable[..., Nginx]
) -> Iterator[Stream]:
    """A stream through nginx, of which the client has the first event."""
    gateway = serve(control=control.path, workers=1, capture=False)
    control.hold("r1")
    address = urlsplit(nginx(gateway.url).url).netloc
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request("POST", "/sessions/r1/v1/responses", b"{}")
        call = control.next_call("r1")
        call.begin(headers={"content-type": "text/event-stream"})
        call.send(EVENT)
        answer = connection.getresponse()
        assert answer.read(len(EVENT)) == EVENT.encode()  # while nothing else is to come
        yield call, answer, connection


@pytest.mark.long
def test_streams_leave_nginx_event_by_event(stream: Stream) -> None:
    call, answer, _ = stream
    for _ in range(3):
        call.send(EVENT)
        assert answer.read(len(EVENT)) == EVENT.encode()
    call.end()
    assert answer.read() == b""


@pytest.mark.long
def test_r4_a_stream_that_is_cut_behind_nginx_does_not_end_cleanly(
    stream: Stream,
) -> None:
    call, answer, _ = stream
    kill_and_wait(call.pid)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        answer.read()


@pytest.mark.long
def test_a_client_that_leaves_nginx_ends_its_call(
    stream: Stream,
) -> None:
    call, answer, connection = stream
    answer.close()
    connection.close()
    call.wait_gone()


@pytest.mark.long
def test_s1_deltas_and_a_killed_owner_pass_through_nginx(
    gateway: Gateway, nginx: Callable[..., Nginx], shim: Callable[..., Shim]
) -> None:
    sandbox = shim(nginx(gateway.url).url)
    owners = []
    for turn in range(4):
        body = json.dumps({"model": "m", "input": "word " * 40_000 + "more " * turn}).encode()
        answer = sandbox.post("r1", body)
        assert answer.status_code == 200
        owners.append(answer.headers["rollout-worker"])
        if turn == 1:
            gateway.kill_worker(owners[-1])
    assert owners[0] == owners[1] != owners[2] == owners[3]
    counted = sandbox.stop_and_count()["r1"]
    assert (counted["calls"], counted["resyncs"]) == (4, 1)
    assert counted["bytes_sent"] < counted["bytes_full"]


@pytest.mark.long
def test_bodies_have_the_bound_of_serve_and_no_admin_path_is_there(
    gateway: Gateway, nginx: Callable[..., Nginx]
) -> None:
    front = nginx(gateway.url)
    assert _first_line(front, BODY_BYTES_MAX).startswith("HTTP/1.1 100 ")
    assert _first_line(front, BODY_BYTES_MAX + 1).startswith("HTTP/1.1 413 ")

    with client_at(front.url) as client:
        for path in ("/metrics", "/api/overview", "/readyz", "/api/claims/r1/force"):
            assert client.get(path).status_code == 404
            assert client.post(path, json={"yes": True}).status_code in {404, 405}


@pytest.mark.parametrize(
    ("configuration", "requests"),
    [
        pytest.param(CONFIGURATION, 2, id="as it is"),
        pytest.param(
            CONFIGURATION.replace("proxy_next_upstream off", "proxy_next_upstream error"),
            3,
            id="with what nginx does by itself",
            marks=pytest.mark.long,
        ),
    ],
)
def test_r2_a_request_whose_connection_breaks_is_not_sent_again(
    nginx: Callable[..., Nginx], configuration: str, requests: int
) -> None:
    with _breaking(requests) as (url, heads), client_at(nginx(url, configuration).url) as client:
        assert client.get("/first").status_code == 200
        last = client.get("/second")
    assert [head.split()[1] for head in heads] == ["/first", *["/second"] * (requests - 1)]
    assert last.status_code == (502 if requests == 2 else 200)


@contextmanager
def _breaking(requests: int) -> Iterator[tuple[str, list[str]]]:
    """A server that answers the first request, breaks at the second on the same connection, and
    answers a third one, where it comes. Gives its URL and the heads that came.
    """
    heads: list[str] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            with closing(listener.accept()[0]) as connection:
                heads.append(connection.recv(65536).decode())
                connection.sendall(answer)
                heads.append(connection.recv(65536).decode())
            if requests > 2:
                with closing(listener.accept()[0]) as connection:
                    heads.append(connection.recv(65536).decode())
                    connection.sendall(answer)

        working = threading.Thread(target=work)
        working.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
        working.join(PATIENCE_S)
        assert not working.is_alive()


def _first_line(front: Nginx, length: int) -> str:
    """How the answer to a request begins that announces a body of so many bytes."""
    address = urlsplit(front.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
        connection.settimeout(PATIENCE_S)
        connection.sendall(
            b"POST /sessions/r1/v1/responses HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
        )
        return connection.recv(4096).decode().partition("\r\n")[0]
