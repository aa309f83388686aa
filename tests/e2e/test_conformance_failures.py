# SPDX-License-Identifier: Apache-2.0
"""A conformance run in which not all goes well: what ended is told, and nothing keeps running."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import psutil
import pytest
from click.testing import CliRunner, Result

from rollout_router.cli import conformance as command
from rollout_router.cli.main import main
from rollout_router.harness.plan import Mode
from rollout_router.harness.port import Dialect, Packages, Setup, Target, Told

BOTH = (Dialect.CHAT, Dialect.RESPONSES)


@dataclass(frozen=True, slots=True)
class Shell:
    """Stands in for a harness: a shell with a script."""

    script: str
    name: str = "pi"
    in_process: bool = False
    subagents: bool = False
    dialects: Sequence[Dialect] = (Dialect.CHAT,)
    packages: Packages = field(default_factory=Packages)
    odd: Exception | None = None

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        raise NotImplementedError

    def set_up(self, _: PurePosixPath, target: Target) -> Setup:
        return Setup(files={}, environment={"BASE_URL": target.base_url})

    def command(self, installed: Path, *_: object) -> Sequence[str]:
        return ["sh", "-c", self.script] if self.script else [str(installed / "nothing")]

    def read(self, _: Iterable[str]) -> Told:
        if self.odd is not None:
            raise self.odd
        return Told(answer=None, model_calls=None, usage={}, problems=())


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed, and this process keeps its network."""
    monkeypatch.setattr(command, "_install", lambda *_: Path("/nowhere"))
    monkeypatch.setattr(command, "_isolate", lambda: True)
    monkeypatch.setattr(command, "MODES", {"faults": [Mode.FULL]})


@contextmanager
def ran(
    monkeypatch: pytest.MonkeyPatch, harness: Shell, *arguments: str
) -> Iterator[tuple[Result, Path]]:
    """The command's end, and the folder that it left; nothing that it started runs."""
    monkeypatch.setattr(command, "HARNESSES", {"pi": harness})
    asked = ["conformance", "--harness", "pi", "--scenario", "faults", "--json", *arguments]
    done = CliRunner().invoke(main, asked)
    found = re.search(r"what the runs left is in (\S+)", done.stderr)
    assert found, done.stderr
    folder = Path(found[1])
    running = [one.info for one in psutil.process_iter(["pid", "cmdline", "open_files"])]
    assert [one for one in running if str(folder) in str(one)] == []
    try:
        yield done, folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("harness", "said"),
    [
        pytest.param(
            Shell("true", dialects=BOTH), "the harness called no model", marks=pytest.mark.long
        ),
        pytest.param(Shell(""), "the harness cannot be started", marks=pytest.mark.long),
        pytest.param(
            Shell("true", odd=AttributeError("get")),
            "what the run left cannot be read: Attri",
            marks=pytest.mark.long,
        ),
    ],
    ids=["calls nobody", "does not start", "is odd"],
)
def test_a_run_that_fails_is_a_finding_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, harness: Shell, said: str
) -> None:
    page = tmp_path / "page.md"
    with ran(monkeypatch, harness, "--evidence", str(page)) as (done, folder):
        assert done.exit_code == 1
        document = json.loads(done.stdout)
        assert [one["dialect"] for one in document["variants"]] == list(harness.dialects)
        assert document["findings"] == len(harness.dialects)
        for variant in document["variants"]:
            (run,) = variant["runs"]
            assert run["failed"]
            ((finding,), mode) = run["findings"], run["mode"]
            assert (finding["aspect"], mode) == ("run", "in full")
            assert said in finding["text"]
        assert f"pi, chat, faults, in full: run: {said}" in page.read_text()
        assert "| pi, chat | faults | in full | - | - | failed | - |" in page.read_text()
        assert (folder / "pi-chat-faults-full" / "gateway.log").exists()


@pytest.mark.long
@pytest.mark.parametrize("how", ["", "setsid "])
def test_what_a_harness_leaves_running_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        left = Shell(f"{how}sleep 1000 > {fifo} & exit 3")
        with ran(monkeypatch, left):
            os.set_blocking(reader, True)
            assert os.read(reader, 1) == b""  # nobody has it open any more
    finally:
        os.close(reader)


@pytest.mark.long
def test_a_signal_ends_all_that_was_started_and_the_folder_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Shell(f"kill {os.getpid()}; exec sleep 1000")
    with ran(monkeypatch, harness) as (done, folder):
        assert done.exit_code == 128 + signal.SIGTERM
        assert done.stdout == ""
        assert (folder / "pi-chat-faults-full" / "gateway.log").exists()
