# SPDX-License-Identifier: Apache-2.0
"""What a client with a transport of ours sees, and what goes over the wire meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from typing import TYPE_CHECKING

import pytest
from unit.transport.sandbox.conftest import understand

from rollout_router.transport.sandbox import client as client_module
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sdk.edges import ENCODE_IN_THREAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.transport.sandbox.conftest import FakeGateway, Handler, Received, Script
    from unit.transport.sdk.conftest import Calls

    Start = Callable[..., Calls]

WAIT_S = 30.0


def _turns(number: int, *, filler: int = 400) -> list[bytes]:
    """Bodies that each go on from the one before."""
    said = [f"turn {turn} " + "x" * filler for turn in range(number)]
    return [json.dumps({"messages": said[: turn + 1]}).encode() for turn in range(number)]


ONE, TWO, THREE, FOUR = _turns(4)


def answering(status: int, body: bytes = b"{}", **headers: str) -> Script:
    return lambda handler, _: handler.answer(status, body, **headers)


RESYNC = answering(409, Rollout_History=wire.RESYNC)


def test_h1_s4_frames_follow_kept_and_carry_the_bytes_that_were_written(
    calls: Calls, gateway: FakeGateway
) -> None:
    for body in (ONE, TWO, THREE):
        answer = calls.post(body)
        assert (answer.status_code, answer.json()) == (200, {"ok": 1})
        assert wire.HISTORY_HEADER not in answer.headers
    assert gateway.bodies == [ONE, TWO, THREE]
    assert [one.framed for one in gateway.received] == [False, True, True]
    assert [one.kept for one in gateway.received] == [True, False, False]
    assert [one.header("Content-Length") for one in gateway.received] == [
        str(len(one.raw)) for one in gateway.received
    ]
    assert gateway.connections == 1
    counted = calls.transport.statistics()["rollouts"]["r1"]
    assert counted.pop("bytes_plain") > counted["bytes_sent"]
    assert counted == {
        "calls": 3,
        "bytes_sent": sum(len(one.raw) for one in gateway.received),
        "bytes_full": len(ONE + TWO + THREE),
        "resyncs": 0,
    }
    assert sum(len(one.raw) for one in gateway.received[1:]) < len(TWO + THREE) / 2


def test_h1_a_body_that_is_encoded_beside_the_event_loop_is_the_same(
    calls: Calls, gateway: FakeGateway
) -> None:
    turns = _turns(3, filler=ENCODE_IN_THREAD_BYTES)
    for body in turns:
        assert calls.post(body).status_code == 200
    assert gateway.bodies == turns
    assert [one.framed for one in gateway.received] == [False, True, True]


def test_s1_s2_a_resync_is_one_resend_over_the_same_connection(
    calls: Calls, gateway: FakeGateway
) -> None:
    calls.post(ONE)
    gateway.scripts.append(RESYNC)
    answer = calls.post(TWO)
    assert answer.status_code == 200
    assert answer.request.content == TWO
    assert [one.framed for one in gateway.received] == [False, True, True]
    assert gateway.bodies[-1] == TWO  # packed: it stands on no base of the rollout
    assert gateway.connections == 1
    assert calls.transport.statistics()["rollouts"]["r1"]["resyncs"] == 1


def _endless(handler: Handler, _: Received) -> None:
    """A resync with a body that does not end: who reads it never comes back."""
    handler.send_response(409)
    handler.send_header(wire.HISTORY_HEADER, wire.RESYNC)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.chunk(b"x")
    handler.rfile.read(1)
    handler.cut()


def _cut(handler: Handler, _: Received) -> None:
    """A resync with a body that is cut."""
    handler.send_response(409)
    handler.send_header(wire.HISTORY_HEADER, wire.RESYNC)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.cut()


@pytest.mark.parametrize("script", [_endless, _cut])
def test_s2_a_resync_that_cannot_be_read_costs_its_connection(
    calls: Calls, gateway: FakeGateway, script: Script
) -> None:
    calls.post(ONE)
    gateway.scripts.append(script)
    calls.client.timeout = None  # who waits for the end of the body waits forever
    assert calls.post(TWO).status_code == 200
    assert gateway.closed.acquire(timeout=WAIT_S)
    assert [one.connection for one in gateway.received] == [1, 1, 2]


def test_s1_a_resync_to_the_resend_is_an_abort_and_no_third_request(
    calls: Calls, gateway: FakeGateway
) -> None:
    calls.post(ONE)
    gateway.scripts += [RESYNC, RESYNC]
    with pytest.raises(calls.hx.RemoteProtocolError, match="r1"):
        calls.post(TWO)
    assert len(gateway.received) == 3


def test_s4_a_success_that_does_not_know_frames_is_never_handed_on(
    calls: Calls, gateway: FakeGateway
) -> None:
    calls.post(ONE)
    gateway.scripts.append(answering(200, b"nonsense"))
    with pytest.raises(calls.hx.RemoteProtocolError, match="r1: frame request answered 200"):
        calls.post(TWO)
    assert gateway.closed.acquire(timeout=WAIT_S)
    assert calls.post(TWO).status_code == 200
    assert [one.framed for one in gateway.received] == [False, True, False]
    assert not gateway.received[-1].kept


@pytest.mark.parametrize("status", [400, 409, 410, 429, 500, 503])
def test_s3_what_the_application_says_passes_untouched(
    calls: Calls, gateway: FakeGateway, status: int
) -> None:
    calls.post(ONE)
    said = b'{"error":{"code":"of-its-own"}}'
    mark = wire.KEPT + wire.sha256_hex(TWO)
    gateway.scripts.append(
        answering(status, said, Retry_After="7", X_One="a", Rollout_History=mark)
    )
    answer = calls.post(TWO)
    assert (answer.status_code, answer.content) == (status, said)
    assert (answer.headers["retry-after"], answer.headers["x-one"]) == ("7", "a")
    assert wire.HISTORY_HEADER not in answer.headers
    assert len(gateway.received) == 2


def _code(code: str) -> bytes:
    return json.dumps({"error": {"code": code}}).encode()


def test_s4_a_malformed_frame_is_sent_in_full(calls: Calls, gateway: FakeGateway) -> None:
    calls.post(ONE)
    gateway.scripts.append(answering(400, _code("delta_malformed"), Rollout_History=wire.NONE))
    assert calls.post(TWO).status_code == 200
    assert gateway.bodies == [ONE, TWO]


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_s4_a_malformed_frame_is_seen_whatever_ends_its_body(
    calls: Calls, gateway: FakeGateway, framing: str
) -> None:
    calls.post(ONE)
    code, mark = _code("delta_malformed"), wire.NONE
    gateway.scripts.append(
        lambda handler, _: handler.answer_unsized(framing, 400, code, Rollout_History=mark)
    )
    assert calls.post(TWO).status_code == 200
    assert gateway.bodies == [ONE, TWO]


@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize("size", [0, 65_536, 200_000])
def test_s4_a_refusal_of_any_length_arrives_whole(
    calls: Calls, gateway: FakeGateway, framing: str, size: int
) -> None:
    calls.post(ONE)
    body, mark = b"x" * size, wire.NONE
    gateway.scripts.append(
        lambda handler, _: handler.answer_unsized(framing, 400, body, Rollout_History=mark)
    )
    answer = calls.post(TWO)
    assert (answer.status_code, answer.content) == (400, body)
    assert calls.post(THREE).status_code == 200
    assert [one.framed for one in gateway.received] == [False, True, True]


def test_s4_a_refusal_that_was_looked_at_arrives_whole(calls: Calls, gateway: FakeGateway) -> None:
    calls.post(ONE)
    gateway.scripts.append(answering(400, _code("rollout_id_invalid"), Rollout_History=wire.NONE))
    answer = calls.post(TWO)
    assert (answer.status_code, answer.content) == (400, _code("rollout_id_invalid"))
    assert wire.HISTORY_HEADER not in answer.headers
    assert calls.post(THREE).status_code == 200
    assert gateway.connections == 1


def test_s5_a_frame_that_cannot_be_made_is_a_full_body(
    calls: Calls,
    gateway: FakeGateway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise MemoryError("no room")

    calls.post(ONE)
    monkeypatch.setattr(client_module, "encode_frame", fail)
    with caplog.at_level(logging.WARNING):
        assert calls.post(TWO).status_code == 200
    assert [one.framed for one in gateway.received] == [False, False]
    assert "no room" in caplog.text


def test_events_pass_without_waiting_for_the_next(calls: Calls, gateway: FakeGateway) -> None:
    read = threading.Event()

    def stream(handler: Handler, received: Received) -> None:
        handler.send_response(200)
        handler.send_header(wire.HISTORY_HEADER, wire.KEPT + wire.sha256_hex(received.raw))
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.chunk(b"one")
        assert read.wait(WAIT_S)
        handler.chunk(b"two")
        handler.chunk(b"")

    gateway.scripts.append(stream)
    assert calls.stream(ONE, lambda _: read.set()) == b"onetwo"
    calls.post(TWO)
    assert gateway.received[1].framed  # the mark counted before the stream's end


def test_s3_r4_a_cut_stream_is_an_error_and_not_sent_again(
    calls: Calls, gateway: FakeGateway
) -> None:
    def cut(handler: Handler, received: Received) -> None:
        handler.begin_stream()
        handler.chunk(received.raw[:3])
        handler.cut()

    gateway.scripts.append(cut)
    with pytest.raises(calls.hx.RemoteProtocolError):
        calls.stream(ONE, lambda _: None)
    assert len(gateway.received) == 1


def test_s3_a_connection_that_ends_before_the_answer_is_not_tried_again(
    calls: Calls, gateway: FakeGateway
) -> None:
    calls.post(ONE)
    gateway.scripts.append(lambda handler, _: handler.cut())
    with pytest.raises(calls.hx.RemoteProtocolError):
        calls.post(TWO)
    assert len(gateway.received) == 2
    assert calls.post(TWO).status_code == 200
    assert gateway.bodies == [ONE, TWO]


def test_s2_calls_of_one_rollout_run_in_parallel(calls: Calls, gateway: FakeGateway) -> None:
    bodies = _turns(8)
    for _ in range(2):
        meeting = threading.Barrier(len(bodies))

        def wait_for_all(
            handler: Handler, received: Received, meeting: threading.Barrier = meeting
        ) -> None:
            meeting.wait(WAIT_S)
            understand(handler, received)

        gateway.scripts += [wait_for_all] * len(bodies)
        answers = calls.together(bodies)
        assert [answer.status_code for answer in answers] == [200] * len(bodies)
    assert sorted(gateway.bodies) == sorted(bodies * 2)
    assert [one.framed for one in gateway.received] == [False] * 8 + [True] * 8
    assert gateway.connections == len(bodies)


def test_s4_a_stream_passes_as_it_came(start: Start, gateway: FakeGateway) -> None:
    calls = start(rollout="r7")
    assert calls.post(iter([ONE[:5], ONE[5:]]), "/v1/responses").status_code == 200
    received = gateway.received[0]
    assert (received.raw, received.kept) == (ONE, False)
    assert received.header("Transfer-Encoding") == "chunked"
    assert received.header(wire.ROLLOUT_HEADER) == "r7"
    assert calls.transport.statistics()["rollouts"]["r7"]["calls"] == 1


def test_s4_what_speaks_of_history_itself_passes_with_its_marks(
    calls: Calls, gateway: FakeGateway
) -> None:
    gateway.scripts += [answering(200, Rollout_History=wire.NONE)] * 2
    answer = calls.post(ONE, Rollout_History="keep")
    assert answer.headers["rollout-history"] == wire.NONE
    answer = calls.post(ONE, Content_Encoding="gzip")
    assert wire.HISTORY_HEADER not in answer.headers
    assert [one.raw for one in gateway.received] == [ONE, ONE]


def test_s4_a_transport_within_another_leaves_the_marks_to_it(
    start: Start, gateway: FakeGateway
) -> None:
    calls = start()
    calls = start(inner=calls.transport)
    for body in (ONE, TWO, THREE):
        assert calls.post(body).status_code == 200
    assert gateway.bodies == [ONE, TWO, THREE]
    assert [one.framed for one in gateway.received] == [False, True, True]


def test_s1_a_resync_of_what_passed_as_it_came_is_an_abort(
    calls: Calls, gateway: FakeGateway
) -> None:
    gateway.scripts.append(_cut)
    with pytest.raises(calls.hx.RemoteProtocolError, match="asked for a body"):
        calls.post(ONE, Content_Encoding="gzip")
    assert gateway.closed.acquire(timeout=WAIT_S)
    assert len(gateway.received) == 1


def test_a_rollout_that_only_the_setting_names_travels_in_the_header(
    start: Start, gateway: FakeGateway
) -> None:
    calls = start(rollout="given")
    for path in ("/v1/x", "/ng-rollout/r1/v1/x?a=b"):
        assert calls.post(ONE, path).status_code == 200
    assert [one.header(wire.ROLLOUT_HEADER) for one in gateway.received] == ["given", None]
    assert [one.kept or one.framed for one in gateway.received] == [True, True]


def test_headers_and_timeouts_travel_as_they_came(calls: Calls, gateway: FakeGateway) -> None:
    gateway.scripts += [understand, lambda handler, _: _wait_for_the_end(handler)]
    calls.post(ONE, X_A="1", Authorization="Bearer key")
    assert gateway.received[0].header("Authorization") == "Bearer key"
    assert gateway.received[0].header("X-A") == "1"
    assert gateway.received[0].header("Host") == gateway.url.removeprefix("http://")
    calls.client.timeout = calls.hx.Timeout(WAIT_S, read=0.05)
    with pytest.raises(calls.hx.ReadTimeout):
        calls.post(TWO)


def _wait_for_the_end(handler: Handler) -> None:
    with contextlib.suppress(ConnectionError):
        handler.rfile.read(1)
    handler.cut()


def test_a_redirect_is_followed_with_the_whole_body(start: Start, gateway: FakeGateway) -> None:
    calls = start()
    calls.client.follow_redirects = True
    calls.post(ONE)
    elsewhere = f"{gateway.url}/ng-rollout/r2/v1/x"
    mark = wire.KEPT + wire.sha256_hex(TWO)
    gateway.scripts.append(answering(307, Location=elsewhere, Rollout_History=mark))
    assert calls.post(TWO).status_code == 200
    assert gateway.bodies == [ONE, TWO]
    assert gateway.received[-1].path == "/ng-rollout/r2/v1/x"


def test_s2_the_transport_s_own_connections_are_many_and_go_through_no_proxy(
    start: Start, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    meeting = threading.Barrier(2)

    def wait_for_both(handler: Handler, received: Received) -> None:
        meeting.wait(WAIT_S)
        understand(handler, received)

    gateway.scripts += [wait_for_both] * 2
    answers = start(inner=None).together([ONE, TWO])
    assert [answer.status_code for answer in answers] == [200, 200]
