# SPDX-License-Identifier: Apache-2.0
import socket
import threading
from collections.abc import Iterator

import pytest

from rollout_router.transport.sandbox.pool import (
    Gateway,
    HarnessGone,
    Pool,
    SendFailed,
    Watch,
    parse_gateway,
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(listener: socket.socket, clock: Clock) -> Iterator[Pool]:
    port = listener.getsockname()[1]
    made = Pool(parse_gateway(f"http://127.0.0.1:{port}"), idle_s=4.0, clock=clock)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("url", "gateway"),
    [
        ("http://h", Gateway(False, "h", 80, "h", "")),  # noqa: FBT003 - a record
        ("https://h:443/", Gateway(True, "h", 443, "h", "")),  # noqa: FBT003 - a record
        ("http://1.2.3.4:80/a/b/", Gateway(False, "1.2.3.4", 80, "1.2.3.4", "/a/b")),  # noqa: FBT003 - a record
        ("https://[::1]:8443", Gateway(True, "::1", 8443, "[::1]:8443", "")),  # noqa: FBT003 - a record
    ],
)
def test_a_gateway_url_is_read(url: str, gateway: Gateway) -> None:
    assert parse_gateway(url) == gateway


def test_an_origin_has_no_path() -> None:
    assert parse_gateway("https://h:8443/prefix").origin == "https://h:8443"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:80",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:65536",
        "http://u:p@h",
        "http://h/?q",
        "http://h/#f",
        "http://h/a b",
        "http://h\r\nX: 1",
    ],
)
def test_what_is_no_gateway_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_gateway(url)


def test_s4_an_idle_connection_is_used_again_until_its_time_is_over(
    pool: Pool, clock: Clock, listener: socket.socket
) -> None:
    connection = pool.connect()
    peer, _ = listener.accept()
    pool.release(connection)

    clock.now_s = 3.9
    assert pool.acquire() is connection
    pool.release(connection)
    clock.now_s = 7.9

    assert pool.acquire() is None
    assert peer.recv(1) == b""  # it was closed here, before the server would
    peer.close()


def test_s4_idle_connections_are_retired_by_time_alone(
    pool: Pool, clock: Clock, listener: socket.socket
) -> None:
    first, second = pool.connect(), pool.connect()
    peers = [listener.accept()[0] for _ in range(2)]
    assert pool.retire() is None
    pool.release(first)
    clock.now_s = 1.0
    pool.release(second)

    assert pool.retire() == 3.0
    clock.now_s = 4.0
    assert pool.retire() == 1.0
    assert peers[0].recv(1) == b""
    clock.now_s = 5.0
    assert pool.retire() is None
    assert peers[1].recv(1) == b""
    for peer in peers:
        peer.close()


def test_s4_whoever_retires_is_told_of_a_new_date(listener: socket.socket) -> None:
    dates: list[float | None] = []
    port = listener.getsockname()[1]
    pool = Pool(parse_gateway(f"http://127.0.0.1:{port}"), on_idle=lambda: dates.append(0.0))
    first, second = pool.connect(), pool.connect()

    pool.release(first)
    pool.release(second)  # due after the first
    assert len(dates) == 1
    assert pool.acquire() is second
    assert pool.acquire() is first
    pool.release(first)

    assert len(dates) == 2
    second.close()
    pool.close()


def test_s3_a_connection_that_the_server_closed_is_not_used(
    pool: Pool, listener: socket.socket
) -> None:
    connection = pool.connect()
    peer, _ = listener.accept()
    pool.release(connection)
    peer.close()

    assert pool.acquire() is None


def test_s2_a_connection_in_use_is_given_to_nobody_else(pool: Pool) -> None:
    first = pool.connect()
    pool.release(first)
    held = pool.acquire()

    assert held is first
    assert pool.acquire() is None
    first.close()


def test_the_number_of_idle_connections_is_bounded(pool: Pool, listener: socket.socket) -> None:
    peers = []
    for connection in [pool.connect() for _ in range(33)]:
        peers.append(listener.accept()[0])
        pool.release(connection)

    assert peers[0].recv(1) == b""
    for peer in peers:
        peer.close()


def test_a_wait_ends_when_the_harness_goes_away() -> None:
    upstream, gateway = socket.socketpair()
    near, far = socket.socketpair()
    with upstream, gateway, near:
        raised = threading.Event()

        def wait() -> None:
            with pytest.raises(HarnessGone):
                Watch(near).wait(upstream, 1)
            raised.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        far.close()
        waiting.join()

        assert raised.is_set()


def test_a_harness_that_has_sent_more_is_still_watched() -> None:
    upstream, gateway = socket.socketpair()
    near, far = socket.socketpair()
    with upstream, gateway, near:
        far.sendall(b"the next request")
        gateway.sendall(b"x")
        watch = Watch(near)
        assert watch.wait(upstream, 1) & 1
        upstream.recv(1)
        far.close()
        with pytest.raises(HarnessGone):
            watch.wait(upstream, 1)


def test_s3_a_failed_send_says_how_much_had_gone_out(pool: Pool, listener: socket.socket) -> None:
    connection = pool.connect()
    peer, _ = listener.accept()
    peer.sendall(b"x")
    assert connection.recv(1, Watch(None)) == b"x"
    # The first bytes are taken and answered with a reset; what follows finds a closed connection.
    peer.close()
    connection.send([b"a"], Watch(None))
    connection.recv(1, Watch(None))

    with pytest.raises(SendFailed) as caught:
        connection.send([b"b"], Watch(None))

    assert caught.value.bytes_sent == 0
    connection.close()
