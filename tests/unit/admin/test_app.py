# SPDX-License-Identifier: Apache-2.0
"""The HTTP API: what is read, what is changed, and how what cannot be is refused."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from support.folders import private_folder
from support.told import event, row

from rollout_router.admin import models
from rollout_router.admin.changes import read_changes
from rollout_router.admin.guarded import BODY_BYTES_MAX
from rollout_router.admin.workers import SeenWorker
from rollout_router.claims import read_gate
from rollout_router.cli.main import main

TOKEN = "t0ken"  # noqa: S105 - of a test


@pytest.fixture
def told(rig: Any) -> Any:
    """A worker that owns ``r`` and told of it."""
    return _told(rig)


@pytest.fixture(scope="module")
def shared(make_rig: Callable[[Path], Any]) -> Iterator[Any]:
    """The same for all tests that leave it as it is."""
    with private_folder() as folder:
        rig = make_rig(folder)
        yield _told(rig)
        rig.close()


def _told(rig: Any) -> Any:
    worker = rig.worker()
    claim = worker.take("r")
    worker.says = {
        "rollouts": [row("r", claim.claim_epoch)],
        "events": [event("claim_taken", "r", at="2026-01-01T00:00:00Z")],
    }
    known = rig.address.known
    known.see([SeenWorker(identity=worker.life.identity, verdict="alive")])
    answer = {"schema": 1, "id": worker.id, "cursor": 1, **worker.says}
    known.apply(worker.id, read_changes(worker.id, answer))
    known.look_at(read_gate(rig.store.state_dir), None)
    return rig


def code(response: Any) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "code", "param", "rollout_id", "claim_epoch"}
    return response.status_code, error["code"]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/api/overview", models.OverviewDocument),
        ("/api/rollouts", models.RolloutsDocument),
        ("/api/rollouts/r", models.RolloutDocument),
        ("/api/events", models.EventsDocument),
    ],
)
def test_documents_are_what_the_api_page_says(
    shared: Any, path: str, model: type[BaseModel]
) -> None:
    document = shared.asked("GET", path).json()
    assert model.model_validate(document, extra="forbid").model_dump(by_alias=True) == document


def test_the_api_page_names_every_path_and_needs_nobody_elses_server(shared: Any) -> None:
    paths = shared.asked("GET", "/api/openapi.json").json()["paths"]
    assert set(paths) == {
        *("/healthz", "/readyz", "/metrics", "/api/overview", "/api/rollouts"),
        *("/api/rollouts/{rollout_id}", "/api/events", "/api/stream", "/api/claims"),
        *("/api/claims/{rollout_id}", "/api/workers", "/api/admission", "/api/claims/reap"),
        *("/api/claims/{rollout_id}/force", "/api/workers/{worker_id}/drain"),
        *("/api/admission/close", "/api/admission/open"),
    }
    assert shared.asked("GET", "/docs").status_code == 404


def test_a_rollout_has_what_is_told_what_is_on_disk_and_what_happened(told: Any) -> None:
    found = told.asked("GET", "/api/rollouts/r").json()
    assert found["rollout"]["turns"] == 1
    assert found["claim"]["claim"]["rollout_id"] == "r"
    assert [one["event"] for one in found["timeline"]] == ["claim_taken"]

    told.store.force("r", expect_epoch=found["rollout"]["claim_epoch"], reason="x")
    assert told.asked("GET", "/api/rollouts/r").json()["claim"] is None
    assert code(told.asked("GET", "/api/rollouts/s")) == (404, "not_found")
    assert code(told.asked("GET", "/api/rollouts/%25")) == (400, "rollout_id_invalid")


def test_a_page_of_rollouts_is_asked_for_in_the_query(shared: Any) -> None:
    def ids(query: str) -> list[str]:
        found = shared.asked("GET", f"/api/rollouts?{query}").json()
        return [row["rollout_id"] for row in found["rollouts"]]

    worker = shared.tellers[0].id
    assert ids(f"q=R&worker={worker}&state=owned&outcome=completed&sort=turns&order=asc") == ["r"]
    assert ids("q=&worker=&state=&outcome=&sort=") == ["r"]
    assert ids("q=x") == ids("state=lost") == ids("offset=1") == ids("limit=0") == []


@pytest.mark.parametrize(
    "query",
    [
        "sort=colour",
        "order=up",
        "limit=501",
        "limit=-1",
        "offset=-1",
        "state=fine",
        "q=" + "x" * 201,
    ],
    ids=lambda query: query[:20],
)
def test_a_query_that_asks_for_too_much_or_nonsense_is_refused(shared: Any, query: str) -> None:
    for path in ("/api/rollouts", "/api/stream"):
        assert code(shared.asked("GET", f"{path}?{query}")) == (400, "bad_request")


def test_events_go_on_behind_a_cursor(shared: Any) -> None:
    first = shared.asked("GET", "/api/events").json()
    assert [one["event"] for one in first["events"]] == ["worker_started", "claim_taken"]
    assert shared.asked("GET", f"/api/events?after={first['cursor']}").json() == {
        "schema": 1,
        "cursor": first["cursor"],
        "events": [],
    }


def test_health_is_of_this_process_and_readiness_of_the_service(told: Any) -> None:
    assert told.asked("GET", "/healthz").json()["status"] == "ok"
    assert told.asked("GET", "/readyz").json() == {"schema": 1, "ready": True, "why": []}

    told.address.known.silent(told.tellers[0].id)
    unready = told.asked("GET", "/readyz")
    assert (unready.status_code, unready.json()["why"]) == (503, ["no worker answers"])


def test_metrics_are_those_of_the_callable_and_404_without_one(told: Any) -> None:
    found = told.asked("GET", "/metrics")
    assert (found.content, found.headers["content-type"]) == (
        b"# TYPE x counter\n",
        "text/plain; version=0.0.4; charset=utf-8",
    )
    object.__setattr__(told.address, "scrape", None)
    assert code(told.asked("GET", "/metrics")) == (404, "not_found")


@pytest.mark.parametrize("path", ["/", "/api/overview", "/static/none", "/api/claims/reap"])
def test_every_answer_forbids_what_a_page_of_ours_does_not_need(shared: Any, path: str) -> None:
    headers = shared.asked("GET", path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_the_page_is_served_and_nothing_beside_it(shared: Any) -> None:
    page = shared.asked("GET", "/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1" in page.text
    for path in ("/static/none.js", "/static/..%2fapp.py", "/static/", "/nothing"):
        assert shared.asked("GET", path).status_code == 404


COMMANDS = {
    "/api/claims": "claims list",
    "/api/claims?verdict=dead": "claims list --verdict dead",
    "/api/claims?older_than_s=3600": "claims list --older-than 1h",
    "/api/claims/r": "claims show r",
    "/api/workers": "workers list",
    "/api/admission": "admission status",
}


@pytest.mark.parametrize("path", COMMANDS)
def test_documents_of_commands_are_those_of_the_commands(shared: Any, path: str) -> None:
    state = ("--json", "--state-dir", str(shared.store.state_dir))
    printed = json.loads(CliRunner().invoke(main, [*COMMANDS[path].split(), *state]).stdout)
    sent = shared.asked("GET", path).json()
    for document in (printed, sent):
        document.get("evidence", {}).pop("age_s", None)
    assert sent == printed


CHANGES: dict[str, dict[str, Any]] = {
    "/api/claims/reap": {"yes": True},
    "/api/claims/r/force": {"reason": "x", "yes": True},
    "/api/workers/w/drain": {},
    "/api/admission/close": {"why": "x"},
    "/api/admission/open": {},
}


@pytest.mark.parametrize("path", CHANGES)
def test_without_the_token_nothing_changes(shared: Any, path: str) -> None:
    before = shared.asked("GET", "/api/claims").content, read_gate(shared.store.state_dir)
    for token in (None, "wrong"):
        refused = shared.asked("POST", path, token=token, json=CHANGES[path])
        assert code(refused) == (401, "admin_token_invalid")
        assert refused.headers["www-authenticate"] == "Bearer"
    elsewhere = {"origin": "http://evil.example"}
    refused = shared.asked("POST", path, token=TOKEN, json=CHANGES[path], headers=elsewhere)
    assert code(refused) == (403, "origin_refused")
    rebound = {"host": "evil.example"}
    refused = shared.asked("POST", path, token=TOKEN, json=CHANGES[path], headers=rebound)
    assert code(refused) == (403, "host_refused")
    after = shared.asked("GET", "/api/claims").content, read_gate(shared.store.state_dir)
    assert before == after


def test_a_name_that_is_not_ours_reads_nothing_either(shared: Any) -> None:
    refused = shared.asked("GET", "/api/overview", headers={"host": "evil.example"})
    assert code(refused) == (403, "host_refused")


def test_c3_force_is_a_dry_run_until_yes_and_refused_where_another_claim_stands(told: Any) -> None:
    epoch = told.store.read("r").claim_epoch
    asked = {"expect_epoch": epoch, "reason": "x"}

    assert told.change("/api/claims/r/force", asked).json()["done"] is False
    assert told.store.read("r") is not None
    for wrong in (epoch + 1, None):
        refused = told.change("/api/claims/r/force", {**asked, "expect_epoch": wrong, "yes": True})
        assert code(refused) == (409, "change_refused")
    done = told.change("/api/claims/r/force", {**asked, "yes": True}).json()
    assert (done["done"], done["claim_epoch"]) == (True, epoch)
    assert done["fenced_epoch"] > epoch
    assert told.store.read("r") is None
    assert told.address.watching._survey_wanted.is_set()


def test_c3_reap_frees_what_the_dead_left_once_it_is_told_to(told: Any) -> None:
    dead = told.worker()
    dead.take("left")
    dead.die()

    assert told.change("/api/claims/reap", {}).json()["freed"] == ["left"]
    assert told.store.read("left") is not None
    assert told.change("/api/claims/reap", {"yes": True}).json()["owners"] == [dead.id]
    assert (told.store.read("left"), told.store.read("r") is None) == (None, False)


def test_r6_the_gate_is_closed_and_opened(told: Any) -> None:
    closed = told.change("/api/admission/close", {"why": "lunch"}).json()
    assert [one["worker_id"] for one in closed["blockers"]] == [told.tellers[0].id]
    assert read_gate(told.store.state_dir).why == "lunch"
    assert told.change("/api/admission/open", {}).json()["open"] is True
    assert read_gate(told.store.state_dir).open


def test_a_worker_is_asked_to_drain(told: Any) -> None:
    worker = told.tellers[0]
    done = told.change(f"/api/workers/{worker.id}/drain", {}).json()
    assert done == {"schema": 1, "worker_id": worker.id, "gone": False}
    assert worker.asked[-1] == "/drain"

    assert code(told.change("/api/workers/nobody/drain", {})) == (404, "worker_unknown")
    worker.die()
    assert code(told.change(f"/api/workers/{worker.id}/drain", {})) == (502, "worker_silent")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/claims/reap", {"sure": True}),
        ("/api/claims/reap", {"owner_missing": "../x"}),
        ("/api/claims/reap", {"owner_missing": "a" * 20, "tombstones_older_than_s": 1}),
        ("/api/claims/r/force", {"yes": True}),
        ("/api/claims/r/force", {"reason": "x" * 1001}),
        ("/api/admission/close", {}),
        ("/api/admission/close", {"why": "x" * 301}),
        ("/api/workers/w/drain", {"wait_s": 3601}),
        ("/api/admission/open", []),
    ],
    ids=str,
)
def test_a_change_that_is_not_understood_is_refused(shared: Any, path: str, body: Any) -> None:
    assert code(shared.change(path, body)) == (400, "bad_request")


def test_a_body_has_a_bound(shared: Any) -> None:
    long = shared.change("/api/claims/reap", {"owner_missing": "x" * BODY_BYTES_MAX})
    assert code(long) == (413, "body_too_large")


def test_a_store_that_cannot_be_used_says_so(told: Any) -> None:
    (told.store.state_dir / "FORMAT").rename(told.store.state_dir / "gone")
    assert code(told.change("/api/claims/reap", {"yes": True})) == (409, "store_refused")


def test_other_methods_are_refused_in_the_same_form(shared: Any) -> None:
    assert code(shared.asked("POST", "/api/overview", token=TOKEN)) == (405, "not_supported")


def test_what_nobody_foresaw_is_said_without_its_details(told: Any) -> None:
    def fail() -> bytes:
        raise RuntimeError("secret")

    object.__setattr__(told.address, "scrape", fail)

    async def ask() -> Any:
        return await told.ask("GET", "/metrics")

    with pytest.raises(RuntimeError, match="secret"):  # which the server logs
        asyncio.run(ask())


def test_reads_have_a_bound(told: Any) -> None:
    told.address.reads._running = 8
    assert code(told.asked("GET", "/api/claims")) == (503, "overloaded")
