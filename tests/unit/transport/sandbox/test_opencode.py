# SPDX-License-Identifier: Apache-2.0
"""What is put into OpenCode's configuration arrives as written, and the rest as without it.

``expanded`` is OpenCode's own way from text to document, read from its program 1.18.33 (function
``ConfigVariable.substitute``, then a reader of JSON with comments and trailing commas):

- First ``{env:([^}]+)}`` everywhere, in comments and names too; an unknown name is nothing. The
  value goes in raw: it can hold quotes, line breaks, and expressions for the next step.
- Then ``{file:[^}]+}`` in the result, but not where the line up to there begins with ``//``. The
  content is trimmed and goes in escaped as in a JSON string. A missing file is an error.
- ``OPENCODE_CONFIG_CONTENT`` goes the same way.
"""

import io
import json
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from rollout_router.transport.sandbox.opencode import main, pointed_at, serialized, with_prompt

URL = "http://127.0.0.1:4242/ng-rollout/r-1/v1"
ENV = {"NAME": "expanded", "QUOTED": 'a\\"b', "WORD": "model"}
FILES = {"notes.txt": '  say "hi"\n'}
HARD = {
    "an environment expression": "{env:NAME}",
    "a missing file": "{file:missing}",
    "nested expressions": "{fi{env:NOTHING}le:missing} {env:{env:NAME}}",
    "an expression without an end": "{env:NAME and {file:",
    "the end of an expression": "NAME} }",
    "quotes": """'single' "double" `tick` \"\"\"three\"\"\"""",
    "backslashes": "\\ \\\\ \\n \\{env:NAME} \\\\{env:NAME}\\",
    "an escape as text": r"\u007b \u007benv:NAME\u007d \\u007benv:NAME}",
    "newlines": "\n one\r\n two\rthree\n\n",
    "controls": "\x00\x01\x1b[31m\x7f\t",
    "Unicode": "déjà vu 漢字 🦊👩‍👩‍👧 \u2028\u2029\u0085\ufeff\uffff",
    "comments": "// {file:missing}\n/* */ # ,]",
    "a configuration": '", "agent": {"build": {"prompt": "x"}}, "a": "',
    "a blank": " ",
}
JSONC = r"""// The user's {env:NAME} own: {file:missing}
{
  "$schema": "https://opencode.ai/config.json", // "provider": {"gym": {"options": {}}}
  /* "agent": {"build": */
  "model": "gym/{env:WORD}",
  "agent": {
    "title": {"prompt": "\u007benv:NAME} {env:NAME} {file:notes.txt}",},
    "build": {"description": "{file:notes.txt}", "prompt": "{env:QUOTED} and {file:notes.txt}",}
  },
  "provider": {
    "gym": {
      "options": {"baseURL": "{env:NAME}", "apiKey": "{env:NAME}\/", "timeout": {env:NONE}10,},
      "models": {"{env:WORD}": {"name": "}{"}}
    },
  },
}
"""
TOKEN = re.compile(
    r'(?P<comment>//[^\r\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL
)


def expanded(text: str, env: Mapping[str, str] = ENV, files: Mapping[str, str] = FILES) -> Any:
    text = re.sub(r"\{env:([^}]+)\}", lambda match: env.get(match[1], ""), text)

    def content(match: re.Match[str]) -> str:
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if before.lstrip().startswith("//"):
            return match[0]
        return json.dumps(files[match[0][len("{file:") : -1]].strip())[1:-1]

    text = re.sub(r"\{file:[^}]+\}", content, text)
    for keep in (r"\g<string>", r"\g<string>"):  # comments, then the commas before what was one
        text = TOKEN.sub(keep, text)
    return json.loads(text)


def without_prompt(document: dict[str, Any]) -> dict[str, Any]:
    build = document.get("agent", {}).get("build", {})
    build.pop("prompt", None)
    if not build:
        document.get("agent", {}).pop("build", None)
    if not document.get("agent"):
        document.pop("agent", None)
    return document


