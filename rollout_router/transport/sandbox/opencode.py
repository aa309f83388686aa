# SPDX-License-Identifier: Apache-2.0
r"""OpenCode's configuration as text: strings put into it that arrive as they are written. Pure.

OpenCode expands ``{env:NAME}`` and ``{file:PATH}`` in the text of a configuration before it reads
it as JSON, wherever they stand. So a string that is put in has ``\u007b`` for its opening braces,
which only the JSON reader undoes. Everything else of the text stays byte for byte and keeps its
expansion; nothing is read and written anew, so no escape is lost, whoever wrote it.
"""

import argparse
import json
import os
import re
import sys
from typing import Any, Dict, Iterator, List, Mapping, Match, Optional, Sequence, Tuple

__all__ = ["main", "pointed_at", "serialized", "with_prompt"]

_ENV = re.compile(r"\{env:[^}]+\}")  # what OpenCode 1.18 looks for, and in this order
_FILE = re.compile(r"\{file:[^}]+\}")
_LEXEME = re.compile(
    r"""
    (?P<between> [\s\ufeff]+ | //[^\r\n]* | /\*.*?\*/ )
    | "(?:[^"\\\r\n]|\\[^\r\n])*" | [{}\[\]:,] | [^\s{}\[\]:,"/]+
    """,
    re.DOTALL | re.VERBOSE,
)
_PROMPT = ("agent", "build", "prompt")
_OLD_PROMPT = ("mode", "build", "prompt")  # where it is set, OpenCode lets it win
_MODE_NEW = 0o600  # a configuration can hold a key


def serialized(config: Mapping[str, Any], replacement_prompt: Optional[str] = None) -> str:
    """*config* as OpenCode reads it, with expansion; the replacement prompt without.

    Args:
        config: what stands in it is written as it is.
        replacement_prompt: in place of OpenCode's own for the agent ``build``; None leaves what
            *config* says.

    Raises:
        ValueError: as :func:`with_prompt`.
    """
    text = json.dumps(config, ensure_ascii=False, indent=2)
    return text if replacement_prompt is None else with_prompt(text, replacement_prompt)


def with_prompt(text: str, prompt: str) -> str:
    """The configuration *text* with *prompt* in place of OpenCode's own for the agent ``build``.

    Raises:
        ValueError: *prompt* is empty, which OpenCode takes for none, or no Unicode text; or *text*
            is no configuration that a prompt can be put into.
    """
    if not prompt:
        raise ValueError("OpenCode takes an empty system prompt for none: leave it out, or fill it")
    if _find(_read(text), _OLD_PROMPT) is not None:
        text = _placed(text, _OLD_PROMPT, prompt)
    return _placed(text, _PROMPT, prompt)


def pointed_at(text: str, base_url: str, provider: Optional[str] = None) -> str:
    """The configuration *text* with *provider*'s models at *base_url*, and nothing else changed.

    Args:
        text: JSON with comments and trailing commas, before expansion.
        base_url: the whole of it: the shim's URL, the rollout's path, ``/v1``.
        provider: its name in *text*; None: the one of its ``model``.

    Raises:
        ValueError: *text* is no such configuration, or does not tell which provider it uses.
    """
    if provider is None:
        provider = _provider(text)
    return _placed(text, ("provider", provider, "options", "baseURL"), base_url)


class _Node:
    """A value in the text: where it stands, and what an object holds; of equal names the last."""

    def __init__(self, start: int, end: int, kind: str) -> None:
        self.start = start
        self.end = end
        self.kind = kind  # its first character
        self.members: Dict[str, _Node] = {}


