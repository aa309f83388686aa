# SPDX-License-Identifier: Apache-2.0
"""``rollout-router checkpoint``: checkpoints of an agent server, taken and brought back.

They work on its journal and on the gate of its service; the server may run or not. ``status`` and
``inspect`` only read.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from rollout_router.checkpoint.archive import read_archive
from rollout_router.checkpoint.control import Checkpoints
from rollout_router.checkpoint.environment_server import EnvironmentServer
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.phases import ACTIVE, Checkpoint
from rollout_router.checkpoint.records import Kept
from rollout_router.checkpoint.restoring import kept_in
from rollout_router.checkpoint.tables import all_rollouts
from rollout_router.checkpoint.wire import IDENTIFIER
from rollout_router.claims import ClaimsError, FileClaimStore, Moment, read_gate
from rollout_router.cli.claims_view import print_table
from rollout_router.cli.flags import (
    SCHEMA,
    ExitCode,
    Seconds,
    ended_by,
    flag,
    journal_flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable
from rollout_router.operate import WAIT_S_MAX

__all__ = ["checkpoint", "opened_journal", "refusing"]

_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
_BUDGET_S: Final = 300.0


class _Id(click.ParamType[str]):
    """The form of a rollout's, an instance's, a run's and a checkpoint's id."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Click's signature."""
        if IDENTIFIER.fullmatch(value) is None:
            self.fail(f"{value!r:.210} is no id: {IDENTIFIER.pattern}", param, ctx)
        return str(value)


_checkpoint_id = click.argument("checkpoint_id", type=_Id())


def _archive_flag() -> Callable[[Any], Any]:
    return flag("--archive", type=_DIRECTORY, required=True, help="The folder of archives.")


def _environment_flag() -> Callable[[Any], Any]:
    return flag(
        "--environment", metavar="URL", callback=_server, help="The environment server, if any."
    )


def _budget_flags(command: Any) -> Any:
    budget = flag(
        "--budget-seconds",
        "budget_s",
        default=_BUDGET_S,
        is_eager=True,
        type=Seconds(0, WAIT_S_MAX, min_open=True),
        help="How long the gate stays closed unless this is said again.",
    )
    wait = flag(
        "--wait-seconds",
        "wait_s",
        default=60.0,
        type=Seconds(0, WAIT_S_MAX),
        callback=_within_budget,
        help="How long to wait for operations in hand; at most the budget.",
    )
    return budget(wait(command))


def _within_budget(ctx: click.Context, param: click.Parameter, wait_s: float) -> float:
    if wait_s > ctx.params.get("budget_s", _BUDGET_S):
        raise click.BadParameter("it is longer than --budget-seconds", ctx, param)
    return wait_s


def _instance_flags(command: Any) -> Any:
    instance = flag("--instance", type=_Id(), default="agent", help="The name of the agent server.")
    run = flag(
        "--run", type=_Id(), required=True, help="The name of the training or evaluation run."
    )
    return instance(run(command))


def _server(
    ctx: click.Context, param: click.Parameter, url: str | None
) -> EnvironmentServer | None:
    if url is None:
        return None
    try:
        return EnvironmentServer(url)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.group()
def checkpoint() -> None:
    """Take and bring back checkpoints of an agent server."""


@checkpoint.command("status")
@journal_flag()
@state_dir_flag()
@json_flag()
def status(*, journal: Path, state_dir: Path, as_json: bool) -> None:
    """Show the gate, the checkpoints, and how many sessions are in which state."""
    with refusing(), opened_journal(journal) as opened:
        known = Checkpoints(opened, state_dir).known()
        sessions = Counter(one.status for one in opened.database.read(all_rollouts))
        gate = read_gate(state_dir)
    rows = [_described(one) for one in known]
    if as_json:
        document = {
            "schema": SCHEMA,
            "instance": opened.instance,
            "run": opened.run,
            "store_id": opened.store_id,
            "gate": {"open": gate.open, "by": gate.by, "why": gate.why},
            "sessions": sessions,
            "checkpoints": rows,
        }
        click.echo(json.dumps(document))
        return
    shut = f"closed by {printable(gate.by)}: {printable(gate.why)}"
    said = "open" if gate.open else shut
    click.echo(f"{opened.instance}, run {printable(opened.run)}: the gate is {said}")
    print_table(["sessions", "number"], sorted(sessions.items()))
    print_table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])


@checkpoint.command("prepare")
@_checkpoint_id
@_budget_flags
@journal_flag()
@state_dir_flag()
@json_flag()
def prepare(
    *,
    checkpoint_id: str,
    budget_s: float,
    wait_s: float,
    journal: Path,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Close the gate, and wait until no operation is in hand.

    Exit code 1: some are still in hand, and each is named. The gate stays closed until the budget
    is over or the checkpoint is resumed; the same command again waits again. A checkpoint whose
    budget was over first is abandoned.
    """
    with refusing(), opened_journal(journal) as opened:
        prepared = Checkpoints(opened, state_dir).prepare(
            checkpoint_id, budget_s=budget_s, wait_s=wait_s
        )
    if as_json:
        blockers = [asdict(one) for one in prepared.blockers]
        document = {"schema": SCHEMA, **_described(prepared.checkpoint), "blockers": blockers}
        click.echo(json.dumps(document))
    else:
        click.echo(f"checkpoint {printable(checkpoint_id)} is {prepared.checkpoint.phase}")
    for one in prepared.blockers:
        call = "" if one.rollout_id is None else f", rollout {one.rollout_id}"
        click.echo(f"rollout-router: worker {one.worker_id}{call}: {one.why}", err=True)
    sys.exit(ExitCode.FAILED if prepared.blockers else ExitCode.FINE)


@checkpoint.command("commit")
@_checkpoint_id
@_archive_flag()
@_environment_flag()
@flag("--rollout", "scope", type=_Id(), multiple=True, help="Must go on from it; repeatable.")
@journal_flag()
@state_dir_flag()
@json_flag()
def commit(
    *,
    checkpoint_id: str,
    archive: Path,
    environment: EnvironmentServer | None,
    scope: Sequence[str],
    journal: Path,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Publish what a prepared checkpoint holds; again: the same manifest."""
    with refusing(), opened_journal(journal) as opened:
        manifest = Checkpoints(opened, state_dir).commit(
            checkpoint_id, archive, environments=environment, scope=list(scope) or None
        )
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "manifest": manifest.document()}))
    else:
        held = f"rollouts: {manifest.records_count}, bytes: {manifest.records_bytes}"
        click.echo(f"checkpoint {printable(checkpoint_id)} is committed; {held}")


