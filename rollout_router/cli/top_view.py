# SPDX-License-Identifier: Apache-2.0
"""What ``rollout-router top`` shows, and what a key makes of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["FOOTER", "ROWS_MAX", "SORTS", "View", "asked", "step", "worker_named"]

ROWS_MAX: Final = 500
"""As many as the admin address gives at a time."""

SORTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "t": ("turns", "turns", "desc"),
    "b": ("bytes", "body_bytes", "desc"),
    "a": ("age", "claimed_at", "asc"),
    "l": ("last", "last_at", "desc"),
    "o": ("owner", "worker_id", "asc"),
}
"""Key: its name, the field that sorts, and the order in which what matters is first."""

_PROMPTS: Final[Mapping[str, str]] = {"/": "q", "w": "worker"}
_REVERSED: Final = {"asc": "desc", "desc": "asc"}
_TEXT_LENGTH_MAX: Final = 200  # as long as an id
_MOVES: Final[Mapping[str, tuple[int, int]]] = {
    "up": (-1, 0),
    "down": (1, 0),
    "pageup": (0, -1),
    "pagedown": (0, 1),
}
"""Key: by how many rows and by how many pages."""

FOOTER: Final = (
    "sort: t turns  b bytes  a age  l last  o owner  r reverse   / filter   w worker   "
    "arrows, page keys: scroll   q quit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of the rollouts.

    Attributes:
        sort: a field of a row.
        order: ``asc`` or ``desc``.
        q: what their ids contain.
        worker: how the id of their owner begins.
        offset: the first row.
        prompt: ``q`` or ``worker`` while it is typed, else empty.
        typed: so far.
    """

    sort: str = "turns"
    order: str = "desc"
    q: str = ""
    worker: str = ""
    offset: int = 0
    prompt: str = ""
    typed: str = ""


def step(view: View, key: str, *, rows: int, matching: int) -> View | None:
    """The view after a key; None where it ends the program. Other keys change nothing.

    Args:
        view: before.
        key: a character, or the name of a key.
        rows: how many are shown at a time.
        matching: how many there are to show.
    """
    if view.prompt:
        return _typed(view, key)
    if key == "q":
        return None
    if key == "r":
        return replace(view, order=_REVERSED[view.order], offset=0)
    if key in SORTS:
        _, sort, order = SORTS[key]
        return replace(view, sort=sort, order=order, offset=0)
    if key in _PROMPTS:
        return replace(view, prompt=_PROMPTS[key], typed="")
    return _scrolled(view, key, rows=rows, last=max(0, matching - rows))


def _scrolled(view: View, key: str, *, rows: int, last: int) -> View:
    if key in {"home", "end"}:
        return replace(view, offset=last if key == "end" else 0)
    if key in _MOVES:
        by_rows, by_pages = _MOVES[key]
        offset = view.offset + by_rows + by_pages * rows
        return replace(view, offset=min(max(0, offset), last))
    return view


def _typed(view: View, key: str) -> View:
    if key == "escape":
        return replace(view, prompt="", typed="")
    if key == "enter":
        found = {"q": view.q, "worker": view.worker, view.prompt: view.typed}
        return replace(view, prompt="", typed="", offset=0, **found)
    if key == "backspace":
        return replace(view, typed=view.typed[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(view, typed=(view.typed + key)[:_TEXT_LENGTH_MAX])
    return view


def asked(view: View, workers: list[Mapping[str, Any]], *, rows: int) -> dict[str, str | int]:
    """The parameters that ask the admin address for this view."""
    filters = {"q": view.q, "worker": worker_named(view.worker, workers)}
    return {
        **{name: value for name, value in filters.items() if value},
        "sort": view.sort,
        "order": view.order,
        "offset": view.offset,
        "limit": min(rows, ROWS_MAX),
    }


def worker_named(start: str, workers: list[Mapping[str, Any]]) -> str:
    """The worker whose id begins so; where it is none or several, *start*, which matches nobody."""
    found = [str(worker["id"]) for worker in workers if str(worker["id"]).startswith(start)]
    return found[0] if start and len(found) == 1 else start
