# SPDX-License-Identifier: Apache-2.0
"""One run of a harness: its sandbox side, two workers, the model that plays, a kill between calls.

The kill is bound to an event: a command of the harness stops when an answer is complete and the
next request not written. Then the owner is killed, and the command goes on.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from rollout_router.claims import ClaimReader, ClaimsError
from rollout_router.harness.compare import Run
from rollout_router.harness.elsewhere import NotPlaced, own_elsewhere
from rollout_router.harness.isolation import adopting
from rollout_router.harness.model_log import read_log
from rollout_router.harness.model_server import model_command
from rollout_router.harness.pause import NotReached, Pause
from rollout_router.harness.plan import KILLS, Mode, context_llm_tokens
from rollout_router.harness.port import Dialect, Harness, Setup, Target
from rollout_router.harness.scenario import Scenario, prompt
from rollout_router.harness.transcript import read_transcript
from rollout_router.harness.workspace import make_workspace, verify
from rollout_router.processes import Gateway, Service, ServiceFailed, Shim, kill_and_wait

__all__ = ["RunFailed", "run"]

_RUN_S: Final = 180.0
_MODEL: Final = "scripted"
_IN_FULL: Final = ("--no-history-delta", "--route-always")
_OUTPUT_SHOWN: Final = 2_000


class RunFailed(Exception):  # noqa: N818 - named by what happened
    """A run came to no end that can be compared; the message says where it stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """The harness's process, when it is over."""

    exit_code: int
    killed: str | None
    wall_s: float


