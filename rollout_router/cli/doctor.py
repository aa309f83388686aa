# SPDX-License-Identifier: Apache-2.0
"""``rollout-router doctor``: what a machine and a configuration lack before a run."""

import json
import sys
from dataclasses import asdict

import click

from rollout_router.cli.flags import SCHEMA, ExitCode, json_flag
from rollout_router.cli.setting_flags import SettingsCommand, told_by

__all__ = ["doctor"]


@click.command(cls=SettingsCommand)
@json_flag()
@click.pass_context
def doctor(ctx: click.Context, /, *, as_json: bool, **_: object) -> None:
    """Check a machine and a configuration before a run.

    Takes what `serve` takes, starts nothing and changes nothing. Exit code 1 where a check fails;
    warnings are for you to read.
    """
    config = told_by(ctx).config
    from rollout_router.doctor import Status, examine  # noqa: PLC0415 - when all is said

    found = list(examine(config))
    if as_json:
        checks = [{"name": name, **asdict(checked)} for name, checked in found]
        click.echo(json.dumps({"schema": SCHEMA, "checks": checks}))
    else:
        from rollout_router.cli.table_view import print_tables  # noqa: PLC0415 - rich, for people
        from rollout_router.tables import Table  # noqa: PLC0415 - as above

        columns = ("check", "status", "found", "what to do")
        rows = [(name, one.status, one.found, one.advice) for name, one in found]
        failed = sum(one.status is Status.FAIL for _, one in found)
        warned = sum(one.status is Status.WARN for _, one in found)
        said = f"{len(found)} checks: {failed} failed, {warned} warnings"
        print_tables([Table(title="", columns=columns, rows=rows)], [said])
    sys.exit(
        ExitCode.FAILED if any(one.status is Status.FAIL for _, one in found) else ExitCode.FINE
    )