def _literal(text: str) -> str:
    """*text* as a JSON string in ASCII, in which no expression of OpenCode begins."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not Unicode text: {error}") from None
    return json.dumps(text).replace("{", r"\u007b")


def _placed(text: str, path: Sequence[str], value: str) -> str:
    """*text* with *value* at *path*; the objects on the way are made where they are missing."""
    node = _read(text)
    newer = _find(node, (path[0] + "s", path[1]))
    if newer is not None:
        raise ValueError(f"{path[0]}s.{path[1]} is set: move it to {path[0]}.{path[1]}")
    for depth, name in enumerate(path):
        if node.kind != "{":
            raise ValueError(f"{'.'.join(path[:depth]) or 'the configuration'} is not an object")
        if name not in node.members:
            rest = _literal(value)
            for missing in reversed(path[depth + 1 :]):
                rest = f"{{{_literal(missing)}: {rest}}}"
            comma = "," if node.members else ""
            at = node.start + 1
            return f"{text[:at]}{_literal(name)}: {rest}{comma}{text[at:]}"
        node = node.members[name]
    return text[: node.start] + _literal(value) + text[node.end :]


def _provider(text: str) -> str:
    """The provider of the ``model``, which is ``provider/name``."""
    node = _find(_read(text), ("model",))
    model = "" if node is None or node.kind != '"' else json.loads(text[node.start : node.end])
    name, slash, _ = model.partition("/")
    if not name or not slash or "{" in name:
        raise ValueError("the configuration's model does not name its provider: say which")
    return str(name)


def _find(node: _Node, path: Sequence[str]) -> Optional[_Node]:
    for name in path:
        if name not in node.members:
            return None
        node = node.members[name]
    return node


def _read(text: str) -> _Node:
    """The document as a tree of places."""
    opened = [_Node(0, 0, "[")]
    name: Optional[str] = None  # of the member whose value comes next
    string = '""'  # before a colon
    root: Optional[_Node] = None
    for start, end, lexeme in _lexemes(text):
        if (root is not None and len(opened) == 1) or (root is None and lexeme != "{"):
            raise _malformed(text, start)
        if lexeme == ":":
            name = json.loads(string, strict=False)
        elif lexeme in "}]":
            if opened[-1].kind + lexeme not in {"{}", "[]"}:
                raise _malformed(text, start)
            opened.pop().end = end
        elif lexeme != ",":
            node = _Node(start, end, lexeme[0])
            root = root or node
            if name is not None and opened[-1].kind == "{":
                opened[-1].members[name] = node
            if lexeme in "{[":
                opened.append(node)
            name, string = None, lexeme if lexeme[0] == '"' else string
    if root is None or len(opened) > 1:
        raise _malformed(text, len(text))
    return root


def _lexemes(text: str) -> Iterator[Tuple[int, int, str]]:
    """What is neither white space nor comment: start, end, and itself as masked."""
    position = 0
    for match in _LEXEME.finditer(_masked(text)):
        if match.start() != position:
            break
        position = match.end()
        if match.lastgroup is None:
            yield match.start(), position, match.group()
    if position != len(text):
        raise _malformed(text, position)


def _malformed(text: str, position: int) -> ValueError:
    line = text.count("\n", 0, position) + 1
    return ValueError(f"not an object in JSON with comments, seen at line {line}")


def _masked(text: str) -> str:
    """*text* with zeros over what OpenCode expands, whatever that holds."""
    text = _ENV.sub(_zeros, text)
    return _FILE.sub(lambda match: match.group() if _in_comment(match) else _zeros(match), text)


def _zeros(match: "Match[str]") -> str:
    return "0" * len(match.group())


def _in_comment(match: "Match[str]") -> bool:
    """Whether OpenCode leaves the file out, since its line begins as a comment."""
    line = match.string.rfind("\n", 0, match.start()) + 1
    return match.string[line : match.start()].lstrip().startswith("//")


def main(argv: Optional[List[str]] = None) -> int:
    """Rewrite a configuration where OpenCode runs.

    Returns:
        0; 1 where it could not be read, understood or written: then nothing has changed. Wrong
        usage exits with 2.
    """
    parser = argparse.ArgumentParser(
        prog="opencode-config", description="Point OpenCode's configuration at another URL."
    )
    parser.add_argument("--in", dest="source", default="-", metavar="FILE", help="- is stdin")
    parser.add_argument("--out", default="-", metavar="FILE", help="- is stdout; may be the same")
    parser.add_argument("--base-url", metavar="URL", help="of the models, with rollout and /v1")
    parser.add_argument("--provider", metavar="NAME", help="by default that of its model")
    parser.add_argument("--system-prompt", metavar="FILE", help="replaces that of the agent build")
    args = parser.parse_args(argv)
    try:
        text = _load(args.source)
        if args.system_prompt is not None:
            text = with_prompt(text, _load(args.system_prompt))
        if args.base_url is not None:
            text = pointed_at(text, args.base_url, args.provider)
        _save(args.out, text)
    except (OSError, ValueError) as error:
        print(f"opencode-config: {error}", file=sys.stderr)
        return 1
    return 0


def _load(path: str) -> str:
    if path == "-":
        return sys.stdin.buffer.read().decode()
    with open(path, "rb") as file:
        return file.read().decode()


def _save(path: str, text: str) -> None:
    """By rename, so that a reader sees the old or the new; mode and symbolic link stay."""
    content = text.encode()
    if path == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    path = os.path.realpath(path)
    temporary = f"{path}.{os.getpid()}.tmp"
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else _MODE_NEW
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE_NEW)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
