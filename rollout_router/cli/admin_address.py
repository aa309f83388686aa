# SPDX-License-Identifier: Apache-2.0
"""``--admin-url``: a command asks the admin address of a running service instead of the disk.

It prints the same and ends with the same exit codes. Without the flag a command reads the store
itself, which works when everything is dead.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import click

from rollout_router.cli.flags import ExitCode, flag
from rollout_router.cli.terminal import printable

__all__ = ["ANSWER_S", "AdminAddress", "admin_flags", "path_of"]

ANSWER_S: Final = 60.0
"""How long the admin address has for an answer, beside a wait that was asked for: it may read a
hundred thousand claims first."""

_TOKEN_VARIABLE: Final = "ROLLOUT_ROUTER_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN_BYTES_MAX: Final = 4096

_ENDS: Final[Mapping[str, ExitCode]] = {
    "bad_request": ExitCode.USAGE,
    "rollout_id_invalid": ExitCode.USAGE,
    "admin_token_invalid": ExitCode.REFUSED,
    "host_refused": ExitCode.REFUSED,
    "origin_refused": ExitCode.REFUSED,
    "change_refused": ExitCode.REFUSED,
    "store_refused": ExitCode.REFUSED,
}
"""How a command ends whose question is refused so; with 1 for every other code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAddress:
    """The admin address of a service, and what opens it."""

    url: str
    token: str | None = field(repr=False)  # only what changes something needs it

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """The document at *path*; what is None is left out of the query. Exits where there is none.

        Each part of *path* is as it is sent.
        """
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path, None, 0.0)

    def post(self, path: str, body: Mapping[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """What is answered to *body*. Exits where that is an error.

        Args:
            path: as it is sent.
            body: JSON.
            wait_s: how long the answer may take because *body* asks for it.
        """
        return self._ask("POST", path, json.dumps(body).encode(), wait_s)

    def _ask(self, method: str, path: str, body: bytes | None, wait_s: float) -> dict[str, Any]:
        # Slow, and a command that reads the disk needs none.
        from rollout_router.cli.admin_http import Unreachable, exchanged  # noqa: PLC0415 - as above

        headers = {"Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            status, raw = exchanged(
                self.url,
                path,
                method=method,
                body=body,
                headers=headers,
                timeout_s=ANSWER_S + wait_s,
            )
        except Unreachable as error:
            raise _ended(
                f"the admin address {self.url} cannot be reached: {error}; without --admin-url"
                " the command reads the store itself",
                ExitCode.FAILED,
            ) from error
        document = _document(raw)
        if status == HTTPStatus.OK and document is not None:
            return document
        told = (document or {}).get("error")
        if not isinstance(told, dict):
            said = f"answered {status}: {raw[:200]!r}; is it an admin address?"
            raise _ended(f"{self.url} {said}", ExitCode.FAILED)
        raise _ended(str(told.get("message")), _ENDS.get(str(told.get("code")), ExitCode.FAILED))


def admin_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--admin-url`` and ``--admin-token-file``; the command gets them as ``admin``."""

    @functools.wraps(command)
    def with_address(
        *, admin_url: str | None, admin_token_file: Path | None, **options: Any
    ) -> Any:
        address = None
        if admin_url is not None:
            token = _token(admin_token_file)
            address = AdminAddress(url=_checked(admin_url), token=token)
        return command(admin=address, **options)

    token_file = flag(
        "--admin-token-file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="With --admin-url: holds the admin token; `admin` in the state directory does. Or put "
        f"the token into {_TOKEN_VARIABLE}. Only what changes something needs it.",
    )
    url = flag(
        "--admin-url",
        metavar="URL",
        help="Ask this admin address instead of reading the store; --state-dir is not used then.",
    )
    return url(token_file(with_address))  # type: ignore[no-any-return] # a click decorator is Any


def path_of(*parts: str) -> str:
    """A path whose *parts* are as they are, whatever they contain."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none
        whole = False
    if not whole or parts.query or parts.username:
        raise click.UsageError(f"--admin-url: {url!r} is not http://HOST:PORT")
    return url.split("#", 1)[0].rstrip("/")  # what a browser is given holds the token behind it


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(_TOKEN_VARIABLE) or None
    try:
        with path.open("rb") as file:
            text = file.read(_TOKEN_BYTES_MAX).decode().strip()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--admin-token-file: {error}") from error
    token = (_document(text.encode()) or {}).get("token", text)
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and token):
        raise click.UsageError(f"--admin-token-file: {path} holds no token")
    return token


def _document(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ended(message: str, code: ExitCode) -> SystemExit:
    click.echo(f"rollout-router: {printable(message)}", err=True)
    return SystemExit(code)
