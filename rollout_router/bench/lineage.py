# SPDX-License-Identifier: Apache-2.0
"""The bodies of one rollout in their order, each as it is sent in full or as a frame. Pure."""

from dataclasses import dataclass

from rollout_router.bench.bodies import Conversation
from rollout_router.transport.sandbox.frame import encode_frame
from rollout_router.transport.sandbox.wire import sha256_hex

__all__ = ["CONTENT_TYPE", "Lineage", "Step"]

CONTENT_TYPE = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One body, and the one before it, which the other side holds."""

    base: bytes
    base_sha: str
    body: bytes
    sha: str

    def frame(self) -> bytes:
        """The body as a frame, as the sandbox side makes it.

        Raises:
            ValueError: a frame would not be smaller.
        """
        frame = encode_frame(
            self.base_sha,
            self.body,
            self.base,
            content_type=CONTENT_TYPE,
            deflate=True,
            target_sha=self.sha,
        )
        if frame is None:
            raise ValueError(f"a body of {len(self.body)} bytes has no smaller frame")
        return frame


class Lineage:
    """Gives one step after another; each body is the next step's base."""

    def __init__(self, conversation: Conversation) -> None:
        self._bodies = conversation.bodies()
        self._base = conversation.history()
        self._base_sha = sha256_hex(self._base)

    @property
    def first(self) -> bytes:
        """The base of the next step."""
        return self._base

    def step(self) -> Step:
        """The next body."""
        body = next(self._bodies)
        sha = sha256_hex(body)
        step = Step(base=self._base, base_sha=self._base_sha, body=body, sha=sha)
        self._base, self._base_sha = body, sha
        return step
