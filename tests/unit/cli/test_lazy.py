# SPDX-License-Identifier: Apache-2.0
"""What a command does not import, so that it starts soon; and that its help is whole."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rollout_router.claims import FileClaimStore, Verdict
from rollout_router.cli.claims_list import list_claims
from rollout_router.cli.lazy import LazyGroup
from rollout_router.cli.main import main

SLOW = {
    *("aiohttp", "asyncio", "fastapi", "filelock", "importlib.metadata", "logging", "psutil"),
    *("pydantic", "pydantic_settings", "rich", "secrets", "socket", "starlette", "uvicorn"),
    *("rollout_router.claims.record", "rollout_router.claims.verdict", "rollout_router.routing"),
}
MODEL = {"pydantic", "pydantic_settings", "rollout_router.serve.config"}
MAIN = "from rollout_router.cli.main import main\nmain()"


def imported_by(program: str, *arguments: str) -> set[str]:
    """The modules that are loaded when *program* ends, with the exit code 0."""
    told = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    done = subprocess.run(
        [sys.executable, "-c", told + program, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stderr.split())


def test_a_list_of_no_claims_imports_little(folder: Path) -> None:
    FileClaimStore.open(folder / "state", service="model")

    assert imported_by(MAIN, "claims", "list", "--state-dir", str(folder / "state")) & SLOW == set()


def test_a_worker_imports_no_client_for_an_upstream_and_makes_no_model_of_pydantic() -> None:
    program = "import rollout_router.serve.worker\n"
    program += "from rollout_router.gateway import Scripted, create_app\n"
    program += "create_app(Scripted())"

    imported = imported_by(program)

    assert "fastapi" in imported
    assert imported & {"aiohttp", "pydantic.v1", "rich", "rollout_router.cli"} == set()


def test_no_command_imports_the_model_of_the_settings_before_it_is_asked_for() -> None:
    homes = {home.partition(":")[0] for home, _ in main.table.values()}
    modules = sorted(homes - {"bench", "conformance", "demo"})  # which serve, or measure it

    program = "\n".join(f"import rollout_router.cli.{module}" for module in modules)

    assert imported_by(program) & MODEL == set()


def test_what_workers_are_forked_from_starts_before_the_model_is_imported() -> None:
    program = "import rollout_router.cli.serve as module, sys\n"
    program += "def start(**_): sys.exit(print(*sys.modules, file=sys.stderr))\n"
    program += "module.start_preloading = start\n"
    program += "module.serve(['--port', '0'])"
    slow = {"pydantic", "pydantic_settings", "tomllib", "asyncio", "rollout_router.serve.config"}

    imported = imported_by(program)

    assert "rollout_router.serve.forking" in imported
    assert imported & slow == set()


def test_a_supervisor_imports_nothing_that_serves() -> None:
    imported = imported_by("import rollout_router.cli.serve, rollout_router.cli.serving")

    assert imported & {"fastapi", "psutil", "rich", "starlette", "uvicorn", "uvloop"} == set()


def test_the_package_itself_imports_nothing_of_its_own_or_of_others() -> None:
    assert imported_by("import rollout_router") <= imported_by("import typing") | {"rollout_router"}


def groups(command: click.Command, name: str = "") -> list[tuple[str, LazyGroup]]:
    if not isinstance(command, LazyGroup):
        return []
    context = click.Context(command)
    inner = [(one, command.get_command(context, one)) for one in command.list_commands(context)]
    return [(name, command)] + [
        group for one, found in inner if found for group in groups(found, f"{name} {one}")
    ]


@pytest.mark.parametrize(("name", "group"), groups(main))
def test_a_group_says_of_each_command_what_that_says_of_itself(name: str, group: LazyGroup) -> None:
    context = click.Context(group, info_name=name)
    shown = " ".join(group.get_help(context).split())
    for one in group.list_commands(context):
        command = group.get_command(context, one)
        assert command is not None
        assert command.name == one
        assert group.table[one][1] in shown
        if name:  # those of the program itself have words of their own there
            assert (command.help or "").replace("\n", " ").startswith(group.table[one][1])


@pytest.mark.parametrize("what", ["workers", "sessions"])
def test_a_list_of_nothing_says_so_without_a_table(folder: Path, what: str) -> None:
    FileClaimStore.open(folder / "state", service="model")
    told = CliRunner().invoke(main, [what, "list", "--state-dir", str(folder / "state")])
    assert told.stdout == f"no {what}\n"


def test_an_unknown_command_is_none() -> None:
    assert main.get_command(click.Context(main), "clams") is None


def test_the_verdicts_that_can_be_asked_for_are_all_there_are() -> None:
    (option,) = (one for one in list_claims.params if one.name == "verdict")
    assert isinstance(option.type, click.Choice)
    assert set(option.type.choices) == {verdict.value for verdict in Verdict}
