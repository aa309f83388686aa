# SPDX-License-Identifier: Apache-2.0
import socket
import struct
from collections.abc import Iterator

import pytest

from rollout_router.transport.sandbox.exchange import Exchange, GatewayUnreachable
from rollout_router.transport.sandbox.pool import Connection, Pool, parse_gateway
from rollout_router.transport.sandbox.streams import Cut


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def pool(listener: socket.socket) -> Iterator[Pool]:
    made = Pool(parse_gateway(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    yield made
    made.close()


def begun(pool: Pool, listener: socket.socket, answer: bytes) -> tuple[Exchange, socket.socket]:
    exchange = Exchange(pool, "POST", None)
    exchange.begin([b"request"])
    peer, _ = listener.accept()
    peer.sendall(answer)
    return exchange, peer


def test_s2_the_connection_is_free_with_the_last_byte_of_a_length(
    pool: Pool, listener: socket.socket
) -> None:
    exchange, peer = begun(pool, listener, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
    with peer:
        exchange.read_head()

        assert next(exchange.body()) == b"abc"

        connection = pool.acquire()
        assert connection is not None
        connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", id="close"
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy", id="more than announced"),
    ],
)
def test_s2_a_connection_that_cannot_go_on_is_closed(
    pool: Pool, listener: socket.socket, answer: bytes
) -> None:
    exchange, peer = begun(pool, listener, answer)
    with peer:
        exchange.read_head()

        assert b"".join(exchange.body()) == b"x"

        assert pool.acquire() is None


def test_s2_an_exchange_that_is_closed_early_closes_its_connection(
    pool: Pool, listener: socket.socket
) -> None:
    exchange, peer = begun(pool, listener, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab")
    with peer:
        exchange.read_head()
        exchange.close()
        exchange.close()

        assert pool.acquire() is None
        assert peer.recv(7) == b"request"
        assert peer.recv(1) == b""
        with pytest.raises(Cut):
            exchange.read_head()


def test_s3_a_kept_connection_that_closes_in_the_last_moment_is_replaced(
    pool: Pool, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = pool.connect()
    stale, _ = listener.accept()
    pool.release(kept)
    stale.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stale.close()
    monkeypatch.setattr(Connection, "is_quiet", lambda _: True)  # it closed just after the look

    exchange, peer = begun(pool, listener, b"HTTP/1.1 204 No Content\r\n\r\n")

    with peer:
        assert exchange.read_head().status == 204
        assert list(exchange.body()) == []
        assert peer.recv(100) == b"request"


def test_s3_a_connection_that_closes_after_a_byte_is_not_replaced(
    pool: Pool, listener: socket.socket
) -> None:
    exchange, peer = begun(pool, listener, b"")
    peer.close()

    with pytest.raises(Cut):
        exchange.read_head()

    exchange.close()
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_gateway_that_refuses_is_unreachable(pool: Pool, listener: socket.socket) -> None:
    listener.close()

    with pytest.raises(GatewayUnreachable):
        Exchange(pool, "POST", None).begin([b"request"])
