# SPDX-License-Identifier: Apache-2.0
"""The model of a conformance run, as the process that it is."""

import http.client
import json
import subprocess
from contextlib import closing as ended
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rollout_router.harness.model_server import model_command
from rollout_router.harness.scenario import SCENARIOS, marker, prompt
from rollout_router.processes import Service

SCHEMA = {"properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}


def post(connection: http.client.HTTPConnection, text: str) -> http.client.HTTPResponse:
    message = {"role": "user", "content": text}
    body = {"model": "m", "stream": True, "messages": [message], "tools": [TOOL]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    return connection.getresponse()


def test_faults_look_like_what_they_are_and_it_ends_with_its_parent(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as parent:
        arguments = model_command("faults", log, context_llm_tokens=50_000)
        arguments[arguments.index("--parent-pid") + 1] = str(parent.pid)
        model = Service("the model", arguments, log=tmp_path / "log", apart=False)
        try:
            url = json.loads(model.wait_line('{"url"'))["url"]
            ask(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30))
            parent.kill()
            assert model.process.wait(30) == 0
        finally:
            parent.kill()
            model.stop()
    faults = [json.loads(line)["fault"] for line in log.read_text().splitlines()]
    assert faults == [None, "unavailable", "busy", "cut", "closed", *[None] * 4]


def ask(connection: http.client.HTTPConnection) -> None:
    with ended(connection):
        assert b"conf_main_0_1" in post(connection, prompt(SCENARIOS["faults"])).read()
        for done, status in ((1, 503), (5, 429)):
            refused = post(connection, marker(str(done)))
            assert (refused.status, refused.getheader("Retry-After")) == (status, "1")
            refused.read()
        with pytest.raises(http.client.IncompleteRead):
            post(connection, marker("2")).read()
        connection.close()
        with pytest.raises(http.client.RemoteDisconnected):
            post(connection, marker("4"))
        for done in (1, 2, 4, 5):
            assert f"conf_main_{done}_2".encode() in post(connection, marker(str(done))).read()
        connection.request("GET", "/v1/models")
        assert connection.getresponse().status == 200
