# SPDX-License-Identifier: Apache-2.0
"""The stages that run inside one process: the rooms themselves, without HTTP between them."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rollout_router.bench.bodies import Conversation
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.lineage import CONTENT_TYPE, Lineage
from rollout_router.bench.measure import Stage
from rollout_router.call import Call
from rollout_router.claims import FileClaimStore, Grant, LifeLock, Moved
from rollout_router.gateway import CaptureSink
from rollout_router.gateway.record import Outcome, Record
from rollout_router.transport.sandbox.client import Client, Outgoing, Sent
from rollout_router.transport.sandbox.frame import parse_frame, rebuild
from rollout_router.transport.sandbox.wire import HISTORY_HEADER, KEPT

__all__ = ["DECODE_ENCODE", "DELTA", "JSON_REFERENCE", "REBUILD", "claim_stages", "history_stages"]

JSON_REFERENCE: Final = "json_reference"
DECODE_ENCODE: Final = "decode_encode"
DELTA: Final = "delta_encode"
REBUILD: Final = "frame_rebuild"
_LENGTH_MAX: Final = 1 << 30
_Timed = Callable[[], object]


def history_stages(conversation: Conversation, folder: Path) -> list[Stage]:
    """References, delta, rebuild and capture of bodies of one size; records go below *folder*."""
    return [
        Stage(name=JSON_REFERENCE, reference=None, prepare=_json_reference(conversation)),
        Stage(name=DECODE_ENCODE, reference=None, prepare=_decode_encode(conversation)),
        Stage(name=DELTA, reference=JSON_REFERENCE, prepare=_encode(conversation)),
        Stage(name=REBUILD, reference=DECODE_ENCODE, prepare=_rebuild(conversation)),
        Stage(
            name="capture_append", reference=JSON_REFERENCE, prepare=_capture(conversation, folder)
        ),
    ]


def claim_stages(store: FileClaimStore, life: LifeLock) -> list[Stage]:
    """Take, re-check and release, on the store's disk."""

    def take(rollout_id: str) -> Grant:
        granted = store.take(rollout_id, life.owner)
        if isinstance(granted, Moved):
            raise BenchFailed(f"rollout {rollout_id} is taken in a store of our own")
        return granted

    standing = take("bench-recheck")
    taken: list[Grant] = []

    def prepare_take() -> _Timed:
        while taken:
            store.release(taken.pop())
        return lambda: taken.append(take("bench-take"))

    def prepare_recheck() -> _Timed:
        return lambda: store.stands(standing)

    def prepare_release() -> _Timed:
        grant = take("bench-release")
        return lambda: store.release(grant)

    return [
        Stage(name="claim_take", reference=JSON_REFERENCE, prepare=prepare_take),
        Stage(name="claim_recheck", reference=JSON_REFERENCE, prepare=prepare_recheck),
        Stage(name="claim_release", reference=JSON_REFERENCE, prepare=prepare_release),
    ]


def _json_reference(conversation: Conversation) -> Callable[[], _Timed]:
    """What a server would do that keeps decoded messages: decode, compare, encode again."""
    lineage = Lineage(conversation)
    history = json.loads(lineage.first)["messages"]

    def prepare() -> _Timed:
        body = lineage.step().body

        def timed() -> None:
            document = json.loads(body)
            if document["messages"][: len(history)] != history:
                raise BenchFailed("the history is not the beginning of the body")
            _encoded(document)

        return timed

    return prepare


def _decode_encode(conversation: Conversation) -> Callable[[], _Timed]:
    """What a server would do that takes in a body and hands another one on."""
    lineage = Lineage(conversation)

    def prepare() -> _Timed:
        body = lineage.step().body
        return lambda: _encoded(json.loads(body))

    return prepare


def _encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _encode(conversation: Conversation) -> Callable[[], _Timed]:
    """The sandbox side's whole decision: digest, choice of the base, delta, frame."""
    client = Client(clock=time.monotonic)
    lineage = Lineage(conversation)
    headers = [("Content-Type", CONTENT_TYPE)]

    def send(body: bytes) -> Outgoing:
        return client.prepare("http://bench", "bench", headers, body)

    def settle(outgoing: Outgoing) -> None:
        client.settle(outgoing, 200, [(HISTORY_HEADER, KEPT + outgoing.target.sha)])

    settle(send(lineage.first))
    sent: list[Outgoing] = []

    def prepare() -> _Timed:
        while sent:
            outgoing = sent.pop()
            if outgoing.sent is not Sent.FRAME:
                raise BenchFailed("the sandbox side sent no frame")
            settle(outgoing)
        body = lineage.step().body
        return lambda: sent.append(send(body))

    return prepare


def _rebuild(conversation: Conversation) -> Callable[[], _Timed]:
    lineage = Lineage(conversation)

    def prepare() -> _Timed:
        step = lineage.step()
        frame = step.frame()
        return lambda: rebuild(parse_frame(frame, length_max=_LENGTH_MAX), step.base)

    return prepare


def _capture(conversation: Conversation, folder: Path) -> Callable[[], _Timed]:
    sink = CaptureSink(folder, store_id="bench")
    lineage = Lineage(conversation)
    call = Call(rollout_id="bench", claim_epoch=1, worker_id="bench", store_id="bench")

    def prepare() -> _Timed:
        (folder / "bench.jsonl").unlink(missing_ok=True)  # of one body, however many rounds
        now = datetime.now(UTC)
        record = Record(
            call=call,
            model_call_id="bench",
            method="POST",
            path="/v1/chat/completions",
            started_at=now,
            completed_at=now,
            status=200,
            outcome=Outcome.COMPLETED,
            request=lineage.step().body,
            response=b"{}",
            response_bytes=2,
        )
        return lambda: sink.append("bench", 1, record.line())

    return prepare
