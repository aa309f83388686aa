# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/ from the code: commands, settings, metrics, codes (`make reference`).

Each page is a function from the code to a text. A test makes the texts anew and compares them with
the files, so that a page which is stale fails. What a thing means beyond its line of help is told
by the pages in docs/, to which each of these links.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client.metrics import MetricWrapperBase

from rollout_router import metrics
from rollout_router.checkpoint.errors import CODES
from rollout_router.cli.main import main as program
from rollout_router.errors import ANSWERS
from rollout_router.serve.settings_table import settings_table
from rollout_router.transport.sandbox.flags import ENVIRONMENT, FLAGS

__all__ = ["FOLDER", "PAGES", "main"]

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"

_MADE: Final = "<!-- Made by `make reference` from the code: change that, not this page. -->"
_COMPUTED: Final[Mapping[str, str]] = {
    "default_state_dir": "`$XDG_STATE_HOME/rollout-router/model`, or below `~/.local/state`",
    "default_run_dir": "`$XDG_RUNTIME_DIR/rollout-router`; without it `/run/rollout-router` for"
    " root, `/tmp/rollout-router-UID` for others",
}
"""Defaults that are functions, in words."""

_OF_SETTINGS: Final = {("serve",), ("config", "show"), ("doctor",)}


def commands() -> str:
    """Every command with its flags; those of ``serve`` are the settings, on a page of their own."""
    lines = [
        _MADE,
        "# Every command",
        "",
        "Each command with its arguments and flags. What the commands print, change and refuse is",
        "told on [Commands](../cli.md), exit codes on [Errors](../errors.md#exit-codes).",
    ]
    for path, command in _walk(program, ("rollout-router",)):
        usage = " ".join(command.collect_usage_pieces(_context(command)))
        lines += ["", f"## `{' '.join(path)}`", "", _prose(command.help), ""]
        lines += ["```text", f"{' '.join(path)} {usage}".rstrip(), "```"]
        lines += _flags(path, command)
    return _page(lines)


def settings() -> str:
    """Every setting of ``serve``: its flag, environment twin, key, bounds, default, meaning."""
    return _page(
        [
            _MADE,
            "# Every setting of `serve`",
            "",
            "A flag goes before the variable, that before the key of a file (`--config`), and that",
            "before the default ([Configuration](../configuration.md)). Bounds that no setting has",
            "are on [Limits](../limits.md).",
            *_settings(),
        ]
    )


def codes() -> str:
    """Every error code that the router and a checkpoint have."""
    router = [
        (f"`{code}`", str(answer.status), "1" if answer.retry_after else "")
        for code, answer in ANSWERS.items()
    ]
    sessions = [
        (f"`{code}`", str(answer.status), "1" if answer.retry_after else "", answer.outcome)
        for code, answer in CODES.items()
    ]
    return _page(
        [
            _MADE,
            "# Every error code",
            "",
            "What each means, and whether to send again, is told on [Errors](../errors.md).",
            "",
            "## Of the router",
            "",
            "`claim_moved` is 421 between workers.",
            "",
            *_table(("code", "status", "Retry-After"), router),
            "",
            "## Of sessions, environments and checkpoints",
            "",
            "What becomes of the rollout is told on",
            "[Sessions that continue](../checkpoint.md#when-something-is-wrong).",
            "",
            *_table(("code", "status", "Retry-After", "the rollout is"), sessions),
        ]
    )


def counters() -> str:
    """Every metric that workers keep."""
    named = [getattr(metrics, name) for name in metrics.__all__ if name != "Children"]
    found = [one.metric if isinstance(one, metrics.Children) else one for one in named]
    return _page(
        [
            _MADE,
            "# Every metric",
            "",
            "What to watch, and how to read it, is told on",
            "[Metrics and logs](../observing.md). No label grows with rollouts.",
            "",
            *_table(("name", "type", "labels", "meaning"), sorted(map(_metric, found))),
        ]
    )


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "cli.md": commands,
    "errors.md": codes,
    "metrics.md": counters,
    "settings.md": settings,
}
"""The files in docs/reference/, and what makes them."""


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {', '.join(PAGES)} in {FOLDER}\n")


