# SPDX-License-Identifier: Apache-2.0
"""A real Chromium that looks at the live page, and where it leaves pictures.

Selenium is of the extra ``browser``: this module is imported where it is there.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["ARTEFACTS", "NAME", "Browser", "Keys", "chromium"]

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / ".artefacts" / "page"
PATIENCE_S = 20.0
AXE = ROOT / ".cache" / "axe-core" / "node_modules" / "axe-core" / "axe.min.js"
NAME = "(one) => one.id || one.ariaLabel || one.textContent.trim()"
RUN_AXE = "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])"


@contextmanager
def chromium(browser: str, chromedriver: str) -> Iterator["Browser"]:
    """One session, ended with the block."""
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    quiet = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run")
    for argument in ("--headless=new", "--window-size=1280,1000", *quiet):
        options.add_argument(argument)
    driver = Chrome(options=options, service=ChromeService(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What a user of the page does and sees, with waits instead of pauses."""

    def __init__(self, driver: Chrome) -> None:
        self.driver: Any = driver  # selenium's types are there only where it is

    def open(self, url: str) -> None:
        """The page in a new tab's state: nothing is remembered, nothing emulated."""
        self.emulate()
        self.driver.get(url.partition("#")[0])
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.driver.get("about:blank")
        self.complaints()
        self.driver.get(url)
        self.wait(lambda: self.text("#connection") == "live", "the page is live")

    def emulate(self, *, width: int = 0, height: int = 0, **features: str) -> None:
        """Another width, or what a user prefers: ``prefers_color_scheme="dark"``."""
        told = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})
        size = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        """The first that fits."""
        found: WebElement = self.driver.find_element(By.CSS_SELECTOR, selector)
        return found

    def texts(self, selector: str) -> list[str]:
        """What those that fit say, at one moment."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)",
            selector,
        )
        return found

    def text(self, selector: str) -> str:
        """What the first that fits says; nothing where none does."""
        return (self.texts(selector) or [""])[0]

    def click(self, selector: str) -> None:
        """Click what can be seen."""
        self.one(selector).click()

    def type(self, *keys: str) -> None:
        """Type at whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option, as a user does."""
        self.one(f'{selector} option[value="{value}"]').click()

    def focused(self) -> str:
        """What has the focus, by its id, or else its label or text."""
        return str(self.run(f"return ({NAME})(document.activeElement)"))

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until it holds; gives what it gave."""
        return WebDriverWait(self.driver, PATIENCE_S, 0.05).until(lambda _: condition(), what)

    def wait_text(self, selector: str, part: str) -> str:
        """Wait until one that fits says it; the whole text."""
        found: str = self.wait(
            lambda: next((text for text in self.texts(selector) if part in text), None),
            f"{selector} says {part!r}",
        )
        return found

    def complaints(self) -> list[str]:
        """What the browser complained of since it was asked last: scripts, policy, requests."""
        log = self.driver.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] in {"SEVERE", "WARNING"}]

    def picture(self, name: str) -> None:
        """Keep what is seen as an artefact."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(ARTEFACTS / f"{name}.png"))

    def barriers(self, name: str) -> list[str]:
        """What axe-core finds, a line each, and a picture. Skips where it is not installed."""
        self.picture(name)
        if not AXE.exists():
            pytest.skip("no axe-core: run make test-page")
        self.run(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(RUN_AXE)
        return [
            f"{one['id']}: {json.dumps([node['target'] for node in one['nodes']])} {one['help']}"
            for one in found["violations"]
        ]
