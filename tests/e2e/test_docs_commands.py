# SPDX-License-Identifier: Apache-2.0
"""Every command in the documentation is run, as it is written, page by page.

The blocks of a page are typed into a shell, in order, in a home of their own. ``SCENARIOS`` says
what a page takes for granted and what its placeholders stand for; ``ELSEWHERE`` says which other
test, or which step of CI, runs a command that no test can run inside itself. A block of a page
without a scenario fails here.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from support.documents import PAGES, ROOT, Block, blocks_of
from support.ports import quiet_port
from support.terminal import Terminal

BODY = """-H 'Content-Type: application/json' -d '{"model": "m", "input": "hello"}'"""
CALL = "done after 0 tool calls"
EXAMPLE = "rollout_router.checkpoint.example"
CURL_TIMED_OUT = 28
_Found = TypeVar("_Found")
BIN = Path(sys.executable).parent
PAGES_WITH_BLOCKS = {
    str(page.relative_to(ROOT)): found for page in PAGES if (found := blocks_of(page))
}

PORTS = re.compile(r"(?<=[: =])(?:8000|8377|9\d\d\d)\b")
"""Ports of the documentation; each stands for a free one."""

READY = {
    r"rollout-router serve ": "ready: http",
    r"--admin-port ": "admin: http",
    r"python3 .*shim |rollout-router shim ": '"pid": ',
}
"""What a program says once it serves, and the next command may be typed."""


class Place:
    """A home with its terminals, ports and what the page's placeholders mean there."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.home = folder
        self._running = running
        self._ports: dict[str, int] = {}
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ROLLOUT_ROUTER_", "XDG_", "TOOL_"))
        }
        self._environment |= {
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        (folder / "run").mkdir(mode=0o700)
        self.terminal = self.another()

    def another(self) -> Terminal:
        """One more terminal; it is closed at the end."""
        terminal = Terminal(self.home, self._environment)
        self._running.callback(terminal.close)
        return terminal

    def serve(self, command: str) -> None:
        """Start what a page takes for granted, in a terminal of its own."""
        typed = self.with_ports(command)
        terminal = self.another()
        terminal.leave_running(typed)
        terminal.wait_for(*_ready(typed))

    def run(self, command: str) -> str:
        """The output of a command that must end well."""
        code, said = self.terminal.type(self.with_ports(command))
        assert code == 0, f"{command}: {said}"
        return said

    def with_ports(self, command: str) -> str:
        """*command* with free ports in the place of those of the documentation."""
        return PORTS.sub(lambda match: str(self._port(match[0])), command)

    def _port(self, name: str) -> int:
        if name not in self._ports:
            self._ports[name] = quiet_port()
        return self._ports[name]


def _ready(command: str) -> list[str]:
    found = [text for program, text in READY.items() if re.search(program, command)]
    assert found, f"what does it say once it serves: {command}"
    return found


def nothing(place: Place) -> None:
    """A page that takes nothing for granted."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How the blocks of one page are run.

    Args:
        before: makes what the page takes for granted.
        means: placeholders, as patterns, and what stands for each: a text, or how to find it.
        exits: beginnings of commands and the exit codes that they have here; 0 of all others.
        says: beginnings of commands and what is in their output.
        after: beginnings of commands and what stands in for the world once they ended.
    """

    before: Callable[[Place], None] = nothing
    means: Mapping[str, str | Callable[[Place], str]] = field(default_factory=dict)
    exits: Mapping[str, int] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, Callable[[Place], None]] = field(default_factory=dict)


def worker(store: str = "") -> Callable[[Place], str]:
    """The first worker that lives, of the store that *store* names as a flag."""

    def find(place: Place) -> str:
        workers = json.loads(place.run(f"rollout-router workers list --json {store}"))["workers"]
        return next(str(one["id"]) for one in workers if one["verdict"] == "alive")

    return find


def epoch(store: str = "") -> Callable[[Place], str]:
    """The claim epoch of r1."""

    def find(place: Place) -> str:
        claims = json.loads(place.run(f"rollout-router claims list --json {store}"))["claims"]
        return next(str(one["claim_epoch"]) for one in claims if one["rollout_id"] == "r1")

    return find


def a_model(place: Place) -> None:
    """A model server on port 8000."""
    place.serve("rollout-router serve --port 8000 --workers 1 --state-dir model")


