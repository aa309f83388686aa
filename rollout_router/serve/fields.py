# SPDX-License-Identifier: Apache-2.0
"""What the fields of the settings are made of: how one is declared, and what its value must be."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from rollout_router.claims.names import SERVICE

__all__ = [
    "CookieName",
    "Directory",
    "ExistingFile",
    "GivenSettings",
    "HeaderName",
    "NewFile",
    "Seconds",
    "ServiceName",
    "Text",
    "UpstreamUrl",
    "setting",
]

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


class GivenSettings(BaseSettings):
    """Settings that have what they are given, and defaults: nothing comes in from outside unseen.

    The library's sources know its prefix; who wants to read them calls them.
    """

    model_config = SettingsConfigDict(
        env_prefix="ROLLOUT_ROUTER_",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        defer_build=True,  # a worker is handed a value, and validates nothing
    )

    @classmethod
    def settings_customise_sources(  # noqa: PLR0917 - the library's signature
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - as above
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The library's hook."""
        return (init_settings,)


def setting(
    help: str,  # noqa: A002 - what click calls it
    why: str,
    *,
    default: Any,
    form: str,
    group: str,
    unit: str | None = None,
    said: str | None = None,
    **bounds: Any,
) -> Any:
    """A field.

    Args:
        help: one line, for ``--help``.
        why: what the line does not say: what None means, what happens beyond, why this default.
        default: the value, or a function without arguments that tells it.
        form: how its value is written, for ``--help``.
        group: the heading that it is listed under.
        unit: of a number that is no length of time.
        said: the default in words, where it is another on each machine.
        bounds: pydantic's.
    """
    said_of: dict[str, JsonValue] = {
        "help": help,
        "form": form,
        "group": group,
        "unit": "s" if form == "SECONDS" else unit,
        "said": "none" if default is None else said,
    }
    given = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**given, description=f"{help} {why}", json_schema_extra=said_of, **bounds)


def _name_of(what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not _TOKEN.fullmatch(text):
            raise ValueError(f"{text!r} is no name of a {what}")
        return text

    return AfterValidator(check)


def _service(name: str) -> str:
    if not SERVICE.fullmatch(name):
        raise ValueError(f"{name!r} names no service: use 1 to 100 of A-Z a-z 0-9 . _ -")
    return name


def _named(value: object) -> object:
    if value == "":
        raise ValueError("an empty path names nothing")
    if "\0" in str(value):
        raise ValueError("a path holds no NUL")
    return value


# What may not be looked at counts as not there: whoever opens it says why.
def _directory(path: Path) -> Path:
    path = path.absolute()
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112 - never raise
        raise ValueError(f"{path} is there, and is no directory")
    return path


def _new_file(path: Path) -> Path:
    path = path.absolute()
    if os.path.isdir(path):  # noqa: PTH112 - as above
        raise ValueError(f"{path} is a directory")
    if not os.path.isdir(path.parent):  # noqa: PTH112 - as above
        raise ValueError(f"{path.parent} is no directory")
    return path


def _existing_file(path: Path) -> Path:
    path = path.absolute()
    if not os.path.exists(path):  # noqa: PTH110 - as above
        raise ValueError(f"there is no file {path}")
    if os.path.isdir(path):  # noqa: PTH112 - as above
        raise ValueError(f"{path} is a directory")
    return path


def _upstream(url: str) -> str:
    from rollout_router.gateway import Upstream  # noqa: PLC0415 - slow to import, seldom needed

    Upstream(url)
    return url


Text = Annotated[str, Field(min_length=1)]
ServiceName = Annotated[str, AfterValidator(_service)]
HeaderName = Annotated[str, _name_of("header")]
CookieName = Annotated[str, _name_of("cookie")]
UpstreamUrl = Annotated[str, AfterValidator(_upstream)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Directory = Annotated[Path, BeforeValidator(_named), AfterValidator(_directory)]
"""Absolute; a directory, or nothing yet."""

ExistingFile = Annotated[Path, BeforeValidator(_named), AfterValidator(_existing_file)]
"""Absolute, and there."""

NewFile = Annotated[Path, BeforeValidator(_named), AfterValidator(_new_file)]
"""Absolute; its directory is there."""
