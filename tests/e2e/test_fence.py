# SPDX-License-Identifier: Apache-2.0
"""Sinks, epochs and cut answers through a running gateway (F1, F2, R2, R4)."""

import concurrent.futures
import subprocess
import threading
from collections.abc import Callable

import httpx
import pytest
from support.control import Control
from support.conversations import body_of, conversation, digest
from support.gateway import COMMAND, PATIENCE_S, Gateway

from rollout_router.claims import FileClaimStore, Gate, write_gate

BODY = body_of(conversation(2))
OTHER = body_of(conversation(3))
SSE = {"content-type": "text/event-stream"}


def _force(gateway: Gateway, rollout_id: str) -> None:
    """What an operator does: bump the epoch under the lock and remove the claim."""
    store = FileClaimStore.inspect(gateway.state_dir)
    epoch = gateway.claims()[rollout_id]["claim_epoch"]
    store.force(rollout_id, expect_epoch=epoch, reason="test")


def test_f1_an_owner_that_was_forced_away_records_nothing_more(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        old = threads.submit(gateway.post, "r", BODY)
        old_call = control.next_call("r")
        _force(gateway, "r")
        new = threads.submit(gateway.post, "r", OTHER)
        new_call = control.next_call("r")
        new_call.answer('{"new": true}')
        assert new.result().json() == {"new": True}
        old_call.answer('{"old": true}')
        refused = old.result()
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "record_refused")
    assert new_call.claim_epoch is not None
    assert old_call.claim_epoch is not None
    assert new_call.claim_epoch > old_call.claim_epoch
    assert [record["request_sha256"] for record in gateway.records("r")] == [digest(OTHER)]


def test_f2_a_stream_of_an_owner_that_was_forced_away_is_aborted_before_its_turn_ends(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    seen = b""
    with gateway.client() as client, concurrent.futures.ThreadPoolExecutor(2) as threads:
        opened = threads.submit(
            lambda: client.send(
                client.build_request("POST", "/sessions/r/v1/responses", content=BODY),
                stream=True,
            )
        )
        call = control.next_call("r")
        call.begin(headers=SSE)
        call.send('data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n')
        answer = opened.result()
        parts = answer.iter_raw()
        while b'"a"' not in seen:
            seen += next(parts)
        _force(gateway, "r")
        control.unhold("r")
        assert gateway.post("r", OTHER).status_code == 200
        call.send('data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n')
        call.end()
        rest: list[bytes] = []
        with pytest.raises(httpx.RemoteProtocolError):
            rest.extend(parts)
        answer.close()
    assert b'"stop"' not in b"".join(rest)
    assert [record["request_sha256"] for record in gateway.records("r")] == [digest(OTHER)]


def test_f2_the_record_is_there_when_the_answer_is(shared: Gateway) -> None:
    for stream in (False, True):
        body = body_of(conversation(2), stream=stream)
        answer = shared.post("recorded", body)
        record = shared.records("recorded")[-1]
        assert record["request_text"] == body.decode()
        assert record["request_sha256"] == digest(body)
        assert record["response"] == answer.text
        assert record["outcome"] == "completed"
        assert record["status"] == 200
        assert str(record["claim_epoch"]) == answer.headers["rollout-claim-epoch"]
        assert record["worker_id"] == answer.headers["rollout-worker"]


def test_r2_a_client_that_goes_away_cancels_the_work_of_the_owner(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    for _ in range(6):  # enough connections for one of them to be forwarded
        with gateway.connect() as connection:
            connection.sendall(
                b"POST /sessions/r/v1/responses HTTP/1.1\r\nHost: gym\r\n"
                b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
            )
            call = control.next_call("r")
        call.wait_gone()
    control.unhold("r")
    gateway.post("r", BODY)
    outcomes = [record["outcome"] for record in gateway.records("r")]
    # The last record of a cancelled call may be written beside the call that follows it.
    assert sorted(outcomes) == ["cancelled"] * 6 + ["completed"]


def test_r4_an_answer_that_the_application_breaks_off_is_never_ended_cleanly(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    for _ in range(6):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(gateway.post, "r", BODY)
            call = control.next_call("r")
            call.begin(headers=SSE)
            call.send("data: {}\n\n")
            call.fail()
            with pytest.raises(httpx.RemoteProtocolError):
                waiting.result()
    assert {record["outcome"] for record in gateway.records("r")} == {"failed"}


def test_r4_an_owner_killed_within_an_answer_cuts_it(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    begun = threading.Semaphore(0)

    def stream() -> None:
        with (
            gateway.client() as client,
            client.stream("POST", f"{gateway.prefix}/r/v1/responses", content=BODY) as answer,
        ):
            pieces = answer.iter_raw()
            assert next(pieces) == b"data: {}\n\n"
            begun.release()
            list(pieces)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(stream) for _ in range(8)]
        for call in [control.next_call("r") for _ in waiting]:
            call.begin(headers=SSE)
            call.send("data: {}\n\n")
        assert all(begun.acquire(timeout=PATIENCE_S) for _ in waiting)
        gateway.kill_worker(gateway.claims()["r"]["worker_id"])
        for done in waiting:
            with pytest.raises(httpx.TransportError):
                done.result()
    assert len(control.runs("r")) == 8


def test_h4_a_failed_call_keeps_the_base_and_says_so(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(gateway.post, "r", BODY)
        control.next_call("r").fail()
        answer = waiting.result()
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "application_failed"
    assert answer.headers["rollout-history"] == f"kept={digest(BODY)}"


def test_f1_a_capture_folder_of_another_store_is_refused(
    serve: Callable[..., Gateway],
) -> None:
    first = serve()
    first.post("r", BODY)
    other = first.folder / "other"
    done = subprocess.run(
        [
            *(COMMAND, "serve", "--port", "0", "--state-dir", str(other), "--run-dir"),
            *(str(first.folder / "run2"), "--capture-dir", str(first.capture_dir)),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4
    assert str(first.capture_dir) in done.stderr
    assert "Traceback" not in done.stderr


def test_r6_a_closed_gate_refuses_before_anything_happened(
    serve: Callable[..., Gateway],
) -> None:
    first = serve()
    first.post("r", BODY)
    first.stop()
    write_gate(first.state_dir, Gate(open=False, by="operator", why="maintenance"))
    closed = serve(state=first.folder)
    assert any("maintenance" in line for line in closed.log)
    for _ in range(4):
        answer = closed.post("r", BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "admission_closed")
        assert answer.headers["retry-after"]
        assert answer.headers["rollout-history"] == "none"
    assert closed.claims() == {}
    assert len(closed.records("r")) == 1
