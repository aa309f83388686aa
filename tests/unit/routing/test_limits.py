# SPDX-License-Identifier: Apache-2.0
"""Limits: a hop lets through what its public port let through; connections follow descriptors."""

import math
import resource
from dataclasses import fields

import pytest

from rollout_router.routing.limits import CONNECTIONS_MAX, HOP_HEAD_BYTES, INSTALLED, Limits

PUBLIC = Limits(connections_max=1)


@pytest.mark.parametrize(
    ("name", "room"),
    [
        ("head_bytes_max", HOP_HEAD_BYTES),
        ("headers_max", 16),
        ("target_bytes_max", HOP_HEAD_BYTES),
        ("head_s_max", PUBLIC.head_s_max),
        ("body_stall_s_max", PUBLIC.body_stall_s_max),
        ("answer_stall_s_max", PUBLIC.answer_stall_s_max),
    ],
)
def test_a_hop_has_more_room_than_its_public_port(name: str, room: float) -> None:
    assert getattr(PUBLIC.hop(), name) == getattr(PUBLIC, name) + room


def test_r4_no_time_runs_at_a_hop_whose_public_port_is_another_servers() -> None:
    times = [field.name for field in fields(Limits) if field.name.endswith("_s_max")]
    assert {getattr(INSTALLED, name) for name in times} == {math.inf}


@pytest.mark.parametrize(
    ("soft", "most"),
    [(1024, 256), (3, 1), (1 << 20, CONNECTIONS_MAX), (resource.RLIM_INFINITY, CONNECTIONS_MAX)],
)
def test_a_quarter_of_the_descriptors_may_be_connections(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    assert Limits().connections() == most
    assert Limits(connections_max=7).connections() == 7


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_a_limit_that_makes_no_sense_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="head_s_max"):
        Limits(head_s_max=value)
