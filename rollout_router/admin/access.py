# SPDX-License-Identifier: Apache-2.0
"""Who may read and who may change at the admin address. Pure.

Whoever reaches the address may read. So a page of somebody else's, open in an operator's browser,
must not reach it: by a name of its own that leads to our address (DNS rebinding) its requests carry
that name as ``Host``, and are refused; by our own address its scripts may send and not read, and
what changes anything is refused by ``Origin`` and for want of the token.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import urlsplit

from rollout_router.errors import ANSWERS, Answer, Refusal

__all__ = ["ADMIN_ANSWERS", "SECURITY_HEADERS", "Access", "AdminRefusal"]

ADMIN_ANSWERS: Final[Mapping[str, Answer]] = {
    **{
        code: ANSWERS[code]
        for code in (
            *("bad_request", "rollout_id_invalid", "body_too_large", "application_failed"),
            *("claim_store_unavailable", "overloaded"),
        )
    },
    "admin_token_invalid": Answer(status=401),
    "host_refused": Answer(status=403),
    "origin_refused": Answer(status=403),
    "not_found": Answer(status=404),
    "worker_unknown": Answer(status=404),
    "not_supported": Answer(status=405),
    "change_refused": Answer(status=409),
    "store_refused": Answer(status=409),
    "metrics_unavailable": Answer(status=503, retry_after=True),
    "worker_silent": Answer(status=502),
}
"""Those that the router has too, and its own."""

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer: nothing is loaded from elsewhere, run from within a page, framed or stored."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class AdminRefusal(Refusal):
    """A refusal of the admin address, in the form of the router's."""

    answers: ClassVar[Mapping[str, Answer]] = ADMIN_ANSWERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Of one admin address.

    Attributes:
        host: the name or address that it was told to listen on.
        token: what changes need.
    """

    host: str
    token: str = field(repr=False)

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Look at one request, before anything of it is done.

        Args:
            method: of the request.
            headers: by lower-case name.

        Raises:
            AdminRefusal: it may not do that.
        """
        host = headers.get("host", "")
        if not self._knows(host):
            raise AdminRefusal(
                "host_refused",
                f"this address is not called {host!r}: use {self.host} or localhost; a proxy before"
                " it sends that as Host",
            )
        if method in {"GET", "HEAD"}:
            return
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise AdminRefusal("origin_refused", f"a page of {origin!r} may change nothing here")
        if not self._opens(headers.get("authorization", "")):
            raise AdminRefusal(
                "admin_token_invalid",
                "what changes anything needs `Authorization: Bearer TOKEN`; the token is in the"
                " file `admin` of the state directory",
            )

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in _LOOPBACK or name == self.host.lower():
            return True
        # Listening on all addresses it is reached by any; no name of somebody else's is one.
        return _address(self.host) in _ALL and _address(name) is not None

    def _opens(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        # Compared as bytes: the header may hold anything.
        same = hmac.compare_digest(token.strip().encode(), self.token.encode())
        return scheme.lower() == "bearer" and same


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


_ALL: Final = (ipaddress.IPv4Address("0.0.0.0"), ipaddress.IPv6Address("::"))  # noqa: S104 - recognised, not bound
