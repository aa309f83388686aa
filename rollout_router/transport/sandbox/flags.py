# SPDX-License-Identifier: Apache-2.0
"""The shim's flags, and the quick reading of them. Pure; imports nothing: start-up time counts.

What is written plainly and is surely right is read here. All else, wrong usage and ``--help``
included, is for usage.py, which has the last word and costs more than the whole start.
"""

__all__ = ["ENVIRONMENT", "FLAGS", "SWITCH", "is_on", "is_pid", "quick", "shim_arguments"]

TYPE_CHECKING = False  # as typing has it, without importing that
if TYPE_CHECKING:
    from typing import Any

ENVIRONMENT = "ROLLOUT_ROUTER_SHIM_"
_PORT_MAX = 65_535
_PID_MAX = 2**31 - 1  # of pid_t
_ID_CHARACTERS_MAX = 200
_PORT_DIGITS_MAX = 5

SWITCH = "on or off"
_TEXT = "text"
_NUMBER = "number"

FLAGS = {  # name: kind, metavar, help
    "gateway": (_TEXT, "URL", "URL of the model server; may have a path prefix"),
    "port": (_NUMBER, "PORT", "port on 127.0.0.1; 0 picks one"),
    "ready-file": (_TEXT, "FILE", 'written once it listens: {"url", "port", "pid"}'),
    "rollout-header": (_TEXT, "NAME", "header that names a rollout"),
    "rollout": (_TEXT, "ID", "id to put into that header where a request names none"),
    "no-delta": (SWITCH, None, "pass everything through as it comes"),
    "no-deflate": (SWITCH, None, "do not compress what a delta inserts"),
    "bases-bytes": (_NUMBER, "N", "memory for kept bodies"),
    "statistics-file": (_TEXT, "FILE", "written at the end and on SIGUSR1"),
    "timings-file": (_TEXT, "FILE", "gets a line of JSON a call: where its time went"),
    "parent-pid": (_NUMBER, "PID", "end when this process has ended"),
    "watch-stdin": (SWITCH, None, "end when standard input ends"),
}


def quick(arguments: "list[str]", environment: "dict[str, str]") -> "dict[str, Any] | None":
    """The settings that were given, by flag with underscores; None where usage.py has to look."""
    texts = _texts(arguments, environment)
    if texts is None or "gateway" not in texts:
        return None
    settings = {name.replace("-", "_"): _read(name, text) for name, text in texts.items()}
    return None if None in settings.values() else settings


def is_on(text: "str | None") -> bool:
    """What a switch's twin in the environment says."""
    return text is not None and text.lower() not in {"", "0", "false", "no"}


def is_pid(number: int) -> bool:
    """Whether *number* can be the id of a process."""
    return 0 < number <= _PID_MAX


def shim_arguments(settings: "dict[str, Any]") -> "dict[str, Any]":
    """The keyword arguments of ``Shim`` that *settings* stand for."""
    names = {"bases_bytes": "bases_bytes_max"}
    kept = ("gateway", "port", "rollout_header", "rollout", "bases_bytes", "timings_file")
    arguments = {names.get(name, name): settings[name] for name in kept if name in settings}
    for switch, name in (("no_delta", "deltas"), ("no_deflate", "deflate")):
        if switch in settings:
            arguments[name] = not settings[switch]
    return arguments


def _texts(arguments: "list[str]", environment: "dict[str, str]") -> "dict[str, str] | None":
    """What is said for each flag; None where an argument is not plainly one."""
    texts: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, text = argument[2:].partition("=")
        if argument[:2] != "--" or name not in FLAGS or name in texts:
            return None
        if FLAGS[name][0] is SWITCH:
            if equals:
                return None
            text = "on"
        elif not equals:
            text = next(rest, "")
            if text[:1] == "-":
                return None
        texts[name] = text
    for name in FLAGS:
        twin = environment.get(ENVIRONMENT + name.upper().replace("-", "_"))
        if twin:
            texts.setdefault(name, twin)
    return texts


def _read(name: str, text: str) -> "Any":
    """A value that is surely right, else None."""
    kind = FLAGS[name][0]
    if kind is SWITCH:
        return is_on(text)
    if kind is _NUMBER:
        if not (text.isascii() and text.isdigit() and len(text) <= 15):  # noqa: PLR2004 - one word of a machine
            return None
        number = int(text)
        if (name == "port" and number > _PORT_MAX) or (name == "parent-pid" and not is_pid(number)):
            return None
        return number
    looks_right = {"gateway": _is_gateway, "rollout": _is_id, "rollout-header": _is_name}.get(name)
    return text if text and (looks_right is None or looks_right(text)) else None


def _is_gateway(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    authority, _, path = rest.partition("/")
    host, colon, port = authority.partition(":")
    return (
        scheme in {"http", "https"}
        and separator == "://"
        and host != ""
        and _is_made_of(host, "._-")
        and (not colon or (len(port) <= _PORT_DIGITS_MAX and bool(_read("port", port))))
        and all("!" <= character <= "~" and character not in "?#" for character in path)
    )


def _is_id(text: str) -> bool:
    return len(text) <= _ID_CHARACTERS_MAX and text[0].isalnum() and _is_made_of(text, "._-")


def _is_name(text: str) -> bool:
    return _is_made_of(text, "-_")


def _is_made_of(text: str, more: str) -> bool:
    """Of ASCII letters, digits, and *more*."""
    return text.isascii() and all(character.isalnum() or character in more for character in text)