def prompts() -> st.SearchStrategy[str]:
    pieces = st.sampled_from(["{env:", "{file:", "}", "{", "\\", '"', "u007b", "NAME", "//", "\n"])
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    return st.lists(pieces | anything, min_size=1, max_size=12).map("".join).filter(bool)


def configs() -> st.SearchStrategy[dict[str, Any]]:
    text = st.sampled_from(["{env:NAME}", "{file:notes.txt}", "x {env:", "}"]) | prompts()

    def holding(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({}, optional={"a": text, **members, "z": text})

    return holding(agent=holding(title=text, build=holding(prompt=text)))


@pytest.mark.parametrize("prompt", HARD.values(), ids=HARD)
@pytest.mark.parametrize(
    "text", ["{}", JSONC, '{"agent": {"build": {}}}'], ids=["", "jsonc", "build"]
)
def test_a_replacement_prompt_arrives_as_written(text: str, prompt: str) -> None:
    put = with_prompt(text, prompt)
    document = expanded(put)
    assert document["agent"]["build"]["prompt"] == prompt
    assert without_prompt(document) == without_prompt(expanded(text))
    pointed = pointed_at(put, URL, "gym")
    assert expanded(pointed)["agent"]["build"]["prompt"] == prompt
    assert expanded(pointed)["provider"]["gym"]["options"]["baseURL"] == URL


@given(prompt=prompts())
def test_any_replacement_prompt_arrives_and_nothing_else_changes(prompt: str) -> None:
    put = with_prompt(JSONC, prompt)
    start = JSONC.index('"{env:QUOTED}')
    end = JSONC.index(",}", start)
    assert (put[:start], put[len(put) - len(JSONC[end:]) :]) == (JSONC[:start], JSONC[end:])
    assert expanded(put)["agent"]["build"]["prompt"] == prompt
    assert expanded(pointed_at(put, URL, "gym"))["agent"]["build"]["prompt"] == prompt


@given(config=configs(), prompt=prompts())
def test_a_given_configuration_keeps_its_expansion_beside_any_prompt(
    config: dict[str, Any], prompt: str
) -> None:
    text = serialized(config)
    assert text == json.dumps(config, ensure_ascii=False, indent=2)
    try:
        natively = expanded(text)
    except (ValueError, KeyError):  # OpenCode refuses it as it is
        reject()
    document = expanded(serialized(config, prompt))
    assert document["agent"]["build"]["prompt"] == prompt
    assert without_prompt(document) == without_prompt(natively)


def test_without_a_replacement_what_the_user_configured_is_expanded() -> None:
    config = {"agent": {"build": {"prompt": "{env:NAME} {file:notes.txt} \u00e4"}}}
    prompt = expanded(serialized(config))["agent"]["build"]["prompt"]
    assert prompt == 'expanded say "hi" \u00e4'


def test_pointing_changes_the_url_alone_to_the_byte() -> None:
    pointed = pointed_at(JSONC, URL, "gym")
    old = '"baseURL": "{env:NAME}"'
    assert JSONC.count(old) == 1
    assert pointed == JSONC.replace(old, f'"baseURL": "{URL}"')
    title = expanded(pointed)["agent"]["title"]["prompt"]
    assert title == '{env:NAME} expanded say "hi"'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", f'{{"provider": {{"gym": {{"options": {{"baseURL": "{URL}"}}}}}}}}'),
        ('{"provider": {}}', f'{{"provider": {{"gym": {{"options": {{"baseURL": "{URL}"}}}}}}}}'),
        (
            '{"provider": {"gym": {"options": {"a": 1}}}}',
            f'{{"provider": {{"gym": {{"options": {{"baseURL": "{URL}","a": 1}}}}}}}}',
        ),
        (
            r'{"\u0070rovider": {"gym": {"options": {"baseURL": {env:X}}}}}',
            rf'{{"\u0070rovider": {{"gym": {{"options": {{"baseURL": "{URL}"}}}}}}}}',
        ),
        (
            '{"provider": 1, "provider": {"gym": {"options": {"baseURL": "{file:a"b}"}}}}',
            f'{{"provider": 1, "provider": {{"gym": {{"options": {{"baseURL": "{URL}"}}}}}}}}',
        ),
        (
            '// {file:a\n{"provider": {"gym": {"options": {}}}} // }',
            f'// {{file:a\n{{"provider": {{"gym": {{"options": {{"baseURL": "{URL}"}}}}}}}} // }}',
        ),
        (
            '\ufeff{"provider": {}}\r\n',
            f'\ufeff{{"provider": {{"gym": {{"options": {{"baseURL": "{URL}"}}}}}}}}\r\n',
        ),
    ],
    ids=["nothing", "no provider", "no URL", "an escaped name", "the last", "a comment", "BOM"],
)
def test_pointing_finds_its_place_or_makes_it(before: str, after: str) -> None:
    assert pointed_at(before, URL, "gym") == after
    assert pointed_at(after, URL, "gym") == after