def a_service(place: Place) -> None:
    """A gateway with its store in the usual place, and a rollout r1 that has called."""
    place.serve("rollout-router serve --port 9000 --workers 1")
    a_call(place)


def a_call(place: Place) -> None:
    """The rollout r1 calls."""
    place.run(f"curl -sf http://127.0.0.1:9000/sessions/r1/v1/responses {BODY}")


def an_agent(place: Place) -> None:
    """An agent server whose session r1 is open: its model cannot be reached."""
    for port in (9002, 9004):
        place.serve(
            f"TOOL_ENVIRONMENT_FILE=environments-{port} rollout-router serve --port {port}"
            f" --workers 1 --app {EXAMPLE}.environment_app:app --service environment"
            f" --route-always --no-history-delta --state-dir environment-{port}"
        )
    place.serve(
        "TOOL_AGENT_STATE_DIR=agent TOOL_AGENT_JOURNAL=journal TOOL_AGENT_RUN=run-1"
        " TOOL_AGENT_MODEL_URL=http://127.0.0.1:9999"
        " TOOL_AGENT_ENVIRONMENT_URL=http://127.0.0.1:9002"
        f" rollout-router serve --port 9003 --workers 1 --app {EXAMPLE}.agent:app --service agent"
        " --route-always --no-history-delta --state-dir agent"
    )
    task = """{"scenario": "errands", "seed": 3, "model": "m"}"""
    url = place.with_ports("http://127.0.0.1:9003/ng-rollout/r1/run")
    code, said = place.terminal.type(f"curl -s -m 2 {url} -d '{task}'")
    assert code == CURL_TIMED_OUT, said


def a_service_and_an_agent(place: Place) -> None:
    """Both, as the page of the commands has it."""
    a_service(place)
    an_agent(place)


def a_store_of_others(place: Place) -> None:
    """A service that has no admin address, in a folder of its own."""
    place.serve("rollout-router serve --port 9005 --workers 1 --state-dir gym/state")


def until_seen(place: Place) -> None:
    """The take-over is known at the admin address, which asks each worker twice a second."""
    life = "curl -s http://127.0.0.1:9100/api/rollouts/r1"
    place.run(f"until {life} | grep -q claim_taken_over; do :; done")


def an_installation(place: Place) -> None:
    """The installed tools in the clone, in place of a download; its code is the clone's."""
    clone = place.home / "rollout-router"
    (clone / ".venv").mkdir()
    (clone / ".venv" / "bin").symlink_to(BIN)
    (clone / ".venv" / ".complete").touch()
    place.run('export PYTHONPATH="$PWD"')


