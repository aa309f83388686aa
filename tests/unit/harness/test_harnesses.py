# SPDX-License-Identifier: Apache-2.0
"""What every adapter keeps to, in each dialect that it speaks."""

from pathlib import Path, PurePosixPath

import pytest

from rollout_router.harness import HARNESSES
from rollout_router.harness.port import Dialect, Harness, Setup, Target

HOME = PurePosixPath("/home of/one")
BASE_URL = "http://127.0.0.1:9/ng-rollout/r/v1"
KEY = 'sk-"\\${HOME}!x'
SPOKEN = [(one, dialect) for one in HARNESSES.values() for dialect in one.dialects]

spoken = pytest.mark.parametrize(
    ("harness", "dialect"), SPOKEN, ids=[f"{one.name}-{dialect}" for one, dialect in SPOKEN]
)


def aim(dialect: Dialect) -> Target:
    return Target(base_url=BASE_URL, model="scripted", dialect=dialect, api_key=KEY)


def set_up(harness: Harness, dialect: Dialect) -> Setup:
    return harness.set_up(HOME, aim(dialect))


def test_a_harness_is_found_by_its_name() -> None:
    assert all(name == harness.name for name, harness in HARNESSES.items())
    assert list(HARNESSES) == ["codex", "opencode", "pi", "hermes", "openai2", "openai3"]


@spoken
def test_files_lie_below_the_home_and_name_the_shim(harness: Harness, dialect: Dialect) -> None:
    setup = set_up(harness, dialect)
    for path in setup.files:
        assert not path.is_absolute()
        assert ".." not in path.parts
    told = [*setup.files.values(), *harness.command(Path("/cache"), aim(dialect), "go")]
    assert any(BASE_URL.removesuffix("/v1") in text for text in told)


@spoken
def test_the_key_is_in_the_environment_alone(harness: Harness, dialect: Dialect) -> None:
    """Configurations expand variables, and a key that holds one would be another.

    Not OpenCode's: what a variable holds becomes a part of its JSON, quotes and all.
    """
    if harness.name == "opencode":
        pytest.skip("OpenCode takes its key from its configuration")
    setup = set_up(harness, dialect)
    assert KEY in setup.environment.values()
    assert not [text for text in setup.files.values() if "sk-" in text]


@spoken
def test_what_lies_below_the_home_is_named_below_it(harness: Harness, dialect: Dialect) -> None:
    environment = set_up(harness, dialect).environment
    assert environment["HOME"] == str(HOME)
    assert environment["NO_PROXY"] == environment["no_proxy"] == "127.0.0.1,localhost"
    for value in environment.values():
        assert not value.startswith("/") or value.startswith(str(HOME))


@spoken
def test_a_run_starts_what_was_installed_and_ends_with_the_prompt(
    harness: Harness, dialect: Dialect
) -> None:
    command = harness.command(Path("/cache"), aim(dialect), "-go 'on'\n")
    assert command[-1].endswith("-go 'on'\n")
    assert any(argument.startswith("/cache/") for argument in command)
    probe, printed = harness.probe(Path("/cache"))
    assert probe[0].startswith("/cache/")
    versions = {**harness.packages.npm, **harness.packages.pypi}.values()
    assert any(version in printed for version in versions)


@spoken
def test_a_run_that_printed_nothing_is_a_problem(harness: Harness, dialect: Dialect) -> None:
    del dialect
    told = harness.read([])
    assert told.answer is None
    assert len(told.problems) == 1


@pytest.mark.parametrize("line", ["Error: boom\n", "3\n", "[]\n", "null\n", "{}\n", "\n"])
@pytest.mark.parametrize("name", ["codex", "hermes", "pi"])
def test_a_line_of_another_kind_is_a_problem(name: str, line: str) -> None:
    problems = HARNESSES[name].read([line]).problems
    assert any(repr(line.strip())[1:-1] in problem for problem in problems)


def test_every_version_is_exact() -> None:
    for harness in HARNESSES.values():
        for version in (*harness.packages.npm.values(), *harness.packages.pypi.values()):
            assert version.replace(".", "").isdigit()
