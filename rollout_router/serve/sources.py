# SPDX-License-Identifier: Apache-2.0
"""Reading the settings: flags over environment over a TOML file over defaults.

Whatever is wrong is named with where it came from, and nothing is done before all is right. A key
or variable that is no setting is wrong too: it would be a setting that somebody believes in.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from rollout_router.serve.config import ServeConfig
from rollout_router.serve.settings_table import env_of, flag_of, settings_table
from rollout_router.serve.twins import CONFIG_TWIN, OTHER_TWINS, PREFIX, is_elsewhere

__all__ = ["CONFIG_BYTES_MAX", "SettingsRefused", "Told", "read_settings"]

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""Of a configuration file; with every setting and its description it has 10 KB."""

_TOML_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}

_TOML_NAMES: Final = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    list: "array",
    dict: "table",
}


class SettingsRefused(ValueError):  # noqa: N818 - named by what happened
    """Some settings make no sense; a line of the message for each, with where it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The settings, and where those came from that are not defaults.

    Attributes:
        config: all of them.
        origins: by name, ``--port``, ``ROLLOUT_ROUTER_PORT``, or the path of the file.
    """

    config: ServeConfig
    origins: Mapping[str, str]


def read_settings(flags: Mapping[str, Any], *, config_file: Path | None) -> Told:
    """Read them all.

    Args:
        flags: those that were given, by the name of the setting.
        config_file: a TOML file; None: as the environment says, and none if that says none.

    Raises:
        SettingsRefused: nothing was done.
    """
    wrong = [*_unknown_variables(os.environ)]
    if config_file is None and (named := os.environ.get(CONFIG_TWIN)):
        config_file = Path(named)
    of_file: dict[str, Any] = {}
    if config_file is not None:
        config_file = config_file.absolute()
        of_file = _read_file(config_file, wrong)
    of_environment = EnvSettingsSource(ServeConfig)()
    origins = {
        **dict.fromkeys(of_file, str(config_file)),
        **{name: env_of(name) for name in of_environment},
        **{name: flag_of(name) for name in flags},
    }
    try:
        config = ServeConfig(**{**of_file, **of_environment, **flags})
    except ValidationError as error:
        wrong += _said(error, origins)
    if wrong:
        raise SettingsRefused("\n".join(wrong))
    return Told(config=config, origins=origins)


def _read_file(path: Path, wrong: list[str]) -> dict[str, Any]:
    """What a file says; what is wrong with it is added to *wrong*, and left out."""
    try:
        if not path.is_file():
            path.stat()  # says why, where it is not there
            raise SettingsRefused(f"{path} is no plain file: --config takes a TOML file")
        if (size := path.stat().st_size) > CONFIG_BYTES_MAX:
            raise SettingsRefused(f"{path} has {size} bytes, of at most {CONFIG_BYTES_MAX}")
        found = TomlConfigSettingsSource(ServeConfig, toml_file=path).toml_data
    except OSError as error:
        raise SettingsRefused(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, SettingsRefused):
            raise
        raise SettingsRefused(f"{path} is no TOML: {error}") from error
    rows = {row.name: row for row in settings_table()}
    read: dict[str, Any] = {}
    for key, value in found.items():
        if key not in rows:
            wrong.append(f"{path}: {key}: no such setting{_nearest(key, rows)}")
        elif type(value) not in _TOML_TYPES.get(rows[key].type, (str,)):
            told = _TOML_NAMES.get(type(value), "date")
            wrong.append(f"{path}: {key}: takes a value of type {rows[key].type}, not {told}")
        elif rows[key].type == "path" and value:
            read[key] = path.parent / Path(os.path.expanduser(value))  # noqa: PTH111 - leaves what it does not know
        else:
            read[key] = value
    return read


def _unknown_variables(environ: Mapping[str, str]) -> Iterable[str]:
    known = {*(row.env for row in settings_table()), CONFIG_TWIN}
    for name in sorted(environ):
        ours = name.upper().startswith(PREFIX)
        if ours and name not in known | OTHER_TWINS and not is_elsewhere(name):
            yield f"{name}: no such setting{_nearest(name, known)}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), near, n=1)
    return f"; did you mean {near[found[0]]}?" if found else ""


def _said(error: ValidationError, origins: Mapping[str, str]) -> Iterable[str]:
    where = {
        name: _place(name, origins.get(name, flag_of(name))) for name in ServeConfig.model_fields
    }
    for one in error.errors(include_url=False):
        ours = one.get("ctx", {}).get("error")
        if not one["loc"]:
            yield str(ours).format_map(where)
        elif ours is not None:
            yield f"{where[str(one['loc'][0])]}: {ours}"
        else:
            text = one["msg"].replace("Input should", "it should")
            yield f"{where[str(one['loc'][0])]}: {text}, not {one['input']!r}"


def _place(name: str, origin: str) -> str:
    """How a message names a setting: by its flag, its variable, or the file and its key."""
    return f"{origin}: {name}" if origin.startswith("/") else origin
