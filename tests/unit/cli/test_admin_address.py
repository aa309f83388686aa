# SPDX-License-Identifier: Apache-2.0
"""A command that asks the admin address prints and ends as one that reads the store."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner, Result
from support.folders import private_folder
from support.told import Teller

from rollout_router.admin.access import Access
from rollout_router.admin.address import AdminAddress
from rollout_router.admin.app import create_app
from rollout_router.admin.views import Service
from rollout_router.asgi import App
from rollout_router.claims import AdminNote, FileClaimStore, read_gate, write_admin_note
from rollout_router.cli.main import main

TOKEN = "t0ken"  # noqa: S105 - of a test


@contextmanager
def served(app: App) -> Iterator[str]:
    """The URL of *app*, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Store:
    """A store with a living worker, a dead one, and an unreadable claim; and its admin address."""

    def __init__(self, folder: Path) -> None:
        store = FileClaimStore.open(folder / "state", service="model")
        self.state_dir = store.state_dir
        self.teller = Teller(store, folder)
        self.epoch = self.teller.take("living").claim_epoch
        dead = Teller(store, folder)
        dead.take("left")
        dead.die()
        self.address = AdminAddress(
            store=store,
            allow_network_fs=False,
            service=Service(name="model", store_id=store.store_id, url=None),
            access=Access(host="127.0.0.1", token=TOKEN),
            scrape=None,
        )
        self.url = ""

    def local(self, *arguments: str) -> Result:
        return run(*arguments, "--state-dir", str(self.state_dir))

    def asked(self, *arguments: str, **environment: str) -> Result:
        return run(*arguments, "--admin-url", self.url, **environment)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with private_folder() as folder:
        store = Store(folder)
        with served(create_app(store.address)) as store.url:
            yield store
        store.teller.leave()


def told(result: Result) -> tuple[int, Any, str]:
    """How a command ended and what it said, without what time alone changes."""
    out: Any = result.stdout
    if out.startswith("{"):
        out = json.loads(out)
        out.get("evidence", {}).pop("age_s", None)
    elif "age s" in out:
        out = [line for line in out.splitlines() if "age s" not in line and "━" not in line]
        out = [" ".join(line.split()) for line in out if "─" not in line]
    return result.exit_code, out, result.stderr


READING = [
    "claims list",
    "claims list --json",
    "claims list --verdict dead --older-than 0 --json",
    "claims list --worker ffffffffffffffffffff",
    "claims show living",
    "claims show living --json",
    "claims force living --reason x --expect-epoch {epoch}",
    "claims force living --reason x --expect-epoch {epoch} --json",
    "claims force living --reason x --expect-epoch 1 --yes",
    "claims force living --reason x",
    "claims reap",
    "claims reap --json",
    "claims reap --owner-missing {worker} --yes",
    "claims reap --tombstones-older-than 1h --json",
    "workers list",
    "workers list --json",
    "workers drain nobody",
    "admission status",
    "admission status --json",
]


@pytest.mark.parametrize("command", READING)
def test_a_command_says_the_same_whomever_it_asks(store: Store, command: str) -> None:
    arguments = command.format(epoch=store.epoch, worker=store.teller.id).split()
    asked = store.asked(*arguments, ROLLOUT_ROUTER_ADMIN_TOKEN=TOKEN)
    assert told(asked) == told(store.local(*arguments))
    assert "Traceback" not in asked.stderr


def test_c5_what_is_unreadable_is_named_and_the_exit_code(store: Store) -> None:
    path = Path(store.address.store.path_of("broken"))
    path.write_bytes(b"x")
    try:
        for command in ("claims list", "claims list --json", "workers list", "claims show broken"):
            asked = store.asked(*command.split())
            assert asked.exit_code == 3
            assert told(asked) == told(store.local(*command.split()))
    finally:
        path.unlink()


def test_c5_no_claim_is_the_exit_code_and_says_where(store: Store) -> None:
    asked = store.asked("claims", "show", "nobody")
    assert (asked.exit_code, asked.stderr) == (
        1,
        f"rollout-router: rollout nobody has no claim in {store.url}\n",
    )


def test_r6_the_gate_is_closed_and_opened_through_the_address(store: Store, tmp_path: Path) -> None:
    note = AdminNote(url=store.url, token=TOKEN, pid=1)
    write_admin_note(store.state_dir, note)
    bare = tmp_path / "token"
    bare.write_text(f"{TOKEN}\n")
    closing = ("admission", "close", "--why", "lunch", "--admin-token-file", str(bare))
    closed = store.asked(*closing)
    assert (closed.exit_code, closed.stdout) == (1, "admission is closed: lunch\n")
    assert f"worker {store.teller.id}: its answer cannot be understood" in closed.stderr
    assert not read_gate(store.state_dir).open

    opening = ("admission", "open", "--admin-token-file", str(store.state_dir / "admin"))
    assert told(store.asked(*opening)) == (0, "admission is open\n", "")
    assert read_gate(store.state_dir).open


def test_a_worker_is_drained_through_the_address(store: Store) -> None:
    asked = store.asked("workers", "drain", store.teller.id, ROLLOUT_ROUTER_ADMIN_TOKEN=TOKEN)
    assert told(asked) == (0, f"worker {store.teller.id} drains\n", "")
    assert store.teller.asked[-1] == "/drain"


def test_without_the_token_a_change_is_refused(store: Store) -> None:
    refused = store.asked("claims", "reap", "--yes")
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "admin` of the state directory" in refused.stderr


def test_the_url_of_a_browser_and_the_environment_will_do(store: Store) -> None:
    shown = f"{store.url}/#token={TOKEN}"
    assert run("admission", "status", "--admin-url", shown).stdout == "open\n"
    assert run("admission", "status", ROLLOUT_ROUTER_ADMIN_URL=store.url).stdout == "open\n"


def test_an_address_that_is_not_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    failed = run("claims", "list", "--admin-url", url)
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert f"the admin address {url} cannot be reached" in failed.stderr
    assert "without --admin-url the command reads the store itself" in failed.stderr


def test_what_is_no_admin_address_is_said() -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with served(other) as url:
        failed = run("workers", "list", "--admin-url", url)
    assert failed.exit_code == 1
    assert f"{url} answered 404: b'<html>'; is it an admin address?" in failed.stderr


@pytest.mark.parametrize(
    "url", ["localhost:1", "ftp://x", "http://", "http://x:y", "http://u@x", "http://x?q"]
)
def test_a_url_that_is_none_is_wrong_usage(url: str) -> None:
    wrong = run("workers", "list", "--admin-url", url)
    assert wrong.exit_code == 2
    assert "is not http://HOST:PORT" in wrong.stderr


@pytest.mark.parametrize("content", [b"", b"\xff", b"two\nlines", b'{"token": 3}'])
def test_a_file_without_a_token_is_wrong_usage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    given = ("--admin-url", "http://x", "--admin-token-file", str(path))
    wrong = run("workers", "list", *given)
    assert wrong.exit_code == 2
    assert "--admin-token-file" in wrong.stderr
