# SPDX-License-Identifier: Apache-2.0
"""Ports that are really taken, and upstreams that really do not answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollout_router.doctor import Status, network
from rollout_router.serve.config import ServeConfig


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that says one answer to each connection, and its URL; none: it says nothing."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_a_port_that_is_free_stays_free() -> None:
    port = free_port()
    config = ServeConfig(port=port, admin_port=0)
    assert [network.public_port(config).status for _ in range(2)] == [Status.OK] * 2
    assert network.admin_port(config).status is Status.OK
    assert network.admin_port(ServeConfig()).status is Status.SKIPPED


def test_a_port_that_is_taken_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        public = network.public_port(ServeConfig(port=port))
        admin = network.admin_port(ServeConfig(admin_port=port))
    assert (public.status, admin.status) == (Status.FAIL, Status.FAIL)
    assert f"127.0.0.1:{port}: Address already in use" in public.found
    assert public.advice.endswith("--port")
    assert admin.advice.endswith("--admin-port")


def test_an_address_that_is_not_this_machines_fails() -> None:
    assert network.public_port(ServeConfig(host="192.0.2.1", port=0)).status is Status.FAIL


def test_one_port_cannot_be_both() -> None:
    port = free_port()
    assert "public port too" in network.admin_port(ServeConfig(port=port, admin_port=port)).found
    assert network.admin_port(ServeConfig(port=0, admin_port=0)).status is Status.OK


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Status.OK, "with 200"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", Status.OK, "with 401"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", Status.WARN, "with 404"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", Status.WARN, "with 503"),
        (b"SSH-2.0-OpenSSH\r\n", Status.FAIL, "does not speak HTTP"),
        (b"", Status.FAIL, "cannot be reached"),
    ],
)
def test_an_upstream_is_judged_by_what_it_answers(answer: bytes, status: Status, said: str) -> None:
    with answering(answer) as place:
        found = network.upstream(ServeConfig(upstream=f"http://user:secret@{place}/v1"))
    assert (found.status, said in found.found) == (status, True)
    assert "secret" not in found.found


def test_an_upstream_that_is_not_there_fails() -> None:
    assert network.upstream(ServeConfig()).status is Status.SKIPPED
    found = network.upstream(ServeConfig(upstream=f"http://127.0.0.1:{free_port()}"))
    assert (found.status, "Connection refused" in found.found) == (Status.FAIL, True)


def test_an_upstream_whose_name_nobody_knows_fails() -> None:
    found = network.upstream(ServeConfig(upstream="http://nobody.invalid"), patience_s=30)
    assert (found.status, "no such name" in found.found) == (Status.FAIL, True)


def test_an_upstream_without_tls_fails_where_tls_is_asked_for() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as place:
        found = network.upstream(ServeConfig(upstream=f"https://{place}"))
    assert (found.status, "no TLS" in found.found) == (Status.FAIL, True)


def test_an_upstream_that_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = network.upstream(ServeConfig(upstream=url), patience_s=0.05)
    assert found.status is Status.FAIL