def run(
    harness: Harness,
    installed: Path,
    folder: Path,
    *,
    dialect: Dialect,
    scenario: Scenario,
    mode: Mode,
) -> Run:
    """Run *harness* once.

    Args:
        harness: which.
        installed: where it is.
        folder: for everything that the run leaves behind; exists and is empty. Short: sockets
            lie in it. Give every run the same path, since prompts name what lies below it.
        dialect: how it calls the model.
        scenario: what the model plays.
        mode: how bodies travel, and whether the owner is killed.

    Raises:
        RunFailed, ServiceFailed: nothing keeps running, and what the run left stays in *folder*.
    """
    rollout_id = f"{harness.name}-{dialect}-{scenario.name}"
    home, work, records = folder / "home", folder / "work", folder / "records"
    log, timings = folder / "model.jsonl", folder / "timings.jsonl"
    home.mkdir()
    work.mkdir()
    with ExitStack() as stack:
        stack.enter_context(adopting())
        context = context_llm_tokens(harness.name, scenario.name)
        command = model_command(scenario.name, log, context_llm_tokens=context)
        model = Service("the model", command, log=folder / "model.log", apart=False)
        stack.enter_context(_stopping(model))
        flags = ("--server-timing", *(() if mode.deltas else _IN_FULL))
        gateway = Gateway(
            folder,
            *("--upstream", str(json.loads(model.wait_line('{"url"'))["url"])),
            *("--capture-dir", str(records), *flags),
        )
        stack.enter_context(_stopping(gateway.service))
        shim = None
        if not harness.in_process:
            shim = Shim(folder, gateway.url, "--timings-file", str(timings))
            stack.enter_context(_stopping(shim.service))
            try:
                own_elsewhere(rollout_id, shim_url=shim.url, gateway_url=gateway.url)
            except NotPlaced as error:
                raise RunFailed(str(error)) from error
        target = Target(
            base_url=f"{shim.url if shim else gateway.url}/ng-rollout/{rollout_id}/v1",
            model=_MODEL,
            dialect=dialect,
            context_llm_tokens=context,
        )
        setup = harness.set_up(PurePosixPath(home), target)
        _write(home, setup)
        make_workspace(work, scenario)
        pause = None
        if mode.killed:
            pause = stack.enter_context(Pause(work, step=KILLS[scenario.name]))
        process = stack.enter_context(
            _started(harness.command(installed, target, prompt(scenario)), setup, work, folder)
        )
        try:
            ended = _end(process, pause, lambda: _kill_owner(gateway, rollout_id))
        except NotReached as error:
            raise RunFailed(f"the harness {error}\n{_output(folder)}") from error
    try:
        with (folder / "stdout").open() as lines:
            told = harness.read(lines)
        sent = shim.statistics(rollout_id) if shim else told.sent
        recorded = records / f"{rollout_id}.jsonl"
        if not sent or not recorded.exists():
            raise RunFailed(f"the harness called no model\n{_output(folder)}")
        return Run(
            scenario=scenario.name,
            mode=mode,
            wall_s=ended.wall_s,
            exit_code=ended.exit_code,
            killed=ended.killed,
            told=told,
            transcript=read_transcript(recorded.read_text().splitlines()),
            seen=read_log(log.read_text().splitlines()),
            verified=tuple(verify(work, scenario, subagents=harness.subagents)),
            calls=sent["calls"],
            bytes_full=sent["bytes_full"],
            bytes_sent=sent["bytes_sent"],
            bytes_plain=sent["bytes_plain"],
            resyncs=sent["resyncs"],
            timings=tuple(map(json.loads, timings.read_text().splitlines())) if shim else (),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # Whatever a reader that expects another form meets in it.
        raise RunFailed(f"what the run left cannot be read: {error!r}") from error


def _end(
    process: "subprocess.Popen[bytes]", pause: Pause | None, kill_owner: Callable[[], str]
) -> _Ended:
    """Wait for the harness's end, and kill the owner on the way where *pause* says so."""
    started_s = time.monotonic()
    killed = None
    if pause is not None:
        pause.wait_reached(process.pid, limit_s=_RUN_S)
        killed = kill_owner()
        pause.proceed()
    _wait_ended(process.pid)
    wall_s = time.monotonic() - started_s
    _kill_group(process)
    return _Ended(exit_code=process.wait(), killed=killed, wall_s=wall_s)


def _wait_ended(pid: int) -> None:
    """Wait for the end of a child, which stays a zombie: its group keeps its number so long."""
    watch = os.pidfd_open(pid)
    try:
        if not select.select([watch], [], [], _RUN_S)[0]:
            raise RunFailed(f"the harness did not end within {_RUN_S:.0f} s")
    finally:
        os.close(watch)


def _kill_orphans(others: AbstractSet[int]) -> None:
    """Kill what left the harness's group and session, too: adopted, it is a child of ours."""
    while left := [one for one in psutil.Process().children() if one.pid not in others]:
        for orphan in left:
            orphan.kill()
            orphan.wait()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what *process* started and left behind, and the process itself; before it is reaped."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def _kill_owner(gateway: Gateway, rollout_id: str) -> str:
    """Kill the worker that owns the rollout, as the store knows it; gives its id."""
    try:
        store = ClaimReader.inspect(gateway.state_dir)
        claim = store.read(rollout_id)
        owner = store.owner(claim.owner.nonce) if claim is not None else None
        if owner is None:
            raise RunFailed(f"nobody owns rollout {rollout_id} although it has made calls")
        kill_and_wait(owner.pid)
    except (ClaimsError, ProcessLookupError) as error:
        raise RunFailed(f"the owner of rollout {rollout_id} was not killed: {error}") from error
    return owner.nonce


def _write(home: Path, setup: Setup) -> None:
    for name, text in setup.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def _started(
    arguments: Sequence[str], setup: Setup, work: Path, folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """The harness in a session of its own, so that its tools end with it."""
    started: list[subprocess.Popen[bytes]] = []
    others = {one.pid for one in psutil.Process().children()}

    def start() -> None:
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(  # noqa: S603 - the harness that was asked for
                arguments,
                env={"PATH": os.environ.get("PATH", os.defpath), **setup.environment},
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        started.append(process)

    try:
        # In a thread, because a signal raises in the main one: there it could come between the
        # start of the process and our knowing of it.
        with ThreadPoolExecutor(1) as starter:
            starter.submit(start).result()
        yield started[0]
    except OSError as error:
        if started:
            raise
        raise RunFailed(f"the harness cannot be started: {error}") from error
    finally:
        for process in started:
            _kill_group(process)
            process.wait()
        _kill_orphans(others)


@contextmanager
def _stopping(service: Service) -> Iterator[None]:
    """Stop *service* at the end; where the run failed, that failure is what is told."""
    try:
        yield
    except BaseException as failed:
        try:
            service.stop()
        except ServiceFailed as also:
            failed.add_note(str(also))
        raise
    service.stop()


def _output(folder: Path) -> str:
    """The ends of what the harness printed."""
    parts = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return "\n".join(part[-_OUTPUT_SHOWN:] for part in parts)
