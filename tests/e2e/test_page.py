# SPDX-License-Identifier: Apache-2.0
"""The live page in a real Chromium, in front of an admin address whose world the tests make."""

import shutil
from collections.abc import Iterator

import pytest
from support.page_server import TOKEN, PageServer, World

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.browser
if CHROMIUM is None or DRIVER is None:
    pytest.skip("no Chromium: run make test-page", allow_module_level=True)
pytest.importorskip("selenium", reason="no Chromium: run make test-page")
from support.browser import NAME, Browser, Keys, chromium  # noqa: E402 - selenium may be missing

MANY = 10_000
ROWS = "#rollouts-table tbody tr"
A, B = "0" * 20, "1" * 20
OVERFLOW = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
EVIL = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One session for all."""
    with chromium(str(CHROMIUM), str(DRIVER)) as browser:
        yield browser


@pytest.fixture(scope="module")
def address() -> Iterator[PageServer]:
    """One address for all; its world is made anew by each test that needs another."""
    with PageServer() as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: PageServer) -> Browser:
    """The page with three rollouts and two workers, and a token."""
    address.remake()
    browser.open(f"{address.url}/#token={TOKEN}")
    return browser


@pytest.fixture
def many(browser: Browser, address: PageServer) -> Browser:
    """The page with 10,000 rollouts of four workers."""
    address.remake(rollouts=MANY, workers=4)
    browser.open(address.url)
    return browser


def confirm(page: Browser, reason: str | None = None) -> None:
    """Say yes in the open confirmation."""
    if reason is not None:
        page.one("#reason").send_keys(reason)
    page.click("#confirm-yes")


def opened(page: Browser) -> str:
    """What the confirmation says, once it is open."""
    page.wait(lambda: page.run("return document.getElementById('confirm').open"), "it asks")
    return page.text("#confirm")


def test_the_page_shows_workers_totals_and_rollouts(page: Browser) -> None:
    assert page.text("#service") == "model"
    assert page.text("#gate") == "open"
    assert page.texts("#workers tbody th") == [A, B]
    assert page.texts(f"{ROWS} th") == ["r-00000", "r-00001", "r-00002"]
    assert page.texts("#workers tbody tr:last-child td")[:6] == [
        *("1001", "alive", "1", "1", "1.25 ms", "3"),
    ]
    assert "Rollouts3" in page.texts("#totals div")
    assert page.texts(f"{ROWS}:nth-child(2) td")[3:8] == ["1", "1", "1 kB", "100 B", "90 %"]
    assert page.complaints() == []


def test_times_are_local_and_their_titles_iso(page: Browser, address: PageServer) -> None:
    claimed_at = address.change(lambda world: world.rollouts["r-00000"]["claimed_at"])
    times = page.run("return [...document.querySelectorAll('time[datetime]')].map((t) => t.title)")
    assert claimed_at in times
    assert all(title.endswith("Z") for title in times)


def test_text_of_the_server_is_never_markup(page: Browser, address: PageServer) -> None:
    def plant(world: World) -> None:
        world.add(EVIL)["last_outcome"] = EVIL
        world.workers[0]["verdict"] = EVIL
        world.gate.update(open=False, by=EVIL, why=EVIL)
        world.timelines[EVIL][0].update(event=EVIL, reason=EVIL, request_id=EVIL)

    address.change(plant)
    page.wait_text(f"{ROWS} th", EVIL)
    page.run("[...document.querySelectorAll('tbody a')].find((a) => a.text[0] === '<').click()")
    page.wait_text("#events li", EVIL)
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.run("return document.title") == "rollout-router model"


def test_the_token_leaves_the_address_and_stays_in_the_tab(page: Browser) -> None:
    assert "token" not in page.driver.current_url
    page.driver.refresh()
    page.wait_text("#token-state", "A token is set")


def test_without_a_token_a_change_says_that_one_is_needed(
    browser: Browser, address: PageServer
) -> None:
    address.remake()
    browser.open(address.url)
    assert browser.one("#reap").get_attribute("aria-disabled") == "true"
    assert browser.one("#reap").get_attribute("aria-describedby") == "token-state"
    browser.click("#reap")
    assert "needs the admin token" in browser.text("#alert")
    assert browser.focused() == "token"
    browser.type(TOKEN, Keys.ENTER)
    assert browser.one("#reap").get_attribute("aria-disabled") == "false"


def test_a_take_over_is_shown_and_told(page: Browser, address: PageServer) -> None:
    address.change(lambda world: world.kill(A))
    page.wait_text(f"{ROWS}:first-child td", "owner dead")
    assert page.text("#workers tbody tr:last-child td:nth-child(3)") == "dead"
    address.change(lambda world: world.take_over("r-00000", B))
    page.wait_text(f"{ROWS}:first-child td:nth-child(3)", B)
    page.wait_text("#news", "1 rollout was taken over from a dead worker")
    label = page.run("return document.querySelector('#takeovers svg').getAttribute('aria-label')")
    assert label.startswith("Take-overs in the last 10 minutes: 1, ")
    page.run("document.querySelector('details').open = true")
    assert "1" in page.texts("#minutes tbody tr:first-child td:nth-child(2)")


def test_take_overs_are_told_in_sums_and_not_one_by_one(page: Browser, address: PageServer) -> None:
    page.run(
        "window.told = []; new MutationObserver(() => told.push(news.textContent))"
        ".observe(document.getElementById('news'), {childList: true, characterData: true,"
        " subtree: true}); const news = document.getElementById('news')"
    )
    for number in range(5):
        address.change(lambda world, n=number: world.take_over(f"r-0000{n % 3}", B))  # type: ignore[misc]
        page.wait_text("#totals div", f"Take-overs{number + 1}")
    page.wait(lambda: len(page.run("return told")) >= 2, "the rest is told")
    told = page.run("return told")
    assert [text.split(" ")[0] for text in told] == ["1", "4"]


def test_focus_and_selection_survive_updates_in_any_order(
    page: Browser, address: PageServer
) -> None:
    page.choose("#outcome", "")
    page.click("th[data-sort=turns] button")  # ascending: 0, 1, 2
    page.run("window.row = document.querySelectorAll('#rollouts-table tbody a')[0]; row.focus()")
    page.run("getSelection().selectAllChildren(row)")
    for turns, place in ((50, -1), (-1, 0)):
        address.change(lambda world, n=turns: world.rollouts["r-00000"].update(turns=n))  # type: ignore[misc] # n is an int
        page.wait(lambda at=place: page.texts(f"{ROWS} th")[at] == "r-00000", "it moved")  # type: ignore[misc] # as above
        assert page.focused() == "r-00000"
        assert page.run("return String(getSelection())") == "r-00000"
        assert page.run("return row.isConnected")
    address.change(lambda world: world.rollouts.pop("r-00000"))
    page.wait(lambda: page.texts(f"{ROWS} th") == ["r-00001", "r-00002"], "it is gone")
    assert page.focused() == "r-00001"


def test_ten_thousand_rollouts_are_paged_and_at_most_100_are_in_the_page(many: Browser) -> None:
    assert len(many.texts(ROWS)) == 100
    assert many.text("#window") == "1 to 100 of 10,000"
    many.click("#last")
    many.wait_text("#window", "9,901 to 10,000")
    assert many.texts(f"{ROWS} th")[-1] == "r-09999"
    assert len(many.texts(ROWS)) == 100
    assert many.one("#next").get_attribute("aria-disabled") == "true"
    assert many.focused() == "last"
    many.driver.back()
    many.wait_text("#window", "1 to 100 of 10,000")


def test_filters_and_sorting_stand_in_the_address(many: Browser, address: PageServer) -> None:
    many.one("#q").send_keys("r-000")
    many.wait_text("#window", "1 to 100 of 100 that match, 10,000 in all")
    many.choose("#worker", "1" * 20)
    many.choose("#outcome", "failed")
    many.click("th[data-sort=turns] button")
    many.click("th[data-sort=turns] button")
    expected = address.change(
        lambda world: world.window(
            {
                "q": "r-000",
                "worker": "1" * 20,
                "outcome": "failed",
                "sort": "turns",
                "order": "desc",
            }
        )
    )["rollouts"]
    names = [row["rollout_id"] for row in expected]
    many.wait(lambda: many.texts(f"{ROWS} th") == names, "they are sorted")
    assert many.one("th[data-sort=turns]").get_attribute("aria-sort") == "descending"
    shared = many.driver.current_url
    many.open(shared)
    many.wait(lambda: many.texts(f"{ROWS} th") == names, "the address shows the same")
    assert many.one("#q").get_attribute("value") == "r-000"
    assert many.one("#worker").get_attribute("value") == "1" * 20
    many.click("button[type=reset]")
    many.wait_text("#window", "1 to 100 of 10,000")


def test_a_page_beyond_the_last_is_the_last(many: Browser, address: PageServer) -> None:
    many.open(f"{address.url}/#page=999")
    many.wait_text("#window", "9,901 to 10,000")


def test_a_life_is_a_timeline_that_follows(page: Browser, address: PageServer) -> None:
    page.run("document.querySelector('#rollouts-table tbody a').focus()")
    page.type(Keys.ENTER)
    page.wait_text("#events li", f"Claimed by worker {A}")
    assert page.driver.current_url.endswith("#rollout=r-00000")
    address.change(lambda world: world.kill(A))
    address.change(lambda world: world.take_over("r-00000", B))
    line = page.wait_text("#events li", f"Transferred from worker {A} to worker {B}")
    assert "claim epoch 4294968297" in line
    assert "request req-4294968297" in line
    assert page.barriers("timeline") == []
    page.type(Keys.ESCAPE)
    page.wait(lambda: "rollout=" not in page.driver.current_url, "it is closed")
    assert page.focused() == "r-00000"
    page.driver.back()
    page.wait_text("#events li", "Claimed")
    page.driver.refresh()
    page.wait_text("#events li", "Transferred")


def test_reaping_shows_the_dry_run_first_and_starts_on_cancel(
    page: Browser, address: PageServer
) -> None:
    page.click("#reap")
    page.wait_text("#done", "nothing to reap")
    address.change(lambda world: world.kill(A))
    page.wait_text(f"{ROWS} td", "owner dead")
    page.click("#reap")
    assert "under a higher claim epoch: 2" in opened(page)
    assert page.texts("#confirm-list li")[1:] == ["r-00000", "r-00002"]
    assert page.focused() == "confirm-no"
    assert page.barriers("confirmation") == []
    page.type(Keys.ENTER)
    page.wait(lambda: page.focused() == "reap", "the focus is back")
    page.click("#reap")
    opened(page)
    confirm(page)
    page.wait_text("#done", "free now: 2")
    posts = address.change(lambda world: [body["yes"] for _, body in world.posts])
    assert posts == [False, False, False, True]
    page.wait(lambda: page.texts(f"{ROWS} th") == ["r-00001"], "they are gone")


def test_forcing_expects_the_claim_epoch_that_is_shown_and_wants_a_reason(
    page: Browser, address: PageServer
) -> None:
    page.click(f"{ROWS} a")
    page.wait(lambda: page.one("#force").is_displayed(), "there is a claim")
    page.click("#force")
    assert f"taken from worker {A}" in opened(page)
    confirm(page)  # without a reason
    assert page.focused() == "reason"
    page.type("stuck", Keys.ENTER)  # one more look
    assert page.focused() == "confirm-yes"
    page.type(Keys.ENTER)
    page.wait_text("#life .done", "Rollout r-00000 is free")
    page.wait_text("#life-facts", "nobody owns it now")
    assert address.change(lambda world: world.posts[-1]) == (
        "claims/r-00000/force",
        {"expect_epoch": 4294967297, "reason": "stuck", "yes": True},
    )


def test_what_the_api_refuses_is_said_where_it_is_seen(page: Browser, address: PageServer) -> None:
    page.click(f"{ROWS} a")
    page.wait(lambda: page.one("#force").is_displayed(), "there is a claim")
    page.click("#force")
    opened(page)
    address.change(lambda world: world.take_over("r-00000", B))
    confirm(page, "stuck")
    page.wait_text("#life .alert", "rollout r-00000 has claim epoch 4294968297")
    page.type(Keys.ESCAPE)
    page.run("sessionStorage.setItem('rollout-router-admin-token', 'another')")
    page.click("#reap")
    page.wait_text("#alert", "the admin token does not match")
    page.click("#alert button")
    assert page.text("#alert") == ""


def test_a_worker_is_drained_behind_a_confirmation(page: Browser, address: PageServer) -> None:
    page.click("#workers tbody tr:last-child button")
    assert f"{B} finishes its calls in flight (1), gives its rollouts back (1)" in opened(page)
    page.type(Keys.ESCAPE)
    assert address.change(lambda world: world.posts) == []
    page.click("#workers tbody tr:last-child button")
    opened(page)
    confirm(page)
    page.wait_text("#workers tbody tr:last-child td", "alive, leaving")
    assert address.change(lambda world: world.posts) == [(f"workers/{B}/drain", {})]


def test_the_gate_is_closed_with_a_reason_and_opened(page: Browser, address: PageServer) -> None:
    page.click("#gate-change")
    opened(page)
    confirm(page, "a new model")
    page.wait_text("#gate", "closed by operator: a new model")
    page.wait_text("#gate-change", "Open the gate")
    page.click("#gate-change")
    assert "a new model" in opened(page)
    confirm(page)
    page.wait_text("#gate", "open")
    assert [path for path, _ in address.change(lambda world: world.posts)] == [
        *("admission/close", "admission/open"),
    ]


def test_a_stream_that_ends_is_opened_again_and_old_data_says_so(
    page: Browser, address: PageServer
) -> None:
    address.change(lambda world: setattr(world, "refusing", True))
    page.wait_text("#connection", "reconnecting")
    assert page.text("#old").startswith("What is shown is old: nothing came since ")
    assert page.texts(f"{ROWS} th") == ["r-00000", "r-00001", "r-00002"]
    address.change(lambda world: setattr(world, "refusing", False))
    page.wait_text("#connection", "live")
    assert not page.one("#old").is_displayed()


def test_a_rollout_that_nobody_knows_is_said_to_be_that(
    browser: Browser, address: PageServer
) -> None:
    address.remake()
    browser.open(f"{address.url}/#rollout=r-99999")
    browser.wait_text("#life-error", "nothing is known of rollout r-99999")
    assert browser.text("#life-facts") == "Ownernobody owns it now"
    assert not browser.one("#force").is_displayed()


def test_a_stream_on_which_nothing_comes_is_opened_anew(browser: Browser) -> None:
    with PageServer(silence_s=2) as address:
        browser.open(address.url)
        address.change(lambda world: setattr(world, "silent", True))
        browser.wait_text("#connection", "reconnecting")
        address.change(lambda world: setattr(world, "silent", False))
        browser.wait_text("#connection", "live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_bars_anyone_in_either_scheme(page: Browser, scheme: str) -> None:
    page.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    assert page.barriers(scheme) == []
    assert page.run("return document.getAnimations().length") == 0
    other = {"light": "dark", "dark": "light"}[scheme]
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.choose("#theme", other)
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before


def test_at_320_pixels_only_tables_scroll_sideways(page: Browser) -> None:
    page.emulate(width=320, height=800)
    assert page.barriers("narrow") == []
    assert page.run(OVERFLOW) == 0
    page.run("document.querySelector('#rollouts-table tbody a').click()")
    page.wait_text("#events li", "Claimed")
    assert page.run(OVERFLOW) == 0
    page.picture("narrow-timeline")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Browser) -> None:
    reachable = page.run(
        "const all = document.querySelectorAll('a, button, input, select, summary, .scroll');"
        f"return [...all].filter((one) => one.checkVisibility()).map({NAME})"
    )
    page.run("document.activeElement.blur()")
    reached, outlines = [], []
    for _ in reachable:
        page.type(Keys.TAB)
        reached.append(page.focused())
        outlines.append(page.run("return getComputedStyle(document.activeElement).outlineStyle"))
    assert reached == reachable
    assert set(outlines) == {"solid"}


def test_the_first_key_skips_to_the_rollouts(page: Browser) -> None:
    page.type(Keys.TAB)
    assert page.focused() == "skip"
    page.type(Keys.ENTER)
    assert page.focused() == "rollouts"
    assert "#" not in page.driver.current_url
