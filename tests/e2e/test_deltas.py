# SPDX-License-Identifier: Apache-2.0
"""Deltas over plain HTTP against a running gateway: what the application sees, byte for byte."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.conversations import FRAME_HEADERS, body_of, conversation, digest, frame
from support.gateway import PATIENCE_S, Gateway, client_of, kept

FULL = body_of(conversation(6))


@pytest.mark.parametrize("deflate", [False, True], ids=["plain", "deflated"])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("append", body_of(conversation(7))),
        ("edit", FULL.replace(b"output 3", b"[cleared]")),
        ("compaction", body_of([{"role": "user", "content": "summary"}, *conversation(6)[-3:]])),
        ("changed-tail", body_of(conversation(7), metadata={"turn": "8"})),
        ("shorter", body_of(conversation(2))),
        ("not-ascii", body_of([*conversation(6), {"role": "user", "content": "né\u2028🎈"}])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_h1_the_application_sees_the_bytes_that_were_meant(
    shared: Gateway, name: str, target: bytes, *, deflate: bool
) -> None:
    rollout_id = f"h1-{name}-{deflate}"
    assert kept(shared.post(rollout_id, FULL)) == digest(FULL)
    sent = frame(FULL, target, deflate=deflate)
    answer = shared.post(rollout_id, sent, keep=False, headers=FRAME_HEADERS)
    assert answer.status_code == 200
    assert answer.headers["scripted-request-sha256"] == digest(target)
    assert kept(answer) == digest(target)
    assert shared.records(rollout_id)[-1]["request_text"] == target.decode()


def test_h1_the_content_type_of_the_harness_is_restored(shared: Gateway) -> None:
    # The model refuses a body that is not announced as JSON, so a 200 shows what it was given.
    shared.post("type", FULL)
    answer = shared.post(
        "type", frame(FULL, body_of(conversation(7))), keep=False, headers=FRAME_HEADERS
    )
    assert answer.status_code == 200


def test_h2_the_same_delta_twice_is_the_same_request_twice(shared: Gateway) -> None:
    shared.post("twice", FULL)
    sent = frame(FULL, body_of(conversation(7)))
    answers = [shared.post("twice", sent, keep=False, headers=FRAME_HEADERS) for _ in range(2)]
    digests = {answer.headers["scripted-request-sha256"] for answer in answers}
    assert digests == {digest(body_of(conversation(7)))}
    assert len(shared.records("twice")) == 3


def test_h2_h4_the_same_delta_twice_at_once_through_both_workers(shared: Gateway) -> None:
    target, after = body_of(conversation(7)), body_of(conversation(8))
    sent, path = frame(FULL, target), "/sessions/at-once/v1/responses"
    keep = {"content-type": "application/json", "rollout-history": "keep"}
    together = threading.Barrier(2)

    def parts() -> Iterator[bytes]:  # neither is whole before both have begun
        yield sent[:-1]
        together.wait(PATIENCE_S)
        yield sent[-1:]

    def deliver(client: httpx.Client) -> httpx.Response:
        return client.post(path, content=parts(), headers=FRAME_HEADERS)

    mine, other = (worker["id"] for worker in shared.ready["workers"])
    with client_of(shared, mine) as local, client_of(shared, other) as forwarding:
        claimed = local.post(path, content=FULL, headers=keep)
        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(deliver, (local, forwarding)))
        later = forwarding.post(path, content=frame(target, after), headers=FRAME_HEADERS)
    assert claimed.headers["rollout-worker"] == mine
    assert [answer.status_code for answer in answers] == [200, 200]
    for answer in answers:
        assert answer.headers["rollout-claim-epoch"] == claimed.headers["rollout-claim-epoch"]
        assert answer.headers["scripted-request-sha256"] == kept(answer) == digest(target)
    assert kept(later) == digest(after)
    assert len(shared.records("at-once")) == 4


def test_h4_the_base_before_the_last_is_still_good(shared: Gateway) -> None:
    shared.post("several", FULL)
    for turns in (7, 8, 9):
        sent = frame(FULL, body_of(conversation(turns)))
        assert shared.post("several", sent, keep=False, headers=FRAME_HEADERS).status_code == 200


def test_h5_a_base_of_another_rollout_is_not_held(shared: Gateway) -> None:
    shared.post("mine", FULL)
    sent = frame(FULL, body_of(conversation(7)))
    answer = shared.post("yours", sent, keep=False, headers=FRAME_HEADERS)
    assert (answer.status_code, answer.headers["rollout-history"]) == (409, "resync")


def test_r6_a_missing_base_is_resync_and_nothing_ran(shared: Gateway) -> None:
    sent = frame(FULL, body_of(conversation(7)))
    answer = shared.post("missing", sent, keep=False, headers=FRAME_HEADERS)
    assert answer.status_code == 409
    assert answer.headers["rollout-history"] == "resync"
    assert answer.json()["error"]["code"] == "gym_history_resync"
    assert not (shared.capture_dir / "missing.jsonl").exists()


def test_a_whole_body_can_be_sent_as_a_frame_of_the_empty_base(shared: Gateway) -> None:
    sent = frame(b"", FULL, deflate=True)
    answer = shared.post("empty-base", sent, keep=False, headers=FRAME_HEADERS)
    assert answer.status_code == 200
    assert answer.headers["scripted-request-sha256"] == digest(FULL)


def _line(**fields: object) -> bytes:
    line = {
        "v": 1,
        "base": digest(FULL),
        "target": digest(b"abc"),
        "length": 3,
        "type": None,
        "ops": [["insert", 3]],
        **fields,
    }
    return json.dumps(line).encode() + b"\nabc"


MALFORMED = {
    "empty": b"",
    "no-newline": _line().split(b"\n", 1)[0],
    "not-json": b"{\nabc",
    "not-an-object": b"[]\nabc",
    "deep": b"[" * 100_000 + b"\n",
    "unknown-key": _line(extra=1),
    "other-version": _line(v=2),
    "wrong-digest": _line(target=digest(b"abd")),
    "short-digest": _line(base="abc"),
    "length-too-small": _line(length=2),
    "length-too-large": _line(length=4),
    "length-huge": _line(length=2**70, ops=[["copy", 0, 2**70]]),
    "length-negative": _line(length=-3),
    "length-a-bool": _line(length=True),
    "length-a-float": _line(length=3.0),
    "op-unknown": _line(ops=[["move", 3]]),
    "op-not-a-list": _line(ops=["insert"]),
    "op-zero": _line(ops=[["insert", 0], ["insert", 3]]),
    "copy-past-the-end": _line(ops=[["copy", len(FULL) - 1, 3]]),
    "copy-negative": _line(ops=[["copy", -3, 3]]),
    "insert-too-few-bytes": _line(length=4, ops=[["insert", 4]]),
    "bytes-left-over": _line() + b"d",
    "deflate-not-zlib": _line(deflate=True),
    "deflate-not-a-bool": _line(deflate=1),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_d2_a_malformed_delta_is_refused_and_nothing_ran(shared: Gateway, body: bytes) -> None:
    rollout_id = "malformed"
    shared.post(rollout_id, FULL)
    before = len(shared.records(rollout_id))
    answer = shared.post(rollout_id, body, keep=False, headers=FRAME_HEADERS)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "delta_malformed"
    assert answer.json()["error"]["rollout_id"] == rollout_id
    assert len(shared.records(rollout_id)) == before


def test_r7_a_frame_without_a_rollout_never_reaches_the_application(shared: Gateway) -> None:
    with shared.client() as client:
        answer = client.post("/v1/responses", content=_line(), headers=FRAME_HEADERS)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "delta_unsupported"
    assert "rollout-history" not in answer.headers


def test_r7_a_request_without_a_rollout_is_served_as_if_the_router_were_not_there(
    shared: Gateway,
) -> None:
    with shared.client() as client:
        answer = client.post("/v1/responses", json={"model": "m", "input": "hello"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("rollout-")]


@pytest.mark.parametrize("bad", ["a%2Fb", "-a", "a" * 201, "%C3%A9"])
def test_an_invalid_rollout_id_is_refused(shared: Gateway, bad: str) -> None:
    with shared.client() as client:
        answer = client.post(f"/sessions/{bad}/v1/responses", content=FULL)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "rollout_id_invalid"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
def test_h1_every_dialect_is_carried_alike(shared: Gateway, path: str) -> None:
    rollout_id = f"dialect-{path.count('/')}-{path[-4:]}"
    items = [{"role": "user", "content": "hello " * 300}]
    bodies = [
        json.dumps({"model": "m", key: turn, "max_tokens": 9}).encode()
        for key in ["input" if path == "/v1/responses" else "messages"]
        for turn in (items, [*items, {"role": "assistant", "content": "a"}, items[0]])
    ]
    shared.post(rollout_id, bodies[0], path=path)
    answer = shared.post(rollout_id, frame(*bodies), keep=False, headers=FRAME_HEADERS, path=path)
    assert answer.status_code == 200
    assert answer.headers["scripted-request-sha256"] == digest(bodies[1])


@pytest.mark.parametrize("size", [70_000, 3_000_000], ids=["one-write", "streamed-hop"])
def test_a_forwarded_call_arrives_whole_at_its_owner(shared: Gateway, size: int) -> None:
    rollout_id = f"forwarded-{size}"
    body = body_of([{"role": "user", "content": "y" * size}])
    answers = [shared.post(rollout_id, body) for _ in range(12)]
    claim = shared.claims()[rollout_id]
    assert {a.headers["rollout-worker"] for a in answers} == {claim["worker_id"]}
    assert {a.headers["scripted-request-sha256"] for a in answers} == {digest(body)}
    assert len(shared.records(rollout_id)) == 12


def test_streamed_and_plain_answers_pass_through_the_hop(shared: Gateway) -> None:
    streamed = body_of(conversation(2), stream=True)
    plain = body_of(conversation(2), stream=False)
    for _ in range(6):
        answer = shared.post("streams", streamed)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "response.completed" in answer.text
        assert kept(answer) == digest(streamed)
        assert shared.post("streams", plain).json()["object"] == "response"