def _settings() -> Iterator[str]:
    """A table a group, one row a setting."""
    for group, rows in groupby(settings_table(), key=lambda row: row.group):
        cells = [
            (
                f"`{row.key}`",
                f"`{row.flag}`",
                f"`{row.env}`",
                _cell(f"`{row.form}`{'; ' * bool(row.bound)}{row.bound}"),
                _cell(row.default),
                _cell(row.description),
            )
            for row in rows
        ]
        yield from ("", f"## {group}", "")
        yield from _table(("key", "flag", "variable", "value", "default", "meaning"), cells)


def _metric(one: MetricWrapperBase) -> tuple[str, str, str, str]:
    """The row of a metric. Its library keeps these for itself until it has been counted."""
    name = f"{one._name}_total" if one._type == "counter" else one._name  # noqa: SLF001 - see above
    labels = ", ".join(f"`{label}`" for label in one._labelnames)  # noqa: SLF001 - see above
    return f"`{name}`", str(one._type), labels, _cell(one._documentation)  # noqa: SLF001 - see above


def _walk(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that can be called, in the order of its group's help."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    context = _context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            yield from _walk(found, (*path, name))


def _command(name: str) -> click.Command:
    found = program.get_command(_context(program), name)
    if found is None:
        raise LookupError(f"there is no command {name}")
    return found


def _flags(path: tuple[str, ...], command: click.Command) -> list[str]:
    if path[1:] in _OF_SETTINGS:
        return ["", "Its flags are `--config` and [the settings](settings.md)."]
    if path == ("rollout-router", "shim"):
        return ["", *_table(("flag", "value", "environment", "meaning"), list(_of_the_shim()))]
    rows = [
        (_names(option), _bounds(option), _twin(option), *_default_and_help(option))
        for option in _options(command)
    ]
    if not rows:
        return []
    return ["", *_table(("flag", "value", "environment", "default", "meaning"), rows)]


def _of_the_shim() -> Iterator[tuple[str, str, str, str]]:
    """The flags of the shim's own table: its file has no click."""
    for name, (_, value, text) in FLAGS.items():
        twin = f"{ENVIRONMENT}{name.upper().replace('-', '_')}"
        yield f"`--{name}`", f"`{value}`" if value else "", f"`{twin}`", _cell(text)


def _options(command: click.Command) -> list[click.Option]:
    found = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return [one for one in found if one.name not in {"help", "version"}]


def _names(option: click.Option) -> str:
    return " ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))


def _twin(option: click.Option) -> str:
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return ", ".join(f"`{name}`" for name in names)


def _bounds(option: click.Option) -> str:
    if option.is_flag:
        return ""
    kind = option.type
    if isinstance(kind, click.Choice):
        return _cell(" or ".join(f"`{one}`" for one in kind.choices))
    if isinstance(kind, click.IntRange | click.FloatRange):
        return _range(kind)
    return f"`{option.metavar or kind.name.upper()}`"


def _range(kind: click.IntRange | click.FloatRange) -> str:
    number = "number" if isinstance(kind, click.FloatRange) else "integer"
    low = "" if kind.min is None else f"{'above' if kind.min_open else 'from'} {kind.min:,}"
    high = "" if kind.max is None else f"{'below' if kind.max_open else 'to'} {kind.max:,}"
    return " ".join(part for part in (number, low, high) if part)


def _default_and_help(option: click.Option) -> tuple[str, str]:
    if option.required:
        default = "required"
    elif callable(option.default):
        default = _COMPUTED[option.default.__name__]
    elif option.is_flag and option.secondary_opts:
        default = f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    elif option.is_flag or _is_nothing(option.default):
        default = ""
    elif isinstance(option.default, list | tuple):
        default = f"`{','.join(map(str, option.default))}`"
    else:
        default = f"`{option.default}`"
    return default, _cell(option.help or "")


def _is_nothing(default: Any) -> bool:
    """Whether click has no default: None, or the mark that it keeps in the place of one."""
    return default is None or default == () or "UNSET" in repr(default)


def _prose(help_text: str | None) -> str:
    return inspect.cleandoc((help_text or "").replace("\b\n", "").replace("\f", ""))


def _context(command: click.Command) -> click.Context:
    return click.Context(command, info_name=command.name)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _page(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
