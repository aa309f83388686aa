# SPDX-License-Identifier: Apache-2.0
"""Every setting as a row: what flags, listings and the reference page are made from."""

import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rollout_router.serve.config import ServeConfig

__all__ = ["SettingRow", "default_of", "env_of", "flag_of", "settings_table"]

_PREFIX: Final = str(ServeConfig.model_config["env_prefix"])
_WRITTEN: Final = {bool: "boolean", int: "integer", float: "number", str: "text", Path: "path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting.

    Attributes:
        name: of the field, and its key in a TOML file.
        flag: of ``serve``; of a boolean the one that sets it.
        env: the environment variable.
        type: what a value is: ``integer``, ``number``, ``boolean``, ``text``, ``path``, ``choice``.
        form: how ``--help`` writes it: ``INTEGER``, ``DIRECTORY``, ``URL``, ``a|b``.
        bound: in words; empty where there is none beside the type.
        unit: of a number; empty where it has none.
        default: as it is written in a TOML file or, where no value says it, in words.
        group: the heading that it is listed under.
        help: one line.
        description: the line, and what None means, what happens beyond, why this default.
        choices: all values, of a choice.
        optional: whether it may be left out to mean something of its own.
    """

    name: str
    flag: str
    env: str
    type: str
    form: str
    bound: str
    unit: str
    default: str
    group: str
    help: str
    description: str
    choices: Sequence[str]
    optional: bool

    @property
    def key(self) -> str:
        """Its key in a TOML file."""
        return self.name


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def env_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def settings_table() -> tuple[SettingRow, ...]:
    """All settings, in the order in which they are listed. Needs no server."""
    return tuple(_row(name, field) for name, field in ServeConfig.model_fields.items())


def default_of(name: str) -> Any:
    """The default of a setting on this machine, as JSON has it."""
    default = ServeConfig.model_fields[name].get_default(call_default_factory=True)
    return str(default) if isinstance(default, Path) else default


def _type_of(field: FieldInfo) -> tuple[Any, bool]:
    """The type of a field without what may be left out, and whether it may be."""
    annotation: Any = field.annotation
    optional = get_origin(annotation) in {types.UnionType, Union}
    if optional:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation, optional


def _row(name: str, field: FieldInfo) -> SettingRow:
    kind, optional = _type_of(field)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    extra = field.json_schema_extra
    if not isinstance(extra, dict):
        raise TypeError(f"the setting {name} is not declared by setting()")
    said = {key: "" if value is None else str(value) for key, value in extra.items()}
    return SettingRow(
        name=name,
        flag=flag_of(name),
        env=env_of(name),
        type="choice" if choices else _WRITTEN[kind],
        form="|".join(choices) or said["form"],
        bound=_bound(field, choices),
        unit=said["unit"],
        default=said["said"] or _toml(field.default),
        group=said["group"],
        help=said["help"],
        description=field.description or "",
        choices=choices,
        optional=optional,
    )


_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most"}


def _bound(field: FieldInfo, choices: Sequence[str]) -> str:
    if choices:
        return f"one of {', '.join(choices)}"
    return ", ".join(
        f"{words} {bound:,}"
        for kind, words in _BOUNDS.items()
        for one in field.metadata
        if (bound := getattr(one, kind, None)) is not None
    )


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
