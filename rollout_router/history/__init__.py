# SPDX-License-Identifier: Apache-2.0
"""What a worker remembers of its rollouts: bases, bounds, eviction. Knows no HTTP and no claims."""

from rollout_router.history.store import Bounds, CallHandle, History, Key, Origin, Statistics

__all__ = ["Bounds", "CallHandle", "History", "Key", "Origin", "Statistics"]
