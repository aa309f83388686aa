# SPDX-License-Identifier: Apache-2.0
"""What a worker counts, in the registry of ``prometheus_client`` that its process exports anyway.

With ``PROMETHEUS_MULTIPROC_DIR`` set to an empty directory before the start, the workers of one
service count together, and a killed worker's counts stay. No label grows with rollouts.
"""

from typing import Final

from prometheus_client import Counter

__all__ = ["FENCED", "OWNER_UNREACHABLE", "PLACEMENTS", "SOCKET_REBINDS", "SWEPT"]

FENCED: Final = Counter(
    "rollout_router_fenced",
    "Calls that found their claim gone, at the owner's re-check (dispatch) or at a sink.",
    ["where"],
)

OWNER_UNREACHABLE: Final = Counter(
    "rollout_router_owner_unreachable",
    "Requests refused because the owner is alive or unknown and could not be reached.",
)

PLACEMENTS: Final = Counter(
    "rollout_router_placements",
    "New rollouts placed here or at a peer; nobody: the peer could not be reached.",
    ["to"],
)

SOCKET_REBINDS: Final = Counter(
    "rollout_router_socket_rebinds",
    "Private sockets that were bound anew because their file was gone.",
)

SWEPT: Final = Counter(
    "rollout_router_swept",
    "What sweeps cleared of dead workers.",
    ["what"],
)
