# SPDX-License-Identifier: Apache-2.0
"""The admin address of a running service: what it shows of kills, what it changes, how it ends."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.control import Control
from support.conversations import body_of, conversation
from support.gateway import (
    Gateway,
    Process,
    client_at,
    invoked,
    kill_and_wait,
    stopped,
    wait_dead,
    wait_until,
)

BODY = body_of(conversation(2))
UNSWEPT = ("--sweep-seconds", "3600")  # what a worker left stays until a call takes it


class Admin:
    """The admin address of a store."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.note: dict[str, Any] = json.loads((state_dir / "admin").read_text())
        self.url = str(self.note["url"])

    def get(self, path: str) -> Any:
        with client_at(self.url) as client:
            return client.get(path).json()

    def post(self, path: str, body: dict[str, Any], *, token: bool = True) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.note['token']}"} if token else {}
        with client_at(self.url) as client:
            return client.post(path, json=body, headers=headers)

    def row(self, rollout_id: str) -> dict[str, Any]:
        rows = self.get(f"/api/rollouts?q={rollout_id}")["rollouts"]
        found: dict[str, Any] = rows[0] if rows else {}
        return found

    def wait(self, rollout_id: str, **fields: Any) -> None:
        wait_until(
            lambda: fields.items() <= self.row(rollout_id).items(), f"{rollout_id} is {fields}"
        )

    @contextmanager
    def views(self, query: str = "") -> Iterator[Iterator[dict[str, Any]]]:
        """What a page is sent, as it comes."""
        with client_at(self.url) as client, client.stream("GET", f"/api/stream?{query}") as stream:
            yield (
                json.loads(line.removeprefix("data: "))
                for line in stream.iter_lines()
                if line.startswith("data: ")
            )


@pytest.fixture
def served(serve: Callable[..., Gateway]) -> Callable[..., tuple[Gateway, Admin]]:
    """Start a service with an admin address."""

    def start(*arguments: str, **options: Any) -> tuple[Gateway, Admin]:
        gateway = serve("--admin-port", "0", *arguments, **options)
        wait_until(lambda: "admin" in gateway.ready, "the admin address answers")
        admin = Admin(gateway.state_dir)
        assert gateway.ready["admin"] == admin.url
        wait_until(lambda: admin.get("/readyz")["ready"], "a worker answers")
        return gateway, admin

    return start


Served = Callable[..., tuple[Gateway, Admin]]


def test_c3_a_page_shows_a_take_over_from_the_kill_to_the_new_owner(served: Served) -> None:
    gateway, admin = served(*UNSWEPT)
    dead = gateway.post("r", BODY).headers["rollout-worker"]

    with admin.views("q=r") as views:
        rows = (
            (row, view["overview"])
            for view in views
            for row in view["rollouts"]["rollouts"]
            if row["rollout_id"] == "r"
        )
        next(row for row, _ in rows if row["worker_id"] == dead)
        gateway.kill_worker(dead)
        row, overview = next((row, view) for row, view in rows if row["state"] == "owner_dead")
        assert row["verdict"] == "dead"
        assert dead in [one["id"] for one in overview["workers"] if one["verdict"] == "dead"]

        taker = gateway.post("r", BODY).headers
        row, overview = next((row, view) for row, view in rows if row["state"] == "owned")
        assert (row["worker_id"], str(row["claim_epoch"])) == (
            taker["rollout-worker"],
            taker["rollout-claim-epoch"],
        )
        while overview["totals"]["takeovers"] == 0:
            _, overview = next(rows)

    events = [
        (one["event"], one["worker_id"], one["from_worker"])
        for one in admin.get("/api/rollouts/r")["timeline"]
    ]
    assert ("claim_taken_over", taker["rollout-worker"], dead) in events
    died = [one for one in admin.get("/api/events")["events"] if one["event"] == "worker_dead"]
    assert [one["worker_id"] for one in died] == [dead]


def test_c3_claims_are_changed_with_the_token_alone(served: Served) -> None:
    gateway, admin = served(*UNSWEPT)
    for rollout in ("forced", "left"):
        gateway.post(rollout, BODY)
    claims = gateway.claims()
    force = {"expect_epoch": claims["forced"]["claim_epoch"], "reason": "test"}
    path = "/api/claims/forced/force"

    assert admin.post(path, {**force, "yes": True}, token=False).status_code == 401
    assert admin.post(path, force).json()["done"] is False
    assert gateway.claims() == claims
    assert admin.post(path, {**force, "yes": True}).json()["done"] is True
    assert "forced" not in gateway.claims()
    after = int(gateway.post("forced", BODY).headers["rollout-claim-epoch"])
    assert after > force["expect_epoch"]

    gateway.kill_worker(claims["left"]["worker_id"])
    assert admin.post("/api/claims/reap", {"yes": True}, token=False).status_code == 401
    assert "left" in admin.post("/api/claims/reap", {}).json()["freed"]
    assert "left" in gateway.claims()
    assert "left" in admin.post("/api/claims/reap", {"yes": True}).json()["freed"]
    wait_until(lambda: admin.row("left") == {}, "what was freed is known no more")


