# SPDX-License-Identifier: Apache-2.0
"""The files of the live page: readable colours, nothing inline, nothing from elsewhere."""

import re
from pathlib import Path

import pytest

import rollout_router

PAGE = Path(rollout_router.__file__).parent / "admin" / "page"
FILES = sorted(PAGE.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
STYLE = (PAGE / "page.css").read_text(encoding="utf-8")
HTML = (PAGE / "index.html").read_text(encoding="utf-8")
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", STYLE)
}
SCHEMES = ("light", "dark")
TEXT, GRAPHICS = 4.5, 3.0
"""Source: WCAG 2.2, 1.4.3 (AA, text) and 1.4.11 (what is not text)."""

INKS = ("ink", "muted", "link", "good", "warn", "bad")
MEET = [
    *((ink, ground, TEXT) for ink in INKS for ground in ("ground", "raised")),
    *((ink, "flash", TEXT) for ink in INKS),
    *((drawn, "raised", GRAPHICS) for drawn in ("saved", "sent", "link", "line", "focus")),
    *((drawn, "ground", GRAPHICS) for drawn in ("saved", "sent", "line", "focus")),
]
DECORATION = {"rule"}  # lines between rows, which nobody needs to see


def luminance(colour: str) -> float:
    """Source: WCAG 2.2, "relative luminance"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Source: WCAG 2.2, "contrast ratio"."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_reckoned_as_the_standard_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("drawn", "ground", "least"), MEET)
def test_colours_that_meet_have_contrast_enough(
    drawn: str, ground: str, least: float, scheme: str
) -> None:
    at = SCHEMES.index(scheme)
    assert contrast(COLOURS[drawn][at], COLOURS[ground][at]) >= least


def test_every_colour_of_the_page_is_compared_and_none_stands_elsewhere() -> None:
    compared = {name for drawn, ground, _ in MEET for name in (drawn, ground)}
    assert set(COLOURS) == compared | DECORATION
    assert len(re.findall(r"#[0-9a-f]{3,8}\b(?=[ ,;)])", STYLE)) == 2 * len(COLOURS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_page_names_its_licence_and_can_be_read_in_one_go(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "SPDX-License-Identifier: Apache-2.0" in lines[0]
    assert len(lines) <= 400


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)|https?://", HTML) == []
    named = set(re.findall(r'(?:src|href)="static/([\w.]+)"', HTML))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([\w.]+)"', script.read_text(encoding="utf-8")))
    assert named | {"index.html"} == {path.name for path in FILES}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_of_text(path: Path) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser"
    )
    assert re.findall(forbidden, path.read_text(encoding="utf-8")) == []


def test_every_field_and_table_has_a_name() -> None:
    fields = set(re.findall(r'<(?:input|select) id="([\w-]+)"', HTML))
    assert fields
    assert fields == set(re.findall(r'<label for="([\w-]+)"', HTML))
    assert HTML.count("<table") == HTML.count("<caption")
