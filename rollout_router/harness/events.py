# SPDX-License-Identifier: Apache-2.0
"""The events that a harness prints, one a line, each an object of JSON with a ``type``. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

__all__ = ["NoEvent", "events"]

_SHOWN: Final = 200


class NoEvent(str):
    """What is said of a line that is no event."""

    __slots__ = ()


def events(lines: Iterable[str]) -> Iterator[Mapping[str, Any] | NoEvent]:
    """Each line as its event, or as what is said of it."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            yield event
        else:
            yield NoEvent(f"printed a line that is no event: {line[:_SHOWN]!r}")
