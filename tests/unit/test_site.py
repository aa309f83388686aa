# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: every page is in it, and every link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A page without a place, or a link or anchor without a target, ends it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    pages = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    expected = {
        (path.parent if path.stem in {"index", "README"} else path.with_suffix("")).as_posix()
        for path in sources
    }
    assert pages == expected | {"about", "changelog", "contributing"}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?(https?:|//)[^>]*>"
    )
    found = {
        (path.name, match[0])
        for path in site.rglob("*.html")
        for match in loads.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_the_map_names_every_page_and_the_list_every_decision() -> None:
    docs = ROOT / "docs"
    decisions = {path.name for path in (docs / "decisions").glob("0*.md")}
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    pages -= {"index.md", *(f"decisions/{name}" for name in decisions)}
    links = re.compile(r"\]\(([^)#]+\.md)\)")
    assert pages <= set(links.findall((docs / "index.md").read_text(encoding="utf-8")))
    listed = links.findall((docs / "decisions" / "README.md").read_text(encoding="utf-8"))
    assert set(listed) == decisions


def test_every_picture_says_what_it_shows(site: Path) -> None:
    del site  # links to pictures were looked at when it was built
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = re.compile(r"!\[([^\]]*)\]\(([^)]+\.svg)\)")
    texts = [page.read_text(encoding="utf-8") for page in pages]
    pictures = [found for text in texts for found in shown.findall(text)]
    assert {Path(path).name for _, path in pictures} == {
        path.name for path in (ROOT / "docs" / "pictures").iterdir()
    }
    for alternative, path in pictures:
        assert len(alternative) > 40, path
        text = (ROOT / "docs" / path).read_text(encoding="utf-8")
        assert "prefers-color-scheme:dark" in text  # legible in both
        assert "<title" in text
        assert "<desc" in text
