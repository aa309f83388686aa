# SPDX-License-Identifier: Apache-2.0
"""The live page in a real Chromium, in front of a real service whose workers are killed."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.folders import private_folder
from support.gateway import Gateway, Process, wait_until

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.browser
if CHROMIUM is None or DRIVER is None:
    pytest.skip("no Chromium: run make test-page", allow_module_level=True)
pytest.importorskip("selenium", reason="no Chromium: run make test-page")
from support.browser import ARTEFACTS, Browser, Keys, chromium  # noqa: E402 - selenium may be missing

BODY = b'{"model":"m","input":"hello"}'
ROWS = "#rollouts-table tbody tr"
WATCH = """
  const [rolloutId, owner] = arguments;
  window.shownAt = null;
  const look = () => {
    for (const row of document.querySelectorAll("#rollouts-table tbody tr")) {
      const [id, , worker] = row.children;
      if (id.textContent === rolloutId && !["", owner].includes(worker.textContent)) {
        window.shownAt ??= performance.timeOrigin + performance.now();
      }
    }
  };
  new MutationObserver(look).observe(document.getElementById("rollouts-table"),
    { childList: true, characterData: true, subtree: true });
"""
"""Notes when the row of a rollout first names another owner, in milliseconds since 1970."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One session for all."""
    with chromium(str(CHROMIUM), str(DRIVER)) as browser:
        yield browser


@pytest.fixture(scope="module")
def service() -> Iterator[Gateway]:
    """Two workers and an admin address, for all tests that leave a service behind."""
    with private_folder() as folder:
        gateway = Gateway(folder, "--admin-port", "0")
        wait_until(lambda: bool(address_of(gateway.state_dir)), "the admin address answers")
        yield gateway
        gateway.stop()
        sys.stderr.writelines(gateway.log)  # shown where a test failed


@pytest.fixture
def page(browser: Browser, service: Gateway) -> Browser:
    """The page of that service, with its token."""
    address = address_of(service.state_dir)
    browser.open(f"{address['url']}/#token={address['token']}")
    return browser


def address_of(state_dir: Path) -> dict[str, Any]:
    """What stands in the file that names the admin address; nothing where there is none."""
    path = state_dir / "admin"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return document


def called(service: Gateway, rollout_id: str) -> tuple[str, str]:
    """Worker and claim epoch of one call that was answered."""
    answer = service.post(rollout_id, BODY)
    assert answer.status_code == 200, answer.text
    return answer.headers["rollout-worker"], answer.headers["rollout-claim-epoch"]


def cells(page: Browser, rollout_id: str) -> list[str]:
    """The row of a rollout; empty where there is none."""
    found: list[str] = page.run(
        "for (const row of document.querySelectorAll('#rollouts-table tbody tr'))"
        "  if (row.firstChild.textContent === arguments[0])"
        "    return [...row.children].map((cell) => cell.textContent);"
        "return []",
        rollout_id,
    )
    return found


def wait_owner(page: Browser, rollout_id: str, worker_id: str, claim_epoch: str) -> None:
    """Wait until the row says so."""
    expected = [worker_id, claim_epoch]
    page.wait(lambda: cells(page, rollout_id)[2:4] == expected, f"{rollout_id} has {expected}")


def open_life(page: Browser, rollout_id: str) -> None:
    """Open the timeline of a rollout that has a row."""
    page.run(
        "[...document.querySelectorAll('#rollouts-table tbody a')]"
        ".find((link) => link.textContent === arguments[0]).focus()",
        rollout_id,
    )
    page.type(Keys.ENTER)
    page.wait(lambda: page.one("#force").is_displayed(), "there is a claim")


def confirm(page: Browser, reason: str | None = None) -> str:
    """Say yes to what is asked; what was asked."""
    page.wait(lambda: page.run("return document.getElementById('confirm').open"), "it asks")
    asked = page.text("#confirm")
    if reason is not None:
        page.one("#reason").send_keys(reason)
    page.click("#confirm-yes")
    return asked


