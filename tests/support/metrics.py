# SPDX-License-Identifier: Apache-2.0
"""What this process, or a service, has counted so far."""

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["counted", "samples"]

Sample = tuple[str | tuple[str, str], ...]


def counted(name: str, **labels: str) -> float:
    """The value of one counter; 0 where nothing was counted."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def samples(text: bytes | str) -> dict[Sample, float]:
    """The values of an answer to ``/metrics``, by name and sorted labels."""
    text = text.decode() if isinstance(text, bytes) else text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
