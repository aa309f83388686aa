# SPDX-License-Identifier: Apache-2.0
"""``rollout-router bench``: what turns, claims, hop and deltas cost, as ratios within one run."""

import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from rollout_router import __version__
from rollout_router.bench.admin import run_admin
from rollout_router.bench.bases import run_bases
from rollout_router.bench.bodies import TURN_BYTES
from rollout_router.bench.claims import choose_places, run_claims
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.deltas import run_deltas
from rollout_router.bench.figures import Part
from rollout_router.bench.forward import CASES, QUICK_CASES, ROUNDS_MAX, run_forward
from rollout_router.bench.guard import grown
from rollout_router.bench.hop import run_hop
from rollout_router.bench.journal import run_journal
from rollout_router.bench.path import run_path
from rollout_router.bench.report import document, missed, notes, page, tables
from rollout_router.bench.scale import run_scale
from rollout_router.bench.start import run_start
from rollout_router.bench.turns import run_turns
from rollout_router.bench.volume import run_volume
from rollout_router.claims import ClaimsError, Host
from rollout_router.cli.flags import ExitCode, flag, json_flag
from rollout_router.cli.interrupts import unwound_by_signals
from rollout_router.cli.table_view import print_tables
from rollout_router.processes import ServiceFailed

__all__ = ["bench"]

_MUCH: Final = {"sizes": [100_000, 500_000, 1_000_000, 2_000_000], "claims": 10_000, "rounds": 100}
_QUICK: Final = {"sizes": [100_000, 1_000_000], "claims": 100, "rounds": 15}
_QUICK_PARTS: Final = ("turns", "claims", "hop", "deltas")
_PATH_SIZES: Final = [100_000, 1_000_000]
_ADMIN_ROUNDS_MAX: Final = 30  # a survey of ten thousand claims takes half a second
_CLAIM_ROUNDS: Final = 10
"""So many rounds of claims for one of turns: those take microseconds, these milliseconds."""


def _amounts(amounts: Mapping[str, Any]) -> str:
    sizes = ",".join(map(str, amounts["sizes"]))
    return f"sizes {sizes}, claims {amounts['claims']}, rounds {amounts['rounds']}"


