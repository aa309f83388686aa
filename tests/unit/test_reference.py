# SPDX-License-Identifier: Apache-2.0
"""docs/reference/ is what the code says, and no page names a command or flag that is not there."""

import re
from collections.abc import Iterator

import click
import pytest
import reference
from support.documents import PAGES, ROOT, blocks_of

from rollout_router.cli.main import main as program
from rollout_router.transport.sandbox.flags import FLAGS

CALL = re.compile(
    r"(?:^ *|[`(/]|(?:\||do) )rollout-router((?: (?:\\\n *)?(?:'[^']*'|\"[^\"]*\"|[^\s|;&)#`]+))+)",
    re.MULTILINE,
)
SPAN = re.compile(r"`([a-z]+ [^`]*)`")
FLAG = re.compile(r"--[a-z][a-z-]*")


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_a_page_that_is_made_from_the_code_is_as_the_code_says(name: str) -> None:
    written = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert written == reference.PAGES[name](), "stale: run `make reference`"


def test_no_other_page_is_among_them() -> None:
    assert {path.name for path in reference.FOLDER.iterdir()} == set(reference.PAGES)


def test_every_command_and_flag_in_the_documentation_exists() -> None:
    seen = 0
    for page in PAGES:
        for words in _calls(page.read_text(encoding="utf-8")):
            unknown = set(FLAG.findall(" ".join(words))) - _flags(program, words)
            where = f"{page.relative_to(ROOT)}: rollout-router {' '.join(words)}"
            assert not unknown, f"{where}: there is no {unknown}"
            seen += 1
    assert seen > sum(len(blocks_of(page)) for page in PAGES)


def _calls(text: str) -> Iterator[list[str]]:
    """The words behind ``rollout-router``, in blocks and in the text; of spans, without it too."""
    for match in CALL.finditer(text):
        yield match[1].replace("\\\n", " ").split()
    names = program.list_commands(click.Context(program))
    for span in SPAN.findall(text):
        if span.split()[0] in names:
            yield span.split()


def _flags(command: click.Command, words: list[str]) -> set[str]:
    """The flags of the command that *words* name below *command*; of all of them, in ``a|b``."""
    if words and isinstance(command, click.Group):
        context = click.Context(command)
        inner = [command.get_command(context, name) for name in words[0].split("|")]
        if found := [one for one in inner if one is not None]:
            return set().union(*(_flags(one, words[1:]) for one in found))
    options = (one for one in command.params if isinstance(one, click.Option))
    names = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    return names | {"--help", "--version"} | (_of_the_shim() if command.name == "shim" else set())


def _of_the_shim() -> set[str]:
    return {f"--{name}" for name in FLAGS}
