# SPDX-License-Identifier: Apache-2.0
"""What this process has counted so far."""

from prometheus_client import REGISTRY

__all__ = ["counted"]


def counted(name: str, **labels: str) -> float:
    """The value of one counter; 0 where nothing was counted."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
