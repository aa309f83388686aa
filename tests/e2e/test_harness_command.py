# SPDX-License-Identifier: Apache-2.0
"""What ``rollout-router harness`` gives points the real harness at a shim, in each dialect.

Harnesses are where ``conformance install`` puts them; one that is not there is skipped.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from support.gateway import COMMAND

from rollout_router.harness import HARNESSES
from rollout_router.harness.install import installed_path
from rollout_router.processes import Gateway, Shim

CACHE = Path(__file__).parents[2] / ".cache" / "harness"
CALLS = 7  # six tool calls of the scripted model, and its last word
TITLES = {"opencode": 1}  # calls beside them
SPOKEN = [
    (name, dialect)
    for name, one in HARNESSES.items()
    if not one.in_process
    for dialect in one.dialects
]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "dialect"), SPOKEN)
def test_s4_a_pointed_harness_sends_deltas_and_does_its_task(
    folder: Path, name: str, dialect: str
) -> None:
    cache = Path(os.environ.get("ROLLOUT_ROUTER_CACHE", CACHE))
    if not installed_path(HARNESSES[name], cache).exists():
        pytest.skip(f"{name} is not installed: rollout-router conformance install")
    work = folder / "work"
    work.mkdir()
    with contextlib.ExitStack() as stack:
        gateway = Gateway(folder, "--capture-dir", str(folder / "records"))
        stack.callback(gateway.service.stop)
        shim = Shim(folder, gateway.url)
        stack.callback(shim.service.stop)
        asked = [name, "--rollout", "r1", "--gateway", gateway.url, "--shim-url", shim.url]
        asked += ["--dialect", dialect, "--home", str(folder / "home"), "--cache", str(cache)]
        written = subprocess.run(
            [COMMAND, "harness", *asked, "--write", "--json"], capture_output=True, check=True
        )
        pointed = json.loads(written.stdout)
        ran = subprocess.run(
            pointed["command"],
            env={"PATH": os.environ["PATH"], **pointed["environment"]},
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    told = HARNESSES[name].read(ran.stdout.splitlines(keepends=True))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (told.answer, told.problems) == ("done after 6 tool calls", ())
    assert told.model_calls in {CALLS, None}
    assert told.usage
    records = map(json.loads, (folder / "records" / "r1.jsonl").read_text().splitlines())
    answered = [one for one in records if one["request_text"] and one["status"] == 200]
    assert len(answered) == CALLS + TITLES.get(name, 0)
    sent = shim.statistics("r1")
    assert (sent["calls"] >= CALLS, sent["resyncs"]) == (True, 0)
    assert sent["bytes_sent"] < sent["bytes_full"] / 2