def test_the_provider_is_by_default_that_of_the_model() -> None:
    assert '"gym": {"options"' in pointed_at('{"model": "gym/a/b"}', URL)


@pytest.mark.parametrize(
    "text", ["{}", '{"model": "{env:MODEL}"}', '{"model": "m"}', '{"model": 1}']
)
def test_a_model_that_names_no_provider_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="say which"):
        pointed_at(text, URL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1"),
        ("[]", "line 1"),
        ('{\n"a": "b', "line 2"),
        ("{}}", "line 1"),
        ("{} {}", "line 1"),
        ('{"a":\n[}]', "line 2"),
        ("{]", "line 1"),
        ('{"agent": {"build": "x"}}', "agent.build is not an object"),
        ('{"agents": {"build": {"system": "x"}}}', "move it to agent.build"),
    ],
)
def test_what_is_no_such_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_prompt(text, "x")


def test_a_prompt_in_the_old_place_would_win_and_is_replaced_too() -> None:
    document = expanded(with_prompt('{"mode": {"build": {"prompt": "old"}}}', "{env:NAME}"))
    assert document["mode"] == document["agent"] == {"build": {"prompt": "{env:NAME}"}}


@pytest.mark.parametrize("prompt", ["", "\ud800"])
def test_a_prompt_that_cannot_arrive_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"empty|Unicode"):
        serialized({}, prompt)


def test_the_command_rewrites_a_file_in_place(tmp_path: Path) -> None:
    config, prompt, link = (tmp_path / name for name in ("opencode.jsonc", "prompt", "link"))
    config.write_text(JSONC)
    config.chmod(0o640)
    link.symlink_to(config)
    prompt.write_bytes(HARD["newlines"].encode())
    flags = ["--base-url", URL, "--provider", "gym", "--system-prompt", str(prompt)]
    assert main(["--in", str(link), "--out", str(link), *flags]) == 0
    text = config.read_bytes().decode()
    assert text == pointed_at(with_prompt(JSONC, HARD["newlines"]), URL, "gym")
    assert link.is_symlink()
    assert stat.S_IMODE(config.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "opencode.jsonc", "prompt"]


def test_what_the_command_cannot_do_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "opencode.json"
    config.write_text("{")
    assert main(["--in", str(config), "--out", str(config), "--base-url", URL]) == 1
    assert main(["--in", str(tmp_path / "none"), "--out", str(config)]) == 1
    assert "line 1" in capsys.readouterr().err
    assert (config.read_text(), len(list(tmp_path.iterdir()))) == ("{", 1)


def test_the_sandbox_side_has_the_command_as_a_verb(tmp_path: Path) -> None:
    config = tmp_path / "opencode.json"
    config.write_text('{"model": "gym/m"}')
    module = ["-m", "rollout_router.transport.sandbox", "opencode-config"]
    flags = ["--in", str(config), "--base-url", URL]
    done = subprocess.run([sys.executable, *module, *flags], check=True, capture_output=True)
    assert done.stdout.decode() == pointed_at(config.read_text(), URL)


def test_the_command_passes_text_through(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = io.BytesIO(JSONC.encode()), io.BytesIO()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(source))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(target))
    assert main([]) == 0
    assert target.getvalue() == JSONC.encode()
