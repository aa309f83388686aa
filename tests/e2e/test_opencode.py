# SPDX-License-Identifier: Apache-2.0
"""The real OpenCode against a gateway, in all its dialects, and what it makes of its configuration.

Long: one run takes it ten seconds of processor time.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollout_router.harness.opencode import OpenCode
from rollout_router.harness.port import Dialect, Setup, Target
from rollout_router.processes import Gateway, Shim
from rollout_router.transport.sandbox.opencode import pointed_at, with_prompt

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # the first run installs

CACHE = Path(__file__).parents[2] / ".cache" / "harness"
ROLLOUT = "opencode-1"
HARD = (
    " {env:NAME} {env:HOME} {file:missing} {file:/etc/hostname} {fi{env:NOTHING}le:missing}\n"
    "\r\n\t'single' \"double\" `tick` \\ \\\\ \\n \\{env:NAME} \\\\{env:NAME}\\\n"
    "// {file:x} /* */,]\n"
    r"\u007b \u007benv:NAME\u007d \\u007benv:NAME}"
    "\nd\u00e9j\u00e0 vu \u6f22\u5b57 \U0001f98a\u200d \u2028\u2029\u0085\ufeff\x7f \x1b[31m"
    " {env:NAME and {file:\n\n"
)
AFTER = "\nYou are powered by the model named "  # OpenCode adds where and with what it runs
USERS = r"""// The user's own: {file:missing}
{
  "$schema": "https://opencode.ai/config.json", "autoupdate": false, "share": "disabled",
  "model": "gym/{env:MODEL}", /* "provider": { */
  "permission": "allow",
  "enabled_providers": ["gym"],
  "agent": {"title": {"prompt": "\u007benv:NAME} {env:NAME} {file:notes.txt}",}},
  "provider": {
    "gym": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"apiKey": "{env:NAME}", "baseURL": "{env:GATEWAY}/ng-rollout/opencode-1/v1",},
      "models": {"{env:MODEL}": {"limit": {"context": {env:CONTEXT}, "output": 8192}}},
    },
  },
}
"""
TASKS = """{
  "model": "other/model", "enabled_providers": ["other"],
  "agent": {"build": {"prompt": "the task's own"}},
  "provider": {"gym": {"options": {"baseURL": "http://127.0.0.1:9/v1"}}}
}"""


@pytest.fixture(scope="module")
def installed() -> Path:
    packages = OpenCode().packages.npm
    folder = CACHE / "-".join(["opencode", *packages.values()])
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is missing")
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        new.mkdir(parents=True)
        wanted = [f"{name}@{version}" for name, version in packages.items()]
        done = subprocess.run([npm, "install", "--prefix", str(new), *wanted], check=False)
        if done.returncode != 0:
            shutil.rmtree(new)
            pytest.skip("npm could not install OpenCode")
        new.rename(folder)
    return folder


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    running = Gateway(tmp_path, "--capture-dir", str(tmp_path / "records"))
    yield running
    running.service.stop()


def run(installed: Path, folder: Path, setup: Setup, target: Target) -> "list[str]":
    """What it printed."""
    for name in ("home", "task"):
        (folder / name).mkdir()
    for path, text in setup.files.items():
        file = folder / "home" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        OpenCode().command(installed, target, "Do what the model asks for."),
        env={"PATH": os.environ["PATH"], **setup.environment},
        cwd=folder / "task",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def documents(folder: Path) -> "list[Mapping[str, Any]]":
    """What the model was given."""
    lines = (folder / "records" / f"{ROLLOUT}.jsonl").read_text().splitlines()
    return [json.loads(json.loads(line)["request_text"]) for line in lines]


def system(document: Mapping[str, Any]) -> str:
    """The system prompt, in any dialect."""
    if "system" in document:
        return "".join(block["text"] for block in document["system"])
    message = document.get("messages", document.get("input"))[0]
    assert message["role"] in {"system", "developer"}
    return str(message["content"])


@pytest.mark.parametrize("dialect", OpenCode().dialects)
def test_a_run_through_the_shim_gives_what_the_model_said(
    dialect: Dialect, installed: Path, gateway: Gateway, tmp_path: Path
) -> None:
    opencode = OpenCode(HARD)
    shim = Shim(tmp_path, gateway.url)
    target = Target(
        base_url=f"{shim.url}/ng-rollout/{ROLLOUT}/v1", model="scripted", dialect=dialect
    )
    setup = opencode.set_up(PurePosixPath(tmp_path / "home"), target)
    setup = replace(setup, files={**setup.files, PurePosixPath("../task/opencode.json"): TASKS})
    told = opencode.read(run(installed, tmp_path, setup, target))
    shim.service.stop()
    assert (told.answer, told.model_calls) == ("done after 6 tool calls", 7)
    assert told.problems == ()
    assert told.usage["input"] > told.usage["output"] > 0
    given = documents(tmp_path)
    assert len(given) == 8  # one for the title
    for document in given:
        if document.get("tools"):
            assert system(document).startswith(HARD + AFTER)
    assert shim.statistics(ROLLOUT)["bytes_sent"] < shim.statistics(ROLLOUT)["bytes_full"] / 3


@pytest.mark.parametrize("rewritten", [False, True], ids=["as it is", "pointed at a shim"])
@pytest.mark.parametrize("form", ["file", "environment"])
def test_a_replacement_prompt_in_a_users_configuration_arrives_as_written(
    form: str, *, rewritten: bool, installed: Path, gateway: Gateway, tmp_path: Path
) -> None:
    target = Target(base_url="", model="from-env", dialect=Dialect.CHAT)
    native = OpenCode().set_up(PurePosixPath(tmp_path / "home"), target)
    text = with_prompt(USERS, HARD)
    if rewritten:
        text = pointed_at(text, f"{gateway.url}/ng-rollout/{ROLLOUT}/v1")
    environment = {
        **native.environment,
        "NAME": "expanded",
        "MODEL": target.model,
        "CONTEXT": "200000",
        "GATEWAY": "http://127.0.0.1:9" if rewritten else gateway.url,
    }
    notes = " notes\n"
    if form == "file":
        folder = PurePosixPath(".config/opencode")
        files = {folder / "opencode.jsonc": text, folder / "notes.txt": notes}
    else:
        environment["OPENCODE_CONFIG_CONTENT"] = text
        files = {PurePosixPath("../task/notes.txt"): notes}  # it looks from where it was started
    run(installed, tmp_path, Setup(files=files, environment=environment), target)
    for document in documents(tmp_path):
        assert document["model"] == target.model
        if "tools" in document:
            assert system(document).startswith(HARD + AFTER)
        else:
            assert system(document) == "{env:NAME} expanded notes"
