# SPDX-License-Identifier: Apache-2.0
"""Names of environment variables that begin like those of settings, and are none.

Every flag of every command has a twin, and one environment serves all commands: ``serve`` must not
take the twin of another command's flag for a setting that was misspelt.
"""

from typing import Final

__all__ = ["CONFIG_TWIN", "OTHER_TWINS", "PREFIX", "is_elsewhere"]

PREFIX: Final = "ROLLOUT_ROUTER_"

CONFIG_TWIN: Final = f"{PREFIX}CONFIG"
"""Names the configuration file."""

OTHER_TWINS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (  # noqa: SIM905 - as a list it is sixty lines
        "ADMIN_URL API_KEY ARCHIVE BUDGET_SECONDS CACHE CHECK CLAIMS CONFORMANCE COUNT "
        "DIALECT ENVIRONMENT EVIDENCE EXPECT_EPOCH FILTER GATEWAY HARNESS HOME INSTANCE "
        "INTERVAL JOURNAL JSON KEEP MARGIN MODEL OLDER_THAN ONCE ONLY OWNER_MISSING PROMPT "
        "QUICK REASON REPAIR ROLLOUT ROLLOUTS ROUNDS ROWS RUN SCENARIO SIZES SORT SYSTEM_PROMPT "
        "TOMBSTONES_OLDER_THAN VERDICT WAIT WAIT_SECONDS WHY WORKER WORK_DIR WRITE YES"
    ).split()
)
"""The twins of flags of other commands."""

# The NeMo Gym integration, the shim, and the token that commands send to an admin address.
_ELSEWHERE: Final = (f"{PREFIX}GYM_", f"{PREFIX}SHIM_", f"{PREFIX}ADMIN_TOKEN")


def is_elsewhere(name: str) -> bool:
    """Whether a variable belongs to a part of the product that no command of this program runs."""
    return name.startswith(_ELSEWHERE)
