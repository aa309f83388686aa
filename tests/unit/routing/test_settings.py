# SPDX-License-Identifier: Apache-2.0
"""Settings: what makes no sense is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from rollout_router.routing import Settings


def settings(**changes: Any) -> Settings:
    return Settings(state_dir=Path("/s"), run_dir=Path("/r"), **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service", ""),
        ("drain_s_max", -0.1),
        ("owner_timeout_s", 0.0),
        ("owner_timeout_s", -1.0),
        ("owner_timeout_s", float("inf")),
        ("body_bytes_max", 0),
        ("rollout_keys", b""),
        ("placement", "balance"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        settings(**{name: value})


def test_r7_nothing_is_routed_by_default() -> None:
    assert not settings().history_delta
    assert not settings().routes


@pytest.mark.parametrize("name", ["history_delta", "route_always"])
def test_r7_deltas_or_route_always_route(name: str) -> None:
    assert settings(**{name: True}).routes


def test_an_installed_router_has_no_limits_of_connections_of_its_own() -> None:
    assert settings().limits is None


def test_bounds_that_are_none_are_allowed() -> None:
    assert settings(drain_s_max=0, owner_timeout_s=None, rollout_keys=None).drain_s_max == 0
