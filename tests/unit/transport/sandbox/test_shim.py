# SPDX-License-Identifier: Apache-2.0
"""The laws of the sandbox side, over real sockets, against a gateway that a test scripts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from rollout_router.transport.sandbox import client as client_module
from rollout_router.transport.sandbox import shim as shim_module
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.frame import parse_frame
from rollout_router.transport.sandbox.shim import Shim

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from unit.transport.sandbox.conftest import FakeGateway, Handler, Harness, Received, Said

WAIT_S = 30.0
ONE = b'{"messages":["' + b"the first turn " * 40 + b'"]}'
TWO = ONE[:-2] + b',"and the second"]}'
THREE = TWO[:-2] + b',"and the third"]}'
OK = (200, b'{"ok":1}')


def say(harness: Harness, body: bytes) -> tuple[int, bytes]:
    status, headers, answer = harness.post(body)
    assert wire.HISTORY_HEADER not in headers
    return status, answer


def kinds(gateway: FakeGateway) -> list[str]:
    names = {(True, False): "frame", (False, True): "keep", (False, False): "plain"}
    return [names[received.framed, received.kept] for received in gateway.received]


def answer_with(status: int, body: bytes = b"{}", **headers: str) -> Callable[..., None]:
    def script(handler: Handler, _: Received) -> None:
        handler.answer(status, body, **headers)

    return script


def test_h1_the_application_sees_what_the_harness_wrote(
    harness: Harness, gateway: FakeGateway
) -> None:
    assert [say(harness, body) for body in (ONE, TWO, TWO, THREE)] == [OK] * 4

    assert gateway.bodies == [ONE, TWO, TWO, THREE]
    assert kinds(gateway) == ["keep", "frame", "frame", "frame"]


def test_s1_the_harness_never_sees_a_resync(harness: Harness, gateway: FakeGateway) -> None:
    say(harness, ONE)
    gateway.bases.clear()

    assert say(harness, TWO) == OK
    assert say(harness, THREE) == OK

    assert kinds(gateway) == ["keep", "frame", "frame", "frame"]
    assert gateway.bodies == [ONE, TWO, THREE]


def test_s1_a_gateway_that_only_resyncs_is_cut_off(
    harness: Harness, gateway: FakeGateway, reports: Said
) -> None:
    say(harness, ONE)
    gateway.scripts += [answer_with(409, Rollout_History=wire.RESYNC)] * 2

    with pytest.raises(ConnectionError):
        harness.post(TWO)

    assert kinds(gateway) == ["keep", "frame", "frame"]
    assert "rollout r1" in reports.next()


@pytest.mark.parametrize("status", [401, 403, 408, 409, 410, 413, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("calls_before", [0, 1], ids=["full", "frame"])
def test_s1_what_an_application_answers_is_handed_on_as_it_is(
    harness: Harness, gateway: FakeGateway, status: int, calls_before: int
) -> None:
    for _ in range(calls_before):
        say(harness, ONE)
    gateway.scripts.append(answer_with(status, b"its own", Retry_After="7", X_Why="because"))

    found, headers, body = harness.post(TWO)

    assert (found, body) == (status, b"its own")
    assert (headers["Retry-After"], headers["X-Why"]) == ("7", "because")
    assert kinds(gateway) == ["keep", "frame"] if calls_before else ["keep"]


def test_s2_a_blocked_answer_blocks_no_other(harness: Harness, gateway: FakeGateway) -> None:
    arrived, release = threading.Event(), threading.Event()

    def block(handler: Handler, _: Received) -> None:
        arrived.set()
        assert release.wait(WAIT_S)
        handler.answer(200, b"late")

    gateway.scripts.append(block)
    answers: list[tuple[int, bytes]] = []
    first = threading.Thread(target=lambda: answers.append(say(harness, ONE)))
    first.start()
    assert arrived.wait(WAIT_S)

    assert say(harness, TWO) == OK

    release.set()
    first.join()
    assert answers == [(200, b"late")]
    assert [received.connection for received in gateway.received] == [1, 2]


def test_s2_calls_one_after_the_other_share_one_connection(
    harness: Harness, gateway: FakeGateway
) -> None:
    for body in (ONE, TWO, THREE):
        say(harness, body)  # each on a connection of the harness's own

    assert gateway.connections == 1


def test_s2_a_stream_gives_its_connection_back(harness: Harness, gateway: FakeGateway) -> None:
    def stream(handler: Handler, _: Received) -> None:
        handler.begin_stream()
        handler.chunk(b"data: 1\n\n")
        handler.wfile.write(b"0\r\n\r\n")

    gateway.scripts += [stream, stream]

    assert say(harness, ONE) == (200, b"data: 1\n\n")
    assert say(harness, ONE) == (200, b"data: 1\n\n")
    assert gateway.connections == 1


def test_s4_an_idle_connection_is_closed_by_time_alone(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness
) -> None:
    quick = type(harness)(start_shim(idle_s=0.01).port)

    for _ in range(2):  # the acceptor sleeps without a date in between
        say(quick, ONE)
        assert gateway.closed.acquire(timeout=WAIT_S)

    assert gateway.connections == 2


def test_s3_a_kept_connection_that_was_closed_is_replaced(
    harness: Harness, gateway: FakeGateway
) -> None:
    def answer_and_close(handler: Handler, _: Received) -> None:
        handler.answer(200, b"bye")
        handler.cut()

    gateway.scripts.append(answer_and_close)
    say(harness, ONE)
    assert gateway.closed.acquire(timeout=WAIT_S)

    assert say(harness, TWO) == OK
    assert [received.connection for received in gateway.received] == [1, 2]


@pytest.mark.parametrize("calls_before", [0, 1], ids=["full", "frame"])
def test_s3_a_request_that_got_no_answer_is_not_sent_again(
    harness: Harness, gateway: FakeGateway, calls_before: int
) -> None:
    for _ in range(calls_before):
        say(harness, ONE)

    def vanish(handler: Handler, _: Received) -> None:
        handler.cut()

    gateway.scripts.append(vanish)

    with pytest.raises(ConnectionError):
        harness.post(TWO)

    assert len(gateway.received) == calls_before + 1


def test_s4_a_gateway_without_deltas_never_gets_a_frame(
    harness: Harness, gateway: FakeGateway
) -> None:
    gateway.scripts += [answer_with(200, b"plain")] * 3

    assert [say(harness, body) for body in (ONE, TWO, THREE)] == [(200, b"plain")] * 3
    assert [received.raw for received in gateway.received] == [ONE, TWO, THREE]


@pytest.mark.parametrize("status", [400, 404, 415, 422])
def test_s4_where_frames_are_not_understood_the_full_body_follows(
    harness: Harness, gateway: FakeGateway, status: int
) -> None:
    say(harness, ONE)
    gateway.scripts.append(answer_with(status, b"what is this?"))

    assert say(harness, TWO) == OK
    assert say(harness, THREE) == OK

    assert kinds(gateway) == ["keep", "frame", "plain", "plain"]
    assert gateway.bodies == [ONE, TWO, THREE]


def test_s4_delta_malformed_is_followed_by_the_full_body(
    harness: Harness, gateway: FakeGateway
) -> None:
    say(harness, ONE)
    body = b'{"error":{"code":"delta_malformed"}}'
    gateway.scripts.append(answer_with(400, body, Rollout_History=wire.NONE))

    assert say(harness, TWO) == OK
    assert kinds(gateway) == ["keep", "frame", "plain"]


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_s4_delta_malformed_is_seen_whatever_ends_its_body(
    harness: Harness, gateway: FakeGateway, framing: str
) -> None:
    say(harness, ONE)
    body = b'{"error":{"code":"delta_malformed"}}'
    gateway.scripts.append(
        lambda handler, _: handler.answer_unsized(framing, 400, body, Rollout_History=wire.NONE)
    )

    assert say(harness, TWO) == OK
    assert kinds(gateway) == ["keep", "frame", "plain"]


@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 200_000])
def test_s4_a_marked_400_of_any_length_reaches_the_harness_whole(
    harness: Harness, gateway: FakeGateway, framing: str, size: int
) -> None:
    say(harness, ONE)
    body = b"x" * size
    gateway.scripts.append(
        lambda handler, _: handler.answer_unsized(framing, 400, body, Rollout_History=wire.NONE)
    )

    assert say(harness, TWO) == (400, body)
    assert say(harness, THREE) == OK
    assert kinds(gateway) == ["keep", "frame", "frame"]


def test_r4_a_marked_400_that_is_cut_while_it_is_looked_at_does_not_end_cleanly(
    harness: Harness, gateway: FakeGateway
) -> None:
    def cut(handler: Handler, _: Received) -> None:
        handler.send_response(400)
        handler.send_header(wire.HISTORY_HEADER, wire.NONE)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.chunk(b"half")
        handler.cut()

    say(harness, ONE)
    gateway.scripts.append(cut)
    with pytest.raises(ConnectionError):
        harness.post(TWO)
    assert len(gateway.received) == 2


def test_s4_another_marked_400_reaches_the_harness_whole(
    harness: Harness, gateway: FakeGateway
) -> None:
    say(harness, ONE)
    body = b'{"error":{"code":"context_length_exceeded"}}'
    gateway.scripts.append(answer_with(400, body, Rollout_History=wire.NONE))

    assert say(harness, TWO) == (400, body)
    assert kinds(gateway) == ["keep", "frame"]


def test_s4_an_unmarked_success_of_a_frame_is_never_handed_on(
    harness: Harness, gateway: FakeGateway
) -> None:
    say(harness, ONE)
    gateway.scripts.append(answer_with(200, b"an answer to something else"))

    with pytest.raises(ConnectionError):
        harness.post(TWO)

    assert say(harness, TWO) == OK
    assert kinds(gateway) == ["keep", "frame", "plain"]


def test_s4_bases_of_one_rollout_are_not_used_for_another(
    harness: Harness, gateway: FakeGateway
) -> None:
    harness.post(ONE, "/ng-rollout/a/x")
    harness.post(ONE, "/ng-rollout/b/x")
    harness.post(TWO, "/ng-rollout/b/x")

    assert gateway.bodies == [ONE, ONE, TWO]
    assert set(gateway.bases) == {"a", "b"}


def test_s5_a_failing_encoder_is_never_noticed_by_the_harness(
    harness: Harness,
    gateway: FakeGateway,
    reports: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise RuntimeError("broken")

    say(harness, ONE)
    monkeypatch.setattr(client_module, "encode_frame", fail)

    assert say(harness, TWO) == OK
    assert kinds(gateway) == ["keep", "keep"]
    assert "broken" in reports.next()


def test_deltas_can_be_switched_off(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness
) -> None:
    plain = type(harness)(start_shim(deltas=False).port)

    say(plain, ONE)
    say(plain, TWO)

    assert kinds(gateway) == ["plain", "plain"]


@pytest.mark.parametrize("deflate", [True, False])
def test_what_a_frame_inserts_is_compressed_unless_that_is_switched_off(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness, *, deflate: bool
) -> None:
    shim = type(harness)(start_shim(deflate=deflate).port)
    more = b"to be found again " * 20

    say(shim, ONE)
    say(shim, ONE + more)

    assert kinds(gateway) == ["keep", "frame"]
    assert gateway.bodies[1] == ONE + more
    assert gateway.received[1].raw.endswith(more) is not deflate


def test_bodies_beyond_the_bound_in_bytes_are_no_bases(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness
) -> None:
    shim = type(harness)(start_shim(bases_bytes_max=len(ONE)).port)

    for body in (ONE, TWO, THREE):
        say(shim, body)

    bases = [
        parse_frame(received.raw, length_max=1 << 20).base for received in gateway.received[1:]
    ]
    assert bases == [wire.sha256_hex(ONE)] * 2


@pytest.mark.parametrize(
    ("path", "headers", "settings", "rollout"),
    [
        ("/ng-rollout/p1/x", {"X-Session-ID": "h1"}, {}, "p1"),
        ("/sessions/p1/x", {"X-Session-ID": "h1"}, {}, "p1"),
        ("/v1/x", {"X-Session-ID": "h1"}, {}, "h1"),
        ("/v1/x", {"X-Run": "h1"}, {"rollout_header": "x-run"}, "h1"),
        ("/v1/x", {"X-Session-ID": "not an id"}, {"rollout": "d1"}, None),
        ("/v1/x", {}, {}, None),
        ("/v1/x", {}, {"rollout": "d1"}, "d1"),
        ("/v1/x", {"X-Session-ID": "h1"}, {"rollout": "d1"}, "h1"),
        ("/ng-rollout/p1/x", {}, {"rollout": "d1"}, "p1"),
    ],
)
def test_the_identity_is_the_path_then_the_header_then_the_setting(
    start_shim: Callable[..., Shim],
    gateway: FakeGateway,
    harness: Harness,
    *,
    path: str,
    headers: dict[str, str],
    settings: dict[str, str],
    rollout: str | None,
) -> None:
    shim = start_shim(**settings)

    type(harness)(shim.port).post(ONE, path, **headers)

    received = gateway.received[0]
    assert list(shim.statistics()["rollouts"]) == ([rollout] if rollout else [])
    assert received.kept is (rollout is not None)
    assert received.path == path
    sent = received.header("X-Session-ID")
    assert sent == ("d1" if rollout == "d1" else headers.get("X-Session-ID"))


def test_a_prefix_of_the_gateway_comes_before_the_path_and_may_name_the_rollout(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness
) -> None:
    shim = start_shim(gateway.url + "/ng-rollout/g1")

    type(harness)(shim.port).post(ONE, "/v1/responses?x=1")

    assert gateway.received[0].path == "/ng-rollout/g1/v1/responses?x=1"
    assert gateway.received[0].kept


def test_statistics_count_request_bodies(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness
) -> None:
    shim = start_shim()
    for body in (ONE, TWO):
        type(harness)(shim.port).post(body)
    gateway.bases.clear()
    type(harness)(shim.port).post(THREE)

    sent = [len(received.raw) for received in gateway.received]
    assert shim.statistics() == {
        "rollouts": {
            "r1": {
                "calls": 3,
                "bytes_sent": sum(sent),
                "bytes_plain": sum(sent) - sent[-1] + len(THREE),  # two frames too short to deflate
                "bytes_full": len(ONE + TWO + THREE),
                "resyncs": 1,
            }
        }
    }


def test_a_connection_beyond_the_bound_is_told_so(
    harness: Harness, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_module, "_CONNECTIONS_MAX", 2)
    held = [harness.connect() for _ in range(2)]
    for connection in held:
        connection.request("GET", "/v1/models")
        assert connection.getresponse().read() == b'{"ok":1}'

    status, headers, body = harness.post(ONE)

    assert (status, headers["Connection"]) == (503, "close")
    assert b'"overloaded"' in body
    assert len(gateway.received) == 2
    for connection in held:
        connection.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(11, "again")])
def test_s5_where_no_thread_can_start_the_connection_ends_and_the_next_one_is_served(
    harness: Harness, reports: Said, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    errors = [error, error]
    start = threading.Thread.start

    def fail_for_a_while(thread: threading.Thread) -> None:
        if thread.name == "harness" and errors:
            raise errors.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_for_a_while)

    for _ in range(2):
        with pytest.raises(ConnectionError):
            harness.post(ONE)
        assert str(error) in reports.next()

    assert say(harness, ONE) == OK


def test_a_pause_in_accepting_does_not_hold_up_the_end(
    start_shim: Callable[..., Shim],
    reports: Said,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Shim, sock: socket.socket) -> None:
        sock.close()
        raise RuntimeError("no thread")

    monkeypatch.setattr(Shim, "_serve", fail)
    monkeypatch.setattr(shim_module, "_ACCEPT_AGAIN_MS", 3_600_000)
    shim = start_shim()
    with pytest.raises(ConnectionError):
        type(harness)(shim.port).post(ONE)
    assert "no thread" in reports.next()

    shim.stop()


def test_a_settings_that_names_no_rollout_or_gateway_is_refused() -> None:
    with pytest.raises(ValueError, match="rollout id"):
        Shim("http://h", report=print, rollout="a b")
    with pytest.raises(ValueError, match="not a port"):
        Shim("http://h", report=print, port=65_536)
    with pytest.raises(ValueError, match="name of a header"):
        Shim("http://h", report=print, rollout_header="X é")
    with pytest.raises(ValueError, match="gateway URL"):
        Shim("h", report=print)


def test_stop_ends_what_is_under_way(
    start_shim: Callable[..., Shim], gateway: FakeGateway, harness: Harness
) -> None:
    arrived, gone = threading.Event(), threading.Event()

    def wait_for_the_end(handler: Handler, _: Received) -> None:
        arrived.set()
        assert handler.connection.recv(1) == b""
        gone.set()
        handler.cut()

    gateway.scripts.append(wait_for_the_end)
    shim = start_shim()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            type(harness)(shim.port).post(ONE)
        except ConnectionError as error:
            errors.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    assert arrived.wait(WAIT_S)

    shim.stop()

    assert gone.wait(WAIT_S)
    calling.join()
    assert len(errors) == 1
    with pytest.raises(ConnectionRefusedError):
        type(harness)(shim.port).post(ONE)
