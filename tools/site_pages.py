# SPDX-License-Identifier: Apache-2.0
"""What MkDocs does besides: files outside of docs/ are pages too, and links work here and there.

A repository's readers follow ``../README.md``, the site's readers a page. So each file of
``OUTSIDE`` gets a place in the site, and a link to it is turned into a link to that place.
"""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["OUTSIDE", "on_files", "on_page_content", "on_page_markdown"]

ROOT: Final = Path(__file__).parents[1]

OUTSIDE: Final[Mapping[str, str]] = {
    "README.md": "about.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "files/LICENSE.txt",
    "packaging/nginx.conf": "files/nginx.conf",
    "packaging/rollout-router.service": "files/rollout-router.service",
    "packaging/rollout-router.toml": "files/rollout-router.toml",
}
"""Files of the repository, and where they are in the site."""

_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|/|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Give each file outside of docs/ its place."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links that are right in the repository into links that are right in the site."""
    here = _in_the_repository(page.file.src_uri)

    def place(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1]))
        found = OUTSIDE.get(target, target.removeprefix("docs/"))
        start = posixpath.dirname(page.file.src_uri) or "."
        return posixpath.relpath(found, start) + (match[2] or "")

    return _LINK.sub(place, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show a bar in a table's code as GitHub does: it is escaped there, and read without."""
    return html.replace("\\|", "|")


def _in_the_repository(place: str) -> str:
    sources = {there: source for source, there in OUTSIDE.items()}
    return sources.get(place, f"docs/{place}")
