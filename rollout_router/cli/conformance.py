# SPDX-License-Identifier: Apache-2.0
"""``rollout-router conformance``: real harnesses in full and with deltas, while owners are killed.

Whatever model or harness saw differently is printed. While a harness runs there is no network but
loopback, where this process may arrange that.
"""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

import rollout_router
from rollout_router.cli.flags import ExitCode, flag, json_flag
from rollout_router.cli.interrupts import unwound_by_signals
from rollout_router.cli.table_view import print_tables
from rollout_router.cli.terminal import printable_lines
from rollout_router.harness import HARNESSES
from rollout_router.harness.compare import Failure, Run
from rollout_router.harness.install import CannotInstall, install
from rollout_router.harness.isolation import NotIsolated, isolate
from rollout_router.harness.plan import MODES
from rollout_router.harness.port import Dialect, Harness
from rollout_router.harness.report import SCHEMA, Variant, findings, page, summary, tables
from rollout_router.harness.run import RunFailed, run
from rollout_router.harness.scenario import SCENARIOS, Scenario
from rollout_router.processes import ServiceFailed

__all__ = ["conformance"]


class _Names(click.ParamType[list[str]]):
    """Names with commas between them; the order is that of *known*."""

    name = "names"

    def __init__(self, known: Iterable[str]) -> None:
        self._known = list(known)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """All that are named.

        Raises:
            click.BadParameter: one of them is unknown.
        """
        named = value if isinstance(value, list) else [one.strip() for one in value.split(",")]
        if unknown := [one for one in named if one not in self._known]:
            self.fail(f"unknown: {', '.join(unknown)}; known: {', '.join(self._known)}", param, ctx)
        return [one for one in self._known if one in named]


_cache_flag = flag(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cache", "harness"),
    help="Where harnesses are installed.",
)
_harness_flag = flag(
    "--harness",
    "harnesses",
    type=_Names(HARNESSES),
    default=list(HARNESSES),
    metavar="NAME,…",
    help=f"Which: {', '.join(HARNESSES)}; all of them if not given.",
)


@click.group(invoke_without_command=True)
@_cache_flag
@_harness_flag
@flag(
    "--dialect",
    "dialects",
    type=_Names(Dialect),
    default=list(Dialect),
    metavar="NAME,…",
    help=f"How they call the model: {', '.join(Dialect)}; all that they speak if not given.",
)
@flag(
    "--scenario",
    "scenarios",
    type=_Names(MODES),
    default=list(MODES),
    metavar="NAME,…",
    help=f"What the model plays: {', '.join(MODES)}; everything if not given.",
)
@flag(
    "--evidence",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write versions, configuration, commit and tables to this file, as Markdown.",
)
@json_flag()
@click.pass_context
@unwound_by_signals()
def conformance(ctx: click.Context, /, **options: Any) -> None:
    """Run harnesses with deltas and in full, and compare what they and the model saw.

    A run that fails is a finding, and the others go on.

    Exit codes: 0 no difference; 1 a difference, or a run that failed; 4 one cannot be installed.
    """
    if ctx.invoked_subcommand is not None:
        return
    spoken = set(options["dialects"])
    chosen = [HARNESSES[name] for name in options["harnesses"]]
    chosen = [harness for harness in chosen if spoken.intersection(harness.dialects)]
    if not chosen:
        raise click.UsageError("none of these harnesses speaks one of these dialects")
    places = {harness.name: _install(harness, options["cache"]) for harness in chosen}
    isolated = _isolate()
    # Not below the current directory: the paths of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="rr-", dir="/var/tmp"))
    with _kept_on_error(folder):
        found = [
            summary(_played(harness, places[harness.name], dialect, SCENARIOS[name], folder=folder))
            for harness in chosen
            for dialect in harness.dialects
            if dialect in spoken
            for name in options["scenarios"]
        ]
        document = _document(chosen, found, isolated=isolated)
        if options["as_json"]:
            click.echo(json.dumps(document))
        else:
            _print(found)
        if options["evidence"]:
            options["evidence"].write_text(page(document))
        if document["findings"]:
            sys.exit(ExitCode.FAILED)


@contextmanager
def _kept_on_error(folder: Path) -> Iterator[None]:
    """Remove *folder* in the end, or say where it is where not all went well."""
    try:
        yield
    except BaseException:
        _say(f"what the runs left is in {folder}")
        raise
    shutil.rmtree(folder)


@conformance.command("install")
@_cache_flag
@_harness_flag
def install_only(*, cache: Path, harnesses: Sequence[str]) -> None:
    """Install harnesses, and run nothing. Exit code 4: one cannot be installed."""
    for name in harnesses:
        click.echo(_install(HARNESSES[name], cache))


def _played(
    harness: Harness, installed: Path, dialect: Dialect, scenario: Scenario, *, folder: Path
) -> Variant:
    """One harness in one dialect and one scenario; what each run leaves is named after it."""
    runs: list[Run | Failure] = []
    for mode in MODES[scenario.name]:
        _say(f"{harness.name}, {dialect}, {scenario.name}: {mode.value}")
        own = folder / "run"  # the same path for each, because prompts name it
        own.mkdir()
        try:
            runs.append(run(harness, installed, own, dialect=dialect, scenario=scenario, mode=mode))
        except (RunFailed, ServiceFailed) as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            _say(f"the run failed: {text}")
            runs.append(Failure(mode=mode, text=text))
        finally:
            name = f"{harness.name}-{dialect}-{scenario.name}-{mode.name.lower()}"
            own.rename(folder / name)
    return Variant(harness=harness.name, dialect=dialect, scenario=scenario, runs=runs)


def _install(harness: Harness, cache: Path) -> Path:
    try:
        return install(harness, cache, say=_say)
    except CannotInstall as error:
        _end(str(error), ExitCode.REFUSED)


def _isolate() -> bool:
    try:
        isolate()
    except NotIsolated as error:
        _say(f"the machine's network stays reachable for the harnesses: {error}")
        return False
    return True


def _document(
    chosen: Sequence[Harness], found: list[dict[str, Any]], *, isolated: bool
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "versions": {
            "rollout-router": rollout_router.__version__,
            "commit": _commit(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "loopback_only": isolated,
        "harnesses": {
            harness.name: {**harness.packages.npm, **harness.packages.pypi} for harness in chosen
        },
        "variants": found,
        "findings": sum(len(run["findings"]) for variant in found for run in variant["runs"]),
    }


def _commit() -> str | None:
    """The commit of the sources that run, a ``+`` behind it where they were changed since."""
    head = _git("rev-parse", "HEAD")
    return head and head.strip() + ("+" if _git("status", "--porcelain", "-uno") else "")


def _git(*arguments: str) -> str | None:
    """What git says of our sources; None: they are in no repository, or there is no git."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _print(found: list[dict[str, Any]]) -> None:
    fine = "no difference: the same requests, tool calls, answers and ends"
    print_tables(tables(found), [f"different: {line}" for line in findings(found)] or [fine])


def _say(line: str) -> None:
    click.echo(f"rollout-router: {printable_lines(line)}", err=True)


def _end(line: str, code: ExitCode) -> NoReturn:
    _say(line)
    sys.exit(code)
