# SPDX-License-Identifier: Apache-2.0
"""What adapters write: text that every parser reads back as it was, and the environment of all.

JSON and TOML know one way of quoting in common, and YAML reads JSON; but the three forbid or fold
different characters. :func:`quoted` escapes what any of them would.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

__all__ = ["compact_at", "environment", "quoted", "toml", "yaml"]

_COMPACT_PERCENT: Final = 85
_LOOPBACK: Final = "127.0.0.1,localhost"

# JSON leaves them as they are. TOML forbids DEL, YAML all that do not print, and YAML folds lines
# at NEL, LS and PS. Two escaped surrogates are one character to JSON and two to YAML, so what lies
# beyond the BMP stays as it is.
_UNSAFE: Final = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def quoted(text: str) -> str:
    """*text* as a string of JSON, of TOML and of YAML.

    Raises:
        ValueError: it holds half a surrogate pair, which no UTF-8 file can.
    """
    text.encode()
    escaped = json.dumps(text, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped)


def toml(document: Mapping[str, Any]) -> str:
    """*document* as TOML, one dotted key a line; its keys are bare ones, its values scalars."""
    return "".join(f"{key} = {value}\n" for key, value in _flat(document))


def yaml(document: Mapping[str, Any]) -> str:
    """*document* as YAML, in its flow style, which is JSON."""
    inside = ", ".join(
        f"{quoted(key)}: {yaml(value) if isinstance(value, Mapping) else _scalar(value)}"
        for key, value in document.items()
    )
    return f"{{{inside}}}"


def environment(home: PurePosixPath) -> dict[str, str]:
    """What every harness needs: its own home, and no proxy in front of the shim."""
    return {"HOME": str(home), "NO_PROXY": _LOOPBACK, "no_proxy": _LOOPBACK}


def compact_at(context_llm_tokens: int) -> int:
    """How many LLM tokens of a context are filled when it is compacted: 85 %."""
    return context_llm_tokens * _COMPACT_PERCENT // 100


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _scalar(value)


def _scalar(value: str | float | bool) -> str:  # noqa: FBT001 - a value of a document, no switch
    return quoted(value) if isinstance(value, str) else json.dumps(value)