@checkpoint.command("resume")
@_checkpoint_id
@journal_flag()
@state_dir_flag()
@json_flag()
def resume(*, checkpoint_id: str, journal: Path, state_dir: Path, as_json: bool) -> None:
    """Open the gate; what was not committed by then never will be."""
    with refusing(), opened_journal(journal) as opened:
        found = Checkpoints(opened, state_dir).resume(checkpoint_id)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, **_described(found)}))
    else:
        said = "not restored" if found.phase == "none" else found.phase
        click.echo(f"checkpoint {printable(checkpoint_id)} is {said}")


@checkpoint.command("restore")
@_checkpoint_id
@_archive_flag()
@_environment_flag()
@_budget_flags
@_instance_flags
@flag("--service", default="agent", help="Whose store it is, as `serve --service`.")
@journal_flag()
@state_dir_flag()
@json_flag()
def restore(
    *,
    checkpoint_id: str,
    archive: Path,
    environment: EnvironmentServer | None,
    budget_s: float,
    wait_s: float,
    instance: str,
    run: str,
    service: str,
    journal: Path,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Fill a journal that knows none of these rollouts, before or after its server starts.

    Journal and store are made where there are none. The gate is closed until the checkpoint is
    resumed, or the budget is over; one that an operator closed is left to them.
    """
    with refusing():
        # Whose it is said to be is looked at first: a new journal is bound to it for good.
        read_archive(archive, instance=instance, run=run, checkpoint_id=checkpoint_id)
        store_id = FileClaimStore.open(state_dir, service=service).store_id
        with _closing(Journal(journal, instance=instance, run=run, store_id=store_id)) as opened:
            restored = Checkpoints(opened, state_dir).restore(
                checkpoint_id, archive, environments=environment, budget_s=budget_s, wait_s=wait_s
            )
    if as_json:
        document = {"schema": SCHEMA, **_described(restored.checkpoint)}
        click.echo(json.dumps({**document, "rollouts": restored.numbers}))
    else:
        numbers = ", ".join(f"{number} {kind}" for kind, number in restored.numbers.items())
        click.echo(f"checkpoint {printable(checkpoint_id)} is restored: {numbers or 'no rollouts'}")


@checkpoint.command("inspect")
@_checkpoint_id
@_archive_flag()
@_instance_flags
@json_flag()
def inspect(*, checkpoint_id: str, archive: Path, instance: str, run: str, as_json: bool) -> None:
    """Verify an archive, and show what it keeps of each rollout. Changes nothing.

    Exit code 3: it is damaged; the message says how.
    """
    with refusing():
        found = read_archive(archive, instance=instance, run=run, checkpoint_id=checkpoint_id)
        rows = [_kept_row(one) for one in kept_in(found)]
    if as_json:
        click.echo(
            json.dumps({"schema": SCHEMA, "manifest": found.manifest.document(), "rollouts": rows})
        )
    else:
        print_table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])
        click.echo(f"rollouts: {len(rows)}, as they were published")


def _kept_row(kept: Kept) -> dict[str, Any]:
    boundary = kept.boundary or {}
    return {
        "rollout_id": kept.rollout.rollout_id,
        "kind": kept.kind,
        "boundary": boundary.get("kind"),
        "operations": len(kept.rows),
        "attempt": kept.rollout.attempt,
        "environments": len(kept.environments),
        "receipt": kept.receipt,
        "reason": kept.reason,
    }


def _described(found: Checkpoint) -> dict[str, Any]:
    left = None
    if found.phase in ACTIVE:
        left = Moment.now().seconds_to(Moment(boot_id=found.boot_id, seconds=found.until))
    return {
        "checkpoint_id": found.checkpoint_id,
        "phase": found.phase,
        "seconds_left": None if left is None else round(left, 1),
        "changed_at": found.changed_at,
    }


@contextmanager
def opened_journal(path: Path) -> Iterator[Journal]:
    """The journal of a server that is or was there."""
    with _closing(Journal.existing(path)) as journal:
        yield journal


@contextmanager
def _closing(journal: Journal) -> Iterator[Journal]:
    try:
        yield journal
    finally:
        journal.close()


@contextmanager
def refusing() -> Iterator[None]:
    """End with what the refusal says, and a code that tells damage from refusal."""
    try:
        with ended_by(ClaimsError, ExitCode.REFUSED):
            yield
    except CheckpointRefusal as refusal:
        damaged = refusal.outcome == "quarantined" or refusal.code == "manifest_damaged"
        click.echo(f"rollout-router: {printable(refusal)} [{refusal.code}]", err=True)
        sys.exit(ExitCode.DAMAGE_FOUND if damaged else ExitCode.REFUSED)
