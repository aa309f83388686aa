# SPDX-License-Identifier: Apache-2.0
"""One run of a harness: shim, two workers, the scripted model, and the owner killed in between.

The kill is bound to an event: the harness's shell stops before its third command, when the third
answer is complete and the fourth request not written. Then the owner is killed, and the shell goes
on. The same happens whether deltas are on or off.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rollout_router.claims import FileClaimStore
from rollout_router.harness.compare import Expected, Run
from rollout_router.harness.pause import NotReached, PausingShell
from rollout_router.harness.port import Harness, Place, Start
from rollout_router.harness.transcript import read_transcript
from rollout_router.processes import Gateway, Service, ServiceFailed, Shim, kill_and_wait

__all__ = ["EXPECTED", "RunFailed", "run"]

EXPECTED: Final = Expected(calls=7, calls_before_kill=3)
"""The scripted model asks for six tool calls and then says that it is done."""

_RUN_S: Final = 90.0
_MODEL: Final = "scripted"
_PROMPT: Final = "Do what the model asks for."
_IN_FULL: Final = ("--no-history-delta", "--route-always")
_OUTPUT_SHOWN: Final = 2_000


class RunFailed(Exception):  # noqa: N818 - named by what happened
    """A run came to no end that can be compared; the message says where it stopped."""


def run(harness: Harness, installed: Path, folder: Path, *, work: Path, deltas: bool) -> Run:
    """Run *harness* once.

    Args:
        harness: which.
        installed: where it is.
        folder: for everything that the run leaves behind; exists and is empty. Short: sockets
            lie in it.
        work: where the harness's tools run. Give every run the same, emptied, so that prompts that
            name it are the same.
        deltas: whether the gateway takes deltas.

    Raises:
        RunFailed, ServiceFailed: nothing keeps running.
    """
    place = Place(home=folder / "home", work=work, shell=folder / "bash")
    place.home.mkdir()
    rollout_id = f"{harness.name}-1"
    with ExitStack() as stack:
        records = folder / "records"
        arguments = ("--capture-dir", str(records), *(() if deltas else _IN_FULL))
        gateway = Gateway(folder, *arguments)
        stack.enter_context(_stopping(gateway.service))
        shim = Shim(folder, gateway.url)
        stack.enter_context(_stopping(shim.service))
        command = f"echo step {EXPECTED.calls_before_kill}"
        shell = stack.enter_context(PausingShell(folder, command=command))
        base_url = f"{shim.url}/ng-rollout/{rollout_id}/v1"
        harness.set_up(place, base_url=base_url, model=_MODEL)
        start = harness.start(installed, place, model=_MODEL, prompt=_PROMPT)
        with _started(start, folder) as process:
            try:
                shell.wait_reached(process.pid, limit_s=_RUN_S)
                killed = _kill_owner(gateway, rollout_id)
                shell.proceed()
                exit_code = process.wait(_RUN_S)
            except (NotReached, subprocess.TimeoutExpired) as error:
                raise RunFailed(f"{harness.name} {error}\n{_output(folder)}") from error
    sent = shim.statistics(rollout_id)
    with (folder / "stdout").open() as lines:
        told = harness.read(lines)
    return Run(
        deltas=deltas,
        exit_code=exit_code,
        killed=killed,
        told=told,
        transcript=read_transcript((records / f"{rollout_id}.jsonl").read_text().splitlines()),
        calls=sent["calls"],
        bytes_full=sent["bytes_full"],
        bytes_sent=sent["bytes_sent"],
        resyncs=sent["resyncs"],
    )


def _kill_owner(gateway: Gateway, rollout_id: str) -> str:
    """Kill the worker that owns the rollout, as the store knows it; gives its id."""
    store = FileClaimStore.inspect(gateway.state_dir)
    claim = store.read(rollout_id)
    owner = store.owner(claim.owner.nonce) if claim is not None else None
    if owner is None:
        raise RunFailed(f"nobody owns rollout {rollout_id} although it has made calls")
    kill_and_wait(owner.pid)
    return owner.nonce


@contextmanager
def _started(start: Start, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The harness in a session of its own, so that its tools end with it."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(  # noqa: S603 - the harness that was asked for
            start.arguments,
            env=dict(start.environment),
            cwd=start.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