def test_the_take_over_of_a_killed_owner_is_shown(
    page: Browser, service: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, epoch = called(service, "taken")
    wait_owner(page, "taken", owner, epoch)
    open_life(page, "taken")
    page.wait_text("#events li", f"Claimed by worker {owner}")
    page.run(WATCH, "taken", owner)

    service.kill_worker(owner)
    killed_at = time.time()
    heir, higher = called(service, "taken")
    answered_at = time.time()

    wait_owner(page, "taken", heir, higher)
    assert heir != owner
    assert int(higher) > int(epoch)
    page.wait_text("#events li", f"Transferred from worker {owner} to worker {heir}")
    events = page.texts("#events li")
    assert [line.split(" ")[0] for line in events[:2]] == ["Claimed", "Transferred"]
    assert f"claim epoch {higher}" in events[1]
    page.picture("live-take-over")
    shown_at = page.run("return window.shownAt") / 1000
    figures = {
        "from_kill_to_page_s": round(shown_at - killed_at, 3),
        "from_answer_to_page_s": round(shown_at - answered_at, 3),
    }
    (ARTEFACTS / "take-over.json").write_text(json.dumps(figures) + "\n")
    with capsys.disabled():
        sys.stdout.write(f"\na take-over on the page: {figures}\n")


def test_forcing_through_the_page_frees_a_rollout(page: Browser, service: Gateway) -> None:
    owner, epoch = called(service, "forced")
    wait_owner(page, "forced", owner, epoch)
    open_life(page, "forced")
    page.click("#force")
    assert f"taken from worker {owner}, which has it under claim epoch {epoch}" in confirm(
        page, "a test"
    )
    page.wait_text("#life .done", "Rollout forced is free")
    assert "forced" not in service.claims()
    page.type(Keys.ESCAPE)
    heir, higher = called(service, "forced")
    assert int(higher) > int(epoch)
    wait_owner(page, "forced", heir, higher)


def test_the_gate_closes_and_opens_through_the_page(page: Browser, service: Gateway) -> None:
    page.click("#gate-change")
    confirm(page, "a new model")
    page.wait_text("#gate", "a new model")
    refused = service.post("late", BODY)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "admission_closed"
    page.wait_text("#gate-change", "Open the gate")
    page.click("#gate-change")
    confirm(page)
    page.wait(lambda: page.text("#gate") == "open", "the gate is open")
    wait_until(lambda: service.post("late", BODY).status_code == 200, "calls are let in")


def test_a_worker_drained_through_the_page_is_replaced(page: Browser, service: Gateway) -> None:
    worker_id = page.wait_text("#workers tbody tr:first-child th", "")
    page.click("#workers tbody tr:first-child button")
    assert f"Worker {worker_id} finishes" in confirm(page)
    page.wait_text("#done", f"Worker {worker_id} drains")

    def replaced() -> bool:
        living = [
            row for row in service.json("workers", "list")["workers"] if row["verdict"] == "alive"
        ]
        return len(living) == 2 and worker_id not in {row["id"] for row in living}

    wait_until(replaced, f"{worker_id} is gone and another one serves")
    page.wait(
        lambda: (
            not any(
                head == worker_id and verdict == "alive"
                for head, verdict in zip(
                    page.texts("#workers tbody th"),
                    page.texts("#workers tbody td:nth-child(3)"),
                    strict=False,
                )
            )
        ),
        "the page shows it as alive no more",
    )


def test_reaping_through_the_page_frees_what_a_dead_service_held(
    browser: Browser, folder: Path
) -> None:
    gateway = Gateway(folder)
    called(gateway, "left")
    gateway.kill_all()
    gateway.wait_exit()
    admin = Process(["admin", "--state-dir", str(gateway.state_dir), "--admin-port", "0"])
    try:
        wait_until(
            lambda: address_of(gateway.state_dir).get("pid") == admin.process.pid,
            "the admin address answers",
        )
        address = address_of(gateway.state_dir)
        browser.open(f"{address['url']}/#token={address['token']}")
        browser.wait(lambda: cells(browser, "left")[1:2] == ["owner dead"], "its owner is dead")
        browser.click("#reap")
        assert "left" in confirm(browser)
        browser.wait_text("#done", "free now: 1")
        assert gateway.claims() == {}
        browser.wait(lambda: cells(browser, "left") == [], "it has no row any more")
    finally:
        admin.stop()
        sys.stderr.writelines(admin.log)
