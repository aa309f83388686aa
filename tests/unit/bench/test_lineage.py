# SPDX-License-Identifier: Apache-2.0
"""A rollout's bodies in their order, and their frames."""

import hashlib

from rollout_router.bench.bodies import TURNS, Conversation
from rollout_router.bench.lineage import Lineage
from rollout_router.transport.sandbox.frame import parse_frame, rebuild


def test_each_body_is_the_base_of_the_next() -> None:
    lineage = Lineage(Conversation(20_000))
    before = lineage.first
    for _ in range(TURNS + 2):
        step = lineage.step()
        assert step.base == before
        assert step.base_sha == hashlib.sha256(before).hexdigest()
        assert step.sha == hashlib.sha256(step.body).hexdigest()
        before = step.body


def test_d1_the_frame_of_a_step_rebuilds_its_body() -> None:
    lineage = Lineage(Conversation(20_000))
    for _ in range(TURNS + 2):
        step = lineage.step()
        frame = step.frame()
        assert len(frame) < len(step.body) // 4
        parsed = parse_frame(frame, length_max=1_000_000)
        assert (parsed.base, parsed.target) == (step.base_sha, step.sha)
        assert rebuild(parsed, step.base) == step.body