@pytest.mark.long  # the gate alone is opened and closed in tests/unit
def test_r6_workers_drain_and_the_gate_closes_through_the_address(served: Served) -> None:
    gateway, admin = served()
    worker = gateway.post("r", BODY).headers["rollout-worker"]

    assert admin.post(f"/api/workers/{worker}/drain", {}, token=False).status_code == 401
    assert admin.post(f"/api/workers/{worker}/drain", {"wait_s": 30}).json()["gone"] is True
    gateway.wait_replaced()
    assert worker not in [one["id"] for one in gateway.json("workers", "list")["workers"]]

    closed = admin.post("/api/admission/close", {"why": "lunch", "wait_s": 30})
    assert closed.json()["blockers"] == []
    assert gateway.post("r", BODY).json()["error"]["code"] == "admission_closed"
    wait_until(lambda: not admin.get("/readyz")["ready"], "the address says so")
    assert admin.post("/api/admission/open", {}).json()["open"] is True
    wait_until(lambda: bool(admin.get("/readyz")["ready"]), "the gate is open")


LISTINGS = {
    "/api/claims": ("claims", "list"),
    "/api/workers": ("workers", "list"),
    "/api/admission": ("admission", "status"),
}


@pytest.mark.long  # each document is compared in tests/unit
def test_the_documents_are_those_of_the_commands_from_disk_and_through_it(served: Served) -> None:
    gateway, admin = served()
    gateway.post("r", BODY)
    for path, command in LISTINGS.items():
        document = gateway.json(*command)
        assert admin.get(path) == document
        asked = invoked(*command, "--json", "--admin-url", admin.url)
        assert json.loads(asked.stdout) == document


@pytest.mark.long
def test_an_admin_process_that_died_is_replaced_at_its_address(served: Served) -> None:
    gateway, admin = served()
    gateway.post("r", BODY)
    kill_and_wait(admin.note["pid"])
    wait_until(
        lambda: Admin(gateway.state_dir).note["pid"] != admin.note["pid"], "another one answers"
    )

    assert Admin(gateway.state_dir).note == {**admin.note, "pid": admin_pid(gateway)}
    admin.wait("r", state="owned")
    assert "admin process" in "".join(gateway.log)
    assert gateway.post("r", BODY).status_code == 200


def admin_pid(gateway: Gateway) -> int:
    return int(Admin(gateway.state_dir).note["pid"])


@pytest.mark.long
def test_a_drain_is_watched_to_its_end_and_no_stream_delays_it(
    served: Served, control: Control
) -> None:
    gateway, admin = served(control=control.path)
    control.hold("r")
    with gateway.client() as client, admin.views() as views:
        next(views)
        request = client.build_request("POST", "/sessions/r/v1/responses", content=BODY)
        answer: list[httpx.Response] = []
        ending = os.pidfd_open(admin.note["pid"])

        def send() -> None:
            answer.append(client.send(request))

        thread = threading.Thread(target=send)
        thread.start()
        call = control.next_call("r")
        gateway.process.send_signal(signal.SIGTERM)
        next(
            view for view in views if [one for one in view["overview"]["workers"] if one["leaving"]]
        )
        call.answer()
        thread.join()
        assert answer[0].status_code == 200
        assert gateway.wait_exit() == 0
        assert all(view["overview"] for view in views)  # to the stream's own end
        wait_dead(ending)
    assert not (gateway.state_dir / "admin").exists()


@pytest.mark.long
def test_the_admin_process_ends_with_its_supervisor_though_a_worker_is_stopped(
    served: Served,
) -> None:
    gateway, admin = served()
    ending = os.pidfd_open(admin.note["pid"])
    workers = [os.pidfd_open(worker["pid"]) for worker in gateway.ready["workers"]]
    with stopped(gateway.ready["workers"][0]["pid"]):
        wait_until(
            lambda: not all(one["answers"] for one in admin.get("/api/overview")["workers"]),
            "a worker is silent",
        )
        kill_and_wait(gateway.process.pid)
        wait_dead(ending)
    for worker in workers:
        wait_dead(worker)
    assert not (gateway.state_dir / "admin").exists()


@pytest.mark.long
def test_a_store_whose_workers_others_started_has_an_address_too(
    gateway: Gateway,
) -> None:
    gateway.post("r", BODY)
    command = Process(["admin", "--state-dir", str(gateway.state_dir)])
    line = command.wait_line("admin: ").strip()
    admin = Admin(gateway.state_dir)
    assert line.startswith(f"rollout-router: admin: {admin.url} ")
    assert admin.note["token"] not in line  # others may read a log
    second = Process(["admin", "--state-dir", str(gateway.state_dir)])
    second.wait_line(f"{admin.url} is the admin address of this store already")
    assert second.wait_exit() == 4
    with client_at(admin.url) as client:
        assert client.head("/healthz").status_code == client.head("/").status_code == 200
    admin.wait("r", state="owned")
    assert admin.get("/api/overview")["url"] is None

    with admin.views() as views:
        next(views)
        assert command.stop() == 0
    assert not (gateway.state_dir / "admin").exists()
    assert gateway.post("r", BODY).status_code == 200
