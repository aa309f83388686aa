# SPDX-License-Identifier: Apache-2.0
"""docs/limits.md names every bound of the product, with the default that the code has."""

import dataclasses
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w./]+):([\w.]+)` \| ([^|]+?) \|", PAGE, re.MULTILINE)
UNITS = {"": 1, "s": 1, "h": 3600, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

SERVES = (
    "admin",
    "checkpoint",
    "claims",
    "gateway",
    "history",
    "logs.py",
    "operate.py",
    "routing",
    "serve",
    "transport",
)
CONSTANT = re.compile(r"^([A-Z][A-Z_]*_(?:MAX|S)|BACKLOG)\b[^=\n]* = ", re.MULTILINE)
FIELD = re.compile(r"[a-z_]+_(?:max|min|s)")
FORMS = {"CLAIM_EPOCH_MAX", "BACKOFF_S"}  # how a number is written, and a row of pauses


def _said(default: str) -> float | None:
    if default == "none":
        return None
    number, _, unit = default.partition(" ")
    return float(number.replace(",", "")) * UNITS[unit]


def _module(path: str) -> ModuleType:
    return import_module("rollout_router." + path.removesuffix(".py").replace("/", "."))


def _fields(module: ModuleType) -> dict[str, Any]:
    """The defaults of the dataclasses that a module defines, where they bound something."""
    return {
        f"{name}.{field.name}": field.default
        for name, holder in vars(module).items()
        if isinstance(holder, type)
        and dataclasses.is_dataclass(holder)
        and holder.__module__ == module.__name__
        for field in dataclasses.fields(holder)
        if FIELD.fullmatch(field.name) and field.default is not dataclasses.MISSING
    }


def _bounds() -> Iterator[tuple[str, str]]:
    """The public bounds that the code names."""
    package = ROOT / "rollout_router"
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        if relative.parts[0] in SERVES and relative.stem not in {"__init__", "__main__"}:
            constants = [name for name in CONSTANT.findall(path.read_text()) if name not in FORMS]
            for name in [*constants, *_fields(_module(str(relative)))]:
                yield str(relative), name


@pytest.mark.parametrize(("path", "name", "default"), ROWS)
def test_the_page_says_the_default_of_the_code(path: str, name: str, default: str) -> None:
    module = _module(path)
    assert _said(default) == {**vars(module), **_fields(module)}[name]


def test_every_bound_of_the_code_is_on_the_page() -> None:
    assert set(_bounds()) <= {(path, name) for path, name, _ in ROWS}
    assert len(ROWS) == len(set(ROWS))