SCENARIOS: dict[str, Scenario] = {
    "README.md": Scenario(
        before=a_model,
        means={
            r"\bHOST\b": "127.0.0.1",
            r"(?<=--expect-epoch )N\b": epoch("--state-dir ~/rollouts/claims"),
            r"(?<=drain )ID\b": worker("--state-dir ~/rollouts/claims"),
        },
        says={
            "curl http://127.0.0.1:9001/": CALL,
            "curl http://127.0.0.1:9003/": '"receipt"',
            "rollout-router claims list": "r1",
            "rollout-router claims force r1": "would",
            "rollout-router top": "rollouts",
            "curl -s http://127.0.0.1:9100/metrics": "rollout_router_requests_total",
        },
    ),
    "docs/admin.md": Scenario(
        before=a_store_of_others,
        means={r"(?<=--state-dir )DIR --admin-port 9100": "gym/state --admin-port 9101"},
        after={"rollout-router serve": a_call},
        says={
            "curl -sf": '"done":true',
            "rollout-router claims list": "r1",
            "rollout-router claims reap": "0",
        },
    ),
    "docs/checkpoint.md": Scenario(
        before=an_agent,
        means={
            r"--journal FILE": "--journal journal",
            r"--state-dir DIR": "--state-dir agent",
            r"--archive DIR": "--archive archives",
            r"http://…": "http://127.0.0.1:9002",
        },
    ),
    "docs/cli.md": Scenario(
        before=a_service_and_an_agent,
        means={
            r"2dd9934085045afde1ea|e24c…": worker(),
            r"http://…": "http://127.0.0.1:9004",
            r"gateway:8000|HOST:9000": "127.0.0.1:9000",
            r"(?<=--home )/root": "~",
            r"(?<=build )FILE": "shim",
        },
        exits={
            "rollout-router claims reap --owner-missing": 4,  # it lives, and its file stands
            "rollout-router sessions show 3f2a": 1,  # the scripted model makes no sessions
        },
        says={
            "rollout-router claims show": "its socket answers",
            "rollout-router sessions show r1": "open",
            "rollout-router checkpoint status": "step-400",
            "rollout-router checkpoint inspect": "r1",
        },
    ),
    "docs/configuration.md": Scenario(
        before=a_model,
        says={
            "rollout-router config show": "--port",
            "rollout-router doctor": " 0 failed",
            "rollout-router workers list": "alive",
        },
    ),
    "docs/guides/containers.md": Scenario(),
    "docs/guides/nginx.md": Scenario(),
    "docs/guides/vllm.md": Scenario(
        before=a_model,
        says={
            "curl -sf http://127.0.0.1:9000/sessions": CALL,
            "curl -sf http://127.0.0.1:9000/v1/models": '"object":"list"',
            "curl -s http://127.0.0.1:9100/metrics": "rollout_router_requests_total",
            "tail": '"outcome":"completed"',
        },
    ),
    "docs/harnesses.md": Scenario(
        means={r"gateway:8000": "127.0.0.1:9000", r"(?<=--home )/root": "~"},
        says={"rollout-router harness": "/ng-rollout/r1/v1"},
    ),
    "docs/nemo-gym.md": Scenario(before=a_store_of_others, means={r"\bFOLDER\b": "gym"}),
    "docs/operations.md": Scenario(
        after={"rollout-router serve": a_call, "rollout-router workers list --json": a_call},
        means={r"\bID\b": "r1", r"(?<=--expect-epoch )N\b": epoch()},
        says={"rollout-router admission status": "open", "rollout-router claims force": "r1"},
    ),
    "docs/page.md": Scenario(
        after={"rollout-router serve": a_call},
        says={"rollout-router top --json": "0", "rollout-router top": "rollouts"},
    ),
    "docs/quickstart.md": Scenario(
        means={r"\bREPOSITORY\b": str(ROOT)},
        after={"cd rollout-router": an_installation, "curl -si": until_seen},
        says={
            "make demo": "No difference.",
            "rollout-router top": "r1",
            "curl -s http://127.0.0.1:9100/api": "claim_taken_over 4294967298",
            "curl -s http://127.0.0.1:9100/metrics": '{reason="life_lock_free"} 1.0',
            "curl -": CALL,
            "rollout-router claims list": "r1",
            "python3 -c 'import json, sys; [print": "4294967298 completed",
            "cat ~/rollouts": '"resyncs": 1',
        },
    ),
    "docs/release.md": Scenario(),
    "docs/security.md": Scenario(),
}

ELSEWHERE: Mapping[str, tuple[str, str]] = {
    r"make demo$": (
        "tests/e2e/test_docs_commands.py::test_the_commands_of_a_page_do_what_it_says",
        "the quickstart runs it, with fewer rollouts",
    ),
    r"make test$": (".ci/run", "a test cannot run all tests, itself among them"),
    r"make lint$": (".ci/run", "it is what has to pass, as the tests are"),
    r"make docs$": (
        "tests/unit/test_site.py::test_the_site_is_built_without_a_warning",
        "the same command with a folder of the test's own",
    ),
    r"make reference$": (
        "tests/unit/test_reference.py::test_a_page_that_is_made_from_the_code_is_as_the_code_says",
        "it writes into the tree; the test makes the same pages and compares them",
    ),
    r"make wheel$|python3 -m venv try$|try/bin/": (
        "tests/e2e/test_packaging.py::test_the_wheel_works_where_it_is_installed",
        "needs a package index for what the wheel depends on",
    ),
    r"make test-gym\b": (
        "tests/e2e/test_gym.py::test_r5_every_connection_reaches_the_one_owner",
        "needs Python 3.13 and an environment of its own, and says so where it is skipped",
    ),
    r"rollout-router conformance\b": (
        "tests/e2e/test_conformance.py::test_s1_h1_a_killed_owner_and_deltas_change_nothing_for_pi",
        "installs harnesses from a package index",
    ),
    r"docker ": (
        "tests/e2e/test_containers.py::test_c3_an_owner_in_another_pid_namespace_is_judged_by_its_lock",
        "no container engine can be taken for granted; the namespaces are the kernel's",
    ),
    r"sudo (?:install|useradd|systemctl enable|cp packaging/rollout-router)\b": (
        "tests/e2e/test_packaging.py::test_the_unit_is_one_that_systemd_takes",
        "changes the machine; the same unit is verified, and its settings are read",
    ),
    r"sudo (?:cp packaging/nginx|nginx|systemctl reload)\b": (
        "tests/e2e/test_nginx.py::test_streams_leave_nginx_event_by_event",
        "changes the machine; the same file runs under an nginx of the test's own",
    ),
}
"""Commands that are run elsewhere: the test or the step of CI that runs them, and why."""

