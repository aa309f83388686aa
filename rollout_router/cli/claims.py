# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims``: who owns what, and the commands that look closer or change it."""

from collections.abc import Mapping
from typing import Final

import click

from rollout_router.cli.lazy import LazyGroup

__all__ = ["claims"]

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "force": ("claims_changes:force", "Take a rollout away from its owner, alive or not."),
    "list": ("claims_list:list_claims", "Show who owns what."),
    "reap": (
        "claims_changes:reap",
        "Free the rollouts of workers that are proven dead, and clear what they left.",
    ),
    "show": (
        "claims_show:show_claim",
        "Show one claim with the evidence for the verdict on its owner.",
    ),
    "verify": ("claims_verify:verify", "Look at every part of a store."),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def claims() -> None:
    """Inspect, free and verify the claims of a store."""
