# SPDX-License-Identifier: Apache-2.0
"""Where ``rollout-router top`` asks: the admin address, named or found beside the store.

An address that was found is looked for again when it does not answer: one that was started anew
may have another port.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from rollout_router.cli.admin_http import Unreachable, exchanged
from rollout_router.cli.flags import SCHEMA

__all__ = ["AddressSilent", "NoAddress", "Source"]

ANSWER_S: Final = 5.0
"""How long the address has to answer: it takes milliseconds."""

_VERSION: Final = 1
_SCHEMES: Final = ("http", "https")


class NoAddress(Exception):  # noqa: N818 - named by what is missing
    """There is no admin address; the message says how to start one."""


class AddressSilent(Exception):  # noqa: N818 - named by what happened
    """The admin address gave no answer, or none that can be understood."""


class Source:
    """The documents of one admin address.

    Args:
        state_dir: the store beside which the address is found.
        url: the address, where it is known.

    Raises:
        NoAddress: there is none, or *url* is no URL.
    """

    def __init__(self, state_dir: Path, url: str | None = None) -> None:
        self._state_dir = state_dir
        self._found = url is None
        self.url: str = "" if url is None else _checked(url).geturl()
        if self._found:
            self._find()

    def overview(self) -> dict[str, Any]:
        """Service, workers, gate and totals.

        Raises:
            AddressSilent, NoAddress: see the message.
        """
        return self._ask("overview", {})

    def rollouts(self, asked: Mapping[str, str | int]) -> dict[str, Any]:
        """A window of the rollouts.

        Raises:
            AddressSilent, NoAddress: see the message.
        """
        return self._ask("rollouts", asked)

    def _find(self) -> None:
        path = self._state_dir / "admin"
        try:
            found = json.loads(path.read_bytes())
            version, url = found["v"], str(found["url"])
        except FileNotFoundError:
            raise NoAddress(
                f"{self._state_dir} has no admin address: start one with `rollout-router serve"
                f" --admin-port N` or `rollout-router admin --state-dir {self._state_dir}"
                " --admin-port N`, or name one with --admin-url"
            ) from None
        except OSError as error:
            raise NoAddress(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise NoAddress(f"{path} does not name an admin address: {error!r}") from error
        if version != _VERSION:
            raise NoAddress(f"{path} has version {version}, which this command does not know")
        self.url = _checked(url).geturl()

    def _ask(self, path: str, asked: Mapping[str, str | int]) -> dict[str, Any]:
        try:
            return _document(self.url, f"/api/{path}?{urlencode(asked)}")
        except AddressSilent:
            before = self.url
            if self._found:
                self._find()
            if self.url == before:
                raise
            return _document(self.url, f"/api/{path}?{urlencode(asked)}")


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme in _SCHEMES and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # of the port
        pass
    raise NoAddress(f"{url!r} is no URL of an admin address: http://HOST:PORT")


def _document(url: str, target: str) -> dict[str, Any]:
    try:
        status, raw = exchanged(url, target, timeout_s=ANSWER_S)
        document = json.loads(raw)
    except (Unreachable, ValueError) as error:
        raise AddressSilent(f"the admin address {url} gave no answer: {error}") from error
    if not isinstance(document, dict):
        raise AddressSilent(f"the admin address {url} answered {document!r:.200}")
    if status != HTTPStatus.OK:
        said = document.get("error")
        message = said.get("message") if isinstance(said, dict) else document
        raise AddressSilent(f"the admin address {url} answered {status}: {message}")
    if document.get("schema") != SCHEMA:
        known = f"schema {document.get('schema')!r}, and this command knows {SCHEMA}"
        raise AddressSilent(f"the admin address {url} answers in {known}")
    return document
