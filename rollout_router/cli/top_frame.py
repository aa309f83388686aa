# SPDX-License-Identifier: Apache-2.0
"""One frame of ``rollout-router top``, from documents of the admin address. Pure.

Whatever a document says goes through :func:`printable`: ids come from whoever calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from rollout_router.cli.terminal import printable
from rollout_router.cli.top_view import FOOTER, View

__all__ = ["Documents", "Row", "frame", "rows_that_fit"]

Row = Mapping[str, Any]

_HEAD_LINES: Final = 3
_ROWS_MIN: Final = 1
_STYLES: Final = {
    "alive": "green",
    "unknown": "yellow",
    "dead": "red",
    "owner_dead": "red",
    "lost": "red",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "refused": "yellow",
}
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_PROMPTS: Final = {"q": "id contains", "worker": "owner begins with"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What the admin address said.

    Attributes:
        overview: of the service.
        rollouts: a window of them.
        old: why this is not what it would say now; empty where it is.
    """

    overview: Row
    rollouts: Row
    old: str = ""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    cell: Callable[[Row, str], str | Text]
    number: bool = False


def rows_that_fit(height: int, workers: int) -> int:
    """How many rollouts a screen of *height* lines has room for."""
    shown = _workers_shown(height, workers)
    heads = _HEAD_LINES + 2 + 2  # two names of columns, and the lines below the tables
    return max(_ROWS_MIN, height - heads - shown - (shown < workers))


def frame(documents: Documents, view: View, *, height: int) -> Group:
    """A screen of *height* lines; width is whatever it is printed on."""
    overview, window = documents.overview, documents.rollouts
    workers = sorted(overview["workers"], key=lambda one: one["verdict"] == "dead")
    shown = workers[: _workers_shown(height, len(workers))]
    at = str(overview["at"])
    return Group(
        _line(_title(overview), style="bold"),
        _warning(documents),
        _line(_totals(overview["totals"])),
        _table(_WORKERS, shown, at),
        *([] if len(shown) == len(workers) else [_line(f"and {len(workers) - len(shown)} more")]),
        _table(_ROLLOUTS, window["rollouts"], at),
        _line(_window(window, view)),
        _line(_footer(view), style="reverse"),
    )


def _workers_shown(height: int, workers: int) -> int:
    return min(workers, max(2, height // 3 - 2))


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _title(overview: Row) -> str:
    named = ("service", "store_id", "url", "at")
    service, store_id, url, at = (printable(overview.get(name)) for name in named)
    return f"rollout-router top   {service}   store {store_id}   {url}   {at}"


def _warning(documents: Documents) -> Text:
    if documents.old:
        return _line(f"OLD: {printable(documents.old)}", style="bold yellow")
    gate = documents.overview["gate"]
    if gate["open"]:
        return _line("gate open", style="green")
    closed = f"gate CLOSED by {printable(gate['by'])}: {printable(gate['why'])}"
    return _line(closed, style="bold yellow")


def _totals(totals: Row) -> str:
    count = "  ".join(
        f"{name} {_number(totals.get(name))}"
        for name in ("rollouts", "in_flight", "turns", "takeovers", "resyncs", "releases")
    )
    body, sent = (_bytes(totals.get(name)) for name in ("body_bytes", "sent_bytes"))
    return f"{count.replace('in_flight', 'in flight')}  body {body}  sent {sent}  {_saved(totals)}"


def _window(window: Row, view: View) -> str:
    first, shown = window["offset"], len(window["rollouts"])
    of = f"{window['matching']:,} of {window['total']:,} rollouts"
    filters = {"q": view.q, "worker": view.worker}
    said = "".join(
        f", {_PROMPTS[name]} {printable(value)}" for name, value in filters.items() if value
    )
    rows = f"{first + 1:,} to {first + shown:,} of " if shown else ""
    return f"{rows}{of}, by {view.sort} {view.order}{said}"


def _footer(view: View) -> str:
    if not view.prompt:
        return FOOTER
    return f"{_PROMPTS[view.prompt]}: {printable(view.typed)}_   Enter: use it   Escape: leave it"


def _table(columns: Sequence[_Column], rows: Sequence[Row], at: str) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold underline")
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(column.cell(row, at) for column in columns))
    return table


def _plain(name: str) -> Callable[[Row, str], Text]:
    def cell(row: Row, _: str) -> Text:
        said = printable(row.get(name))
        return Text(said, style=_STYLES.get(said, ""))

    return cell


def _counted(name: str) -> Callable[[Row, str], str]:
    return lambda row, _: _number(row.get(name))


def _sized(name: str) -> Callable[[Row, str], str]:
    return lambda row, _: _bytes(row.get(name))


def _since(name: str) -> Callable[[Row, str], str]:
    return lambda row, at: _age(row.get(name), at)


def _verdict(row: Row, _: str) -> Text:
    said = printable(row.get("verdict"))
    more = [
        what
        for what, so in (
            ("silent", row.get("answers") is False and said != "dead"),
            ("leaving", row.get("leaving")),
        )
        if so
    ]
    return Text(", ".join([said, *more]), style="yellow" if more else _STYLES.get(said, ""))


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "-"


def _bytes(value: object) -> str:
    return decimal(int(value)) if isinstance(value, int | float) else "-"


def _saved(row: Row) -> str:
    body, sent = row.get("body_bytes"), row.get("sent_bytes")
    if not body or sent is None:
        return "-"
    return f"{(body - sent) / body:.1%} saved"


def _age(value: object, at: str) -> str:
    try:
        seconds = (datetime.fromisoformat(at) - datetime.fromisoformat(str(value))).total_seconds()
    except (ValueError, TypeError):  # no time, or one without a zone
        return printable(value)
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"


_WORKERS: Final = (
    _Column("worker", _plain("id")),
    _Column("pid", _plain("pid"), number=True),
    _Column("verdict", _verdict),
    _Column("in flight", _counted("in_flight"), number=True),
    _Column("claims", _counted("claims"), number=True),
    _Column("lag ms", _counted("lag_ms"), number=True),
    _Column("bases", _counted("bases"), number=True),
    _Column("held", _sized("base_bytes"), number=True),
    _Column("started", _since("started_at"), number=True),
)
_ROLLOUTS: Final = (
    _Column("rollout", _plain("rollout_id")),
    _Column("state", _plain("state")),
    _Column("owner", _plain("worker_id")),
    _Column("epoch", _plain("claim_epoch"), number=True),
    _Column("turns", _counted("turns"), number=True),
    _Column("flight", _counted("in_flight"), number=True),
    _Column("body", _sized("body_bytes"), number=True),
    _Column("sent", _sized("sent_bytes"), number=True),
    _Column("saved", lambda row, _: _saved(row).removesuffix(" saved"), number=True),
    _Column("age", _since("claimed_at"), number=True),
    _Column("last", _since("last_at"), number=True),
    _Column("outcome", _plain("last_outcome")),
)
