# SPDX-License-Identifier: Apache-2.0
"""``rollout-router config``: what a service would be told, and where each value comes from."""

import json
from itertools import groupby
from typing import Any

import click

from rollout_router.cli.flags import SCHEMA, json_flag
from rollout_router.cli.setting_flags import SettingsCommand, told_by

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show the settings of a service."""


@config.command("show", cls=SettingsCommand)
@json_flag()
@click.pass_context
def show(ctx: click.Context, /, *, as_json: bool, **_: object) -> None:
    """Show each setting with its value and where that comes from; starts nothing.

    Takes what `serve` takes, and refuses what that refuses. Exit code 2 where a setting makes no
    sense.
    """
    rows = _rows(ctx)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "settings": [row for _, row in rows]}))
        return
    from rollout_router.cli.table_view import print_tables  # noqa: PLC0415 - rich, for people alone
    from rollout_router.tables import Table  # noqa: PLC0415 - as above

    print_tables(
        (
            Table(
                title=group,
                columns=("setting", "value", "origin"),
                rows=[(row["name"], _said(row), row["origin"]) for _, row in members],
            )
            for group, members in groupby(rows, key=lambda pair: pair[0])
        ),
        (),
    )


def _rows(ctx: click.Context) -> list[tuple[str, dict[str, Any]]]:
    """Each setting as the document has it, behind its group."""
    told = told_by(ctx)
    from rollout_router.serve.settings_table import default_of, settings_table  # noqa: PLC0415 - as told_by

    values = told.config.shown()
    return [
        (
            row.group,
            {
                "name": row.name,
                "value": values[row.name],
                "origin": told.origins.get(row.name, "default"),
                "default": default_of(row.name),
                **({"unit": row.unit} if row.unit else {}),
                "help": row.description,
            },
        )
        for row in settings_table()
    ]


def _said(row: dict[str, Any]) -> str:
    value = row["value"]
    if isinstance(value, bool):
        return "yes" if value else "no"
    said = f"{value:,}" if isinstance(value, int) and "unit" in row else str(value)
    return "-" if value is None else f"{said} {row.get('unit', '')}".rstrip()
