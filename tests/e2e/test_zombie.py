# SPDX-License-Identifier: Apache-2.0
"""An owner is stopped between its check and its write, and its claim is forced away (C1, F1, H5).

SIGSTOP stands for whatever keeps a process from running: a debugger, swapping, a paused machine.
The claim goes by an operator's command, a new owner writes, and then the old one goes on.
"""

import fcntl
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from support.control import Call, Control
from support.conversations import FRAME_HEADERS, body_of, conversation, digest, frame
from support.folders import private_folder
from support.gateway import Gateway, kept, open_files, stopped, wait_until

BODY = body_of(conversation(2))
OTHER = body_of(conversation(3))
SSE = {"content-type": "text/event-stream"}
DELTA = 'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
STOP = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


class Service(NamedTuple):
    """Two workers with the application under control, and the folder of what they count."""

    gateway: Gateway
    control: Control
    metrics: Path


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One for all tests of this module: each has a rollout of its own, and leaves both running."""
    with private_folder() as folder:
        control, metrics = Control(folder / "control.sock"), folder / "metrics"
        metrics.mkdir()
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
        gateway = Gateway(folder, control=control.path, environment=environment)
        yield Service(gateway, control, metrics)
        assert gateway.stop() == 0
        control.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def successor(service: Service, rollout_id: str) -> Call:
    """Force the rollout away, let another worker take it and finish a call; that call."""
    service.gateway.force(rollout_id)
    service.control.unhold(rollout_id)
    assert service.gateway.post(rollout_id, OTHER).status_code == 200
    return service.control.runs(rollout_id)[-1]


def assert_only_the_successors_record(service: Service, rollout_id: str, new: Call) -> None:
    (record,) = service.gateway.records(rollout_id)
    assert (record["request_sha256"], record["claim_epoch"]) == (digest(OTHER), new.claim_epoch)


def fenced(service: Service, where: str) -> float:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(service.metrics))
    return registry.get_sample_value("rollout_router_fenced_total", {"where": where}) or 0.0


def assert_said(service: Service, rollout_id: str, pid: int, what: str) -> None:
    """The first that is logged about the rollout, but for claims, is a warning of the old owner."""
    said: dict[str, Any] = {"event": "claim_taken"}
    while said.get("event") == "claim_taken":
        said = json.loads(service.gateway.wait_line(f"rollout {rollout_id}:"))
    assert (said["pid"], said["level"]) == (pid, "warning")
    assert what in said["message"]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_f1_a_stopped_owner_that_goes_on_with_a_plain_answer_records_nothing(
    service: Service, threads: ThreadPoolExecutor
) -> None:
    gateway, control, _ = service
    before = fenced(service, "sink")
    control.hold("plain")
    waiting = threads.submit(gateway.post, "plain", BODY)
    old = control.next_call("plain")
    with stopped(old.pid):
        new = successor(service, "plain")
        assert new.pid != old.pid
        old.answer('{"late": true}')
    assert code_of(waiting.result()) == (502, "record_refused")
    assert_only_the_successors_record(service, "plain", new)
    assert_said(service, "plain", old.pid, "is behind")
    assert fenced(service, "sink") == before + 1


def test_f1_a_stopped_owner_that_goes_on_with_a_stream_is_cut_before_the_turn_ends(
    service: Service, threads: ThreadPoolExecutor
) -> None:
    gateway, control, _ = service
    before = fenced(service, "sink")
    control.hold("stream")
    with gateway.client() as client:
        request = client.build_request("POST", "/sessions/stream/v1/responses", content=BODY)
        waiting = threads.submit(client.send, request, stream=True)
        old = control.next_call("stream")
        old.begin(headers=SSE)
        old.send(DELTA)
        answer = waiting.result()
        parts = answer.iter_raw()
        seen = next(parts)
        with stopped(old.pid):
            new = successor(service, "stream")
            assert new.pid != old.pid
            old.send(DELTA)
            old.send(STOP)
            old.end()
        with pytest.raises(httpx.RemoteProtocolError):
            seen += b"".join(parts)
        answer.close()
    assert b'"stop"' not in seen
    assert_only_the_successors_record(service, "stream", new)
    assert_said(service, "stream", old.pid, "is behind")
    assert fenced(service, "sink") == before + 1


def test_f1_an_owner_stopped_between_re_check_and_application_dispatches_nothing(
    service: Service, threads: ThreadPoolExecutor
) -> None:
    """Between the two it raises the sink: the test holds the lock of that, and stops it there."""
    gateway, control, _ = service
    before = fenced(service, "sink")
    pids = [worker["pid"] for worker in gateway.ready["workers"]]
    fence = gateway.capture_dir / ".fence" / "between.epoch"
    with fence.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = threads.submit(gateway.post, "between", BODY)
        wait_until(
            lambda: any(str(fence) in open_files(pid) for pid in pids), "the owner is at the fence"
        )
        (old_pid,) = (pid for pid in pids if str(fence) in open_files(pid))
        with stopped(old_pid):
            fcntl.flock(file, fcntl.LOCK_UN)
            new = successor(service, "between")
    assert code_of(waiting.result()) == (503, "claim_moved")
    assert new.pid != old_pid
    assert [run.sha256 for run in control.runs("between")] == [digest(OTHER)]
    assert_only_the_successors_record(service, "between", new)
    assert_said(service, "between", old_pid, "is behind")
    assert fenced(service, "sink") == before + 1


def test_c1_an_owner_stopped_before_its_re_check_learns_there_that_its_claim_is_gone(
    service: Service,
) -> None:
    gateway, control, _ = service
    before = fenced(service, "dispatch")
    with gateway.connect() as connection, connection.makefile("rb") as answer:
        connection.sendall(
            b"POST /sessions/before/v1/responses HTTP/1.1\r\nHost: gym\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY[:-1]
        )
        wait_until(lambda: "before" in gateway.claims(), "the head of the request was accepted")
        old_pid = gateway.pid_of(gateway.claims()["before"]["worker_id"])
        with stopped(old_pid):
            connection.sendall(BODY[-1:])
            new = successor(service, "before")
        head, _, document = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after:" in head.lower()
    assert json.loads(document)["error"]["code"] == "claim_moved"
    assert new.pid != old_pid
    assert [run.sha256 for run in control.runs("before")] == [digest(OTHER)]
    assert_only_the_successors_record(service, "before", new)
    assert_said(service, "before", old_pid, "was taken away")
    assert fenced(service, "dispatch") == before + 1


def test_h5_what_an_owner_kept_and_has_in_hand_is_not_part_of_its_next_grant(
    service: Service, threads: ThreadPoolExecutor
) -> None:
    """Its claim goes away and comes back, while it is stopped and while its successor is."""
    gateway, control, _ = service
    control.hold("kept")
    waiting = threads.submit(gateway.post, "kept", BODY)
    old = control.next_call("kept")
    with stopped(old.pid):
        new = successor(service, "kept")
    with stopped(new.pid):
        gateway.force("kept")
        delta = gateway.post("kept", frame(BODY, OTHER), keep=False, headers=FRAME_HEADERS)
        assert code_of(delta) == (409, "gym_history_resync")
        again = gateway.post("kept", BODY)
        assert kept(again) == digest(BODY)
        third = control.runs("kept")[-1]
        assert third.pid == old.pid
        assert (new.claim_epoch or 0) < (third.claim_epoch or 0)
        old.answer('{"late": true}')
        assert code_of(waiting.result()) == (502, "record_refused")
        # The end of that call has not touched what the new grant holds.
        delta = gateway.post("kept", frame(BODY, OTHER), keep=False, headers=FRAME_HEADERS)
        assert kept(delta) == digest(OTHER)
    records = [
        (record["claim_epoch"], record["request_sha256"]) for record in gateway.records("kept")
    ]
    assert records == [
        (new.claim_epoch, digest(OTHER)),
        (third.claim_epoch, digest(BODY)),
        (third.claim_epoch, digest(OTHER)),
    ]
