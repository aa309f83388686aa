# SPDX-License-Identifier: Apache-2.0
"""Variables that begin like those of settings, and are other flags'."""

import click

from rollout_router.cli.lazy import LazyGroup
from rollout_router.cli.main import main
from rollout_router.serve.settings_table import settings_table
from rollout_router.serve.twins import CONFIG_TWIN, OTHER_TWINS, is_elsewhere


def twins(command: click.Command, context: click.Context) -> set[str]:
    """Every variable that a command, or one below it, reads."""
    found = {str(param.envvar) for param in command.params if param.envvar}
    if isinstance(command, click.Group):
        inner = [command.get_command(context, name) for name in command.list_commands(context)]
        found |= {twin for one in inner if one is not None for twin in twins(one, context)}
    return found


def test_the_twins_of_other_commands_are_all_there_are() -> None:
    assert isinstance(main, LazyGroup)
    ours = {CONFIG_TWIN, *(row.env for row in settings_table())}
    found = twins(main, click.Context(main)) - ours
    assert {name for name in found if not is_elsewhere(name)} == OTHER_TWINS
