# SPDX-License-Identifier: Apache-2.0
"""One request of a rollout or session on its way through, and what its answer will carry of us."""

from dataclasses import dataclass, field
from typing import Final

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.claims.record import Claim, Kind
from rollout_router.routing import headers as wire
from rollout_router.routing.client import Client
from rollout_router.routing.headers import Headers
from rollout_router.routing.hop_scope import HOP_KEY
from rollout_router.routing.stages import SERVER_TIMING, Stage, Stages

__all__ = ["Exchange", "Mark", "Progress", "is_frame"]

_CONTENT_TYPE: Final = b"content-type"
_CONTENT_TYPE_BYTES: Final = len(_CONTENT_TYPE)


class Mark:
    """The ``Rollout-History`` mark: what the client learns of the base it would send next."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self.value = b"none"

    def headers(self) -> Headers:
        """The mark, where the request asked for one."""
        return [(wire.HISTORY, self.value)] if self.wanted else []


@dataclass(slots=True)
class Progress:
    """How far the request got, for whoever has to answer it when it is given up, or counts it."""

    claim_epoch: int | None = None  # under which it is served or sent
    dispatched: bool = False  # the application may have begun (R2)
    served: Claim | None = None  # under which it was counted in here
    refused: str | None = None  # the code that it was answered with in our name
    body_bytes: int = 0  # that the application saw
    sent_bytes: int = 0  # that came for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its client."""

    rollout_id: str
    scope: Scope
    client: Client
    mark: Mark
    is_frame: bool  # its body is a delta frame
    stages: Stages
    kind: Kind = "rollout"
    progress: Progress = field(default_factory=Progress)
    tells_stages: bool = False  # in the answer

    @classmethod
    def of(
        cls,
        rollout_id: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        deltas: bool,
        kind: Kind = "rollout",
        timed: bool = False,
    ) -> "Exchange":
        """Begin one; with *deltas*, every final answer to ``keep`` or to a frame is marked."""
        headers: Headers = scope["headers"]
        frame = is_frame(headers)
        asked = frame or wire.first(headers, wire.HISTORY) == wire.KEEP
        return cls(
            rollout_id=rollout_id,
            scope=scope,
            client=Client(scope, receive, send),
            mark=Mark(wanted=deltas and asked),
            is_frame=frame,
            kind=kind,
            stages=Stages(wire.STAGES if HOP_KEY in scope else SERVER_TIMING),
            tells_stages=timed,
        )

    def passed(self, stage: Stage) -> None:
        """A stage is over."""
        self.stages.end(stage)

    def timing(self) -> Headers:
        """The stages so far, where the answer is to tell them."""
        return [self.stages.header()] if self.tells_stages else []


def is_frame(headers: Headers) -> bool:
    """True where the body is a delta frame."""
    for name, value in headers:  # a second one must not hide the first
        if (
            len(name) == _CONTENT_TYPE_BYTES  # most names differ in it, which costs less to see
            and name.lower() == _CONTENT_TYPE
            and value.split(b";", 1)[0].strip().lower() == wire.FRAME_TYPE
        ):
            return True
    return False