class _Sizes(click.ParamType[list[int]]):
    """Numbers of bytes, separated by commas."""

    name = "bytes,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            sizes = [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of numbers", param, ctx)
        if min(sizes) < TURN_BYTES or len(set(sizes)) < len(sizes):
            self.fail(f"sizes differ from one another, and are at least {TURN_BYTES}", param, ctx)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How much is measured, and where."""

    sizes: list[int]
    claims: int
    rounds: int
    quick: bool
    work_dir: Path
    rollouts: Path | None
    conformance: Path | None


def _run_forward(asked: _Asked) -> Part:
    cases = QUICK_CASES if asked.quick else CASES
    return run_forward(asked.work_dir, rounds=asked.rounds, cases=cases, say=_say)


def _run_claims(asked: _Asked) -> Part:
    places, notes = choose_places(asked.work_dir, host=Host.here())
    counts, rounds = [1, asked.claims], asked.rounds * _CLAIM_ROUNDS
    return run_claims(places, counts=counts, rounds=rounds, say=_say, notes=notes)


def _run_journal(asked: _Asked) -> Part:
    file_system = Host.here().file_system(asked.work_dir.resolve())
    return run_journal(asked.work_dir, file_system=file_system, rounds=asked.rounds, say=_say)


_PARTS: Final[Mapping[str, Callable[[_Asked], Part]]] = {
    "turns": lambda a: run_turns(a.work_dir, sizes=a.sizes, rounds=a.rounds, say=_say),
    "claims": _run_claims,
    "hop": lambda a: run_hop(a.work_dir, rounds=a.rounds, say=_say),
    "forward": _run_forward,
    "deltas": lambda a: run_deltas(rounds=a.rounds, say=_say),
    "bases": lambda a: run_bases(rounds=a.rounds, say=_say),
    "path": lambda a: run_path(a.work_dir, sizes=_PATH_SIZES, rounds=a.rounds, say=_say),
    "scale": lambda a: run_scale(
        a.work_dir, workers=[1, 2, 4], rollouts=10_000, streams=1_000, say=_say
    ),
    "bytes": lambda a: run_volume(a.rollouts, a.conformance, _say),
    "journal": _run_journal,
    "admin": lambda a: run_admin(
        a.work_dir, claims=a.claims, rounds=min(a.rounds, _ADMIN_ROUNDS_MAX), say=_say
    ),
    "start": lambda a: run_start(a.work_dir, rounds=a.rounds, say=_say),
}


@click.command()
@flag("--only", type=click.Choice(list(_PARTS)), multiple=True, help="Measure these parts alone.")
@flag(
    "--quick",
    is_flag=True,
    help=f"{', '.join(_QUICK_PARTS)} alone, and little: {_amounts(_QUICK)}.",
)
@flag(
    "--rollouts",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Count the bytes of the recorded rollouts of this folder, as `demo` takes it.",
)
@flag(
    "--conformance",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="And those of this document of `conformance --json`.",
)
@flag("--sizes", type=_Sizes(), help="Bytes of history, separated by commas.")
@flag("--claims", type=click.IntRange(2), help="Claims of the owner, to compare with one.")
@flag(
    "--rounds",
    type=click.IntRange(1),
    help="Measurements of each stage of a turn, of the hop, of a delta and of the start; "
    f"{_CLAIM_ROUNDS} times as many of a claim's, at most {ROUNDS_MAX} of forwarding.  "
    f"[default, together: {_amounts(_MUCH)}]",
)
@flag(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True, writable=True),
    default=Path("/var/tmp"),  # noqa: S108 - a folder of our own is made in it
    help="On the disk that is measured; its path is short, because sockets lie below it.",
)
@flag(
    "--check",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The document of another run: fail where a ratio has grown since.",
)
@flag(
    "--margin",
    type=click.FloatRange(0),
    default=0.25,
    help="By how much a ratio may grow, beside the noise of both runs: 0.25 is by a quarter.",
)
@flag(
    "--evidence",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the machine and all tables to this file, as Markdown.",
)
@json_flag()
@unwound_by_signals()
def bench(
    *,
    only: tuple[str, ...],
    quick: bool,
    work_dir: Path,
    rollouts: Path | None,
    conformance: Path | None,
    check: Path | None,
    margin: float,
    evidence: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure turns, claims, hop, forwarding, deltas, bases, paths, scale, bytes, journal and more.

    The application only reads the body and answers, so no model is measured. Claims are measured on
    disk and on tmpfs. Exit code 1: a target was missed, a ratio has grown, or something did not
    happen as it should and there are no results; 4: no store can be on that disk.
    """
    before = _recorded(check)
    # That cleaners may sweep the folder does not concern one that lives for minutes.
    logging.getLogger("rollout_router.claims.creation").setLevel(logging.ERROR)
    given = {name: value for name, value in options.items() if value is not None}
    amounts: dict[str, Any] = {**(_QUICK if quick else _MUCH), **given}
    asked = _Asked(
        quick=quick,
        work_dir=work_dir.absolute(),
        rollouts=rollouts,
        conformance=conformance,
        **amounts,
    )
    wanted = only or (_QUICK_PARTS if quick else tuple(_PARTS))
    try:
        parts = {name: run(asked) for name, run in _PARTS.items() if name in wanted}
    except (BenchFailed, ServiceFailed) as error:
        _say(str(error))
        sys.exit(ExitCode.FAILED)
    except ClaimsError as error:
        _say(f"the claims of the benchmark cannot be kept: {error}")
        sys.exit(ExitCode.REFUSED)
    found = document(_machine(), parts)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        machine = ", ".join(f"{name} {value}" for name, value in _machine().items())
        print_tables(tables(parts.values()), [*notes(parts.values()), machine])
    if evidence:
        evidence.write_text(page(_machine(), parts.values()))
    wrong = missed(parts.values())
    if before is not None:
        try:
            wrong += grown(found["ratios"], before, margin=margin)
        except ValueError as error:
            raise click.UsageError(f"--check: {error}") from error
    for line in wrong:
        _say(line)
    sys.exit(ExitCode.FAILED if wrong else ExitCode.FINE)


def _recorded(path: Path | None) -> dict[str, Any] | None:
    """The ratios of the document in *path*."""
    if path is None:
        return None
    try:
        ratios: dict[str, Any] = json.loads(path.read_bytes())["ratios"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"--check: {path} is no document of a run: {error!r}") from error
    return ratios


def _machine() -> dict[str, Any]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rollout_router": __version__,
    }


def _say(line: str) -> None:
    click.echo(f"rollout-router: {line}", err=True)
