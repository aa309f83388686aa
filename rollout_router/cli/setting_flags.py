# SPDX-License-Identifier: Apache-2.0
"""Commands that take the settings of a service: a flag for each, made from the one model.

The model is imported when the flags are asked for, not with the command: it takes longer to import
than everything else of a command, and ``serve`` has something to start first.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from rollout_router.cli.terminal import printable_lines

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

    from rollout_router.serve.settings_table import SettingRow
    from rollout_router.serve.sources import Told

__all__ = ["SettingsCommand", "asks_for_help", "told_by"]


class SettingsCommand(click.Command):
    """A command with ``--config`` and a flag for each setting, behind its own."""

    _of_settings: list[click.Parameter] | None = None

    # The property stands for an attribute of click's, which reads it whenever it parses or helps.
    @property
    def params(self) -> list[click.Parameter]:
        """Click's attribute."""
        if self._of_settings is None:
            self._of_settings = [*self._own, *_flags_of_settings()]
        return self._of_settings

    @params.setter
    def params(self, own: list[click.Parameter]) -> None:
        self._own = own
        self._of_settings = None


def told_by(ctx: click.Context) -> "Told":
    """The settings that this call of a :class:`SettingsCommand` was told.

    Raises:
        click.UsageError: some make no sense; the message names each with where it came from.
    """
    from rollout_router.serve.sources import SettingsRefused, read_settings  # noqa: PLC0415 - see above

    flags = {
        option.name: ctx.params[option.name]
        for option in ctx.command.params
        if isinstance(option, _Flag) and option.name is not None
        if ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    config_file: Path | None = flags.pop("config", None)
    try:
        return read_settings(flags, config_file=config_file)
    except SettingsRefused as refused:
        raise click.UsageError(printable_lines(str(refused))) from refused


def asks_for_help(args: list[str]) -> bool:
    """Whether a command line asks for help, perhaps: nothing needs to be started for that."""
    return "--help" in args or "-h" in args


class _Flag(click.Option):
    """A flag whose variable and default are read where all settings are, and only shown here."""

    def __init__(self, name: str, *, bound: str = "", said: str = "", **options: Any) -> None:
        super().__init__([name], show_envvar=True, **options)
        self._bound = bound
        self._said = said

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:  # noqa: ARG002 - click's signature
        """Click's signature."""
        return None

    def get_help_extra(self, ctx: click.Context) -> "OptionHelpExtra":
        """Click's signature."""
        extra = super().get_help_extra(ctx)
        if self._said:
            extra["default"] = self._said
        if self._bound:
            extra["range"] = self._bound
        return extra


def _flags_of_settings() -> list[click.Parameter]:
    from rollout_router.serve.settings_table import settings_table  # noqa: PLC0415 - see above
    from rollout_router.serve.twins import CONFIG_TWIN  # noqa: PLC0415 - as above

    config = _Flag(
        "--config",
        envvar=CONFIG_TWIN,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="TOML file with settings; flags and environment stand over it.",
    )
    return [config, *(_flag(row) for row in settings_table())]


def _flag(row: "SettingRow") -> _Flag:
    if row.type == "boolean":
        name = f"{row.flag}/--no-{row.flag.removeprefix('--')}"
        return _Flag(
            name,
            envvar=row.env,
            default=row.default == "true",
            show_default=True,
            help=row.help,
        )
    kind: click.ParamType[Any] = click.STRING
    if row.type == "path":
        kind = cast("click.ParamType[Any]", click.Path())
    elif row.choices:
        kind = click.Choice(row.choices)
    return _Flag(
        row.flag,
        envvar=row.env,
        type=kind,
        metavar=None if row.choices else row.form,
        bound="" if row.choices else row.bound,
        said="" if row.default == "none" else row.default.strip('"'),
        help=row.help,
    )