EVERYDAY = {
    "docs/guides/containers.md",
    "docs/guides/nginx.md",
    "docs/harnesses.md",
    "docs/release.md",
}
"""Pages that cost little; the others are for ``make test-long``."""


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    with ExitStack() as running:
        yield Place(folder, running)


def test_every_page_with_commands_has_a_scenario_and_no_other() -> None:
    assert set(SCENARIOS) == set(PAGES_WITH_BLOCKS)


def test_a_block_is_typed_command_by_command_into_one_shell(place: Place) -> None:
    text = "export GREETING='good\\\n day'  # isn't it\n\necho \\\n  $GREETING\nfalse\nsleep 60 &"
    text += "\ncat <<'END'\n# it's \\\n\nall\nEND\ntrue"
    block = Block(page="x", line=1, text=text, another_terminal=False)
    typed = [place.terminal.type(command) for command in block.commands()]
    assert [code for code, _ in typed] == [0, 0, 1, 0, 0, 0]
    assert typed[1][1].strip() == "good\\ day"
    assert typed[4][1].strip() == "# it's \\\n\nall"


@pytest.mark.parametrize(("command", "where"), [(name, row[0]) for name, row in ELSEWHERE.items()])
def test_what_is_run_elsewhere_is_run_there(command: str, where: str) -> None:
    file, _, name = where.partition("::")
    said = (ROOT / file).read_text()
    assert f"def {name}(" in said if name else re.search(rf"^{command}", said, re.MULTILINE)
    blocks = [block for found in PAGES_WITH_BLOCKS.values() for block in found]
    used = [one for block in blocks for one in block.commands()]
    assert any(re.match(command, one) for one in used), "no page has it any more"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in EVERYDAY else [pytest.mark.long])
        for page in sorted(SCENARIOS)
    ],
)
def test_the_commands_of_a_page_do_what_it_says(page: str, place: Place) -> None:
    scenario = SCENARIOS[page]
    if page == "docs/quickstart.md" and not (ROOT / ".git").exists():
        pytest.skip("begins with a clone, and this tree is none")
    scenario.before(place)
    for block in PAGES_WITH_BLOCKS[page]:
        for command in block.commands():
            _type(place, scenario, block, command)


def _type(place: Place, scenario: Scenario, block: Block, written: str) -> None:
    if any(re.match(pattern, written) for pattern in ELSEWHERE):
        return
    where = f"{block.page}:{block.line}: {written}"
    command = written
    for pattern, meaning in scenario.means.items():
        if re.search(pattern, command):
            found = meaning if isinstance(meaning, str) else meaning(place)
            command = re.sub(pattern, lambda _: found, command)  # noqa: B023 - called at once
    command = place.with_ports(command)
    if block.another_terminal:
        terminal = place.another()
        terminal.leave_running(command)
        terminal.wait_for(*_ready(command))
        return
    start = len(place.terminal.shown)
    code, said = place.terminal.type(command)
    assert code == _of(scenario.exits, written, 0), f"{where}\n{said}"
    assert _of(scenario.says, written, "") in said, f"{where}\n{said}"
    if re.search(r"&\s*(?:#.*)?$", command):
        place.terminal.wait_for(*_ready(command), start=start)
    _of(scenario.after, written, nothing)(place)


def _of(table: Mapping[str, _Found], command: str, otherwise: _Found) -> _Found:
    return next((value for start, value in table.items() if command.startswith(start)), otherwise)
