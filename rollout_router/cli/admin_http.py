# SPDX-License-Identifier: Apache-2.0
"""One request to an admin address, and its answer, with the standard library alone."""

import http.client
from collections.abc import Mapping
from urllib.parse import urlsplit

__all__ = ["Unreachable", "exchanged"]


class Unreachable(Exception):  # noqa: N818 - named by what happened
    """There was no answer; the message is the error that came instead."""


def exchanged(
    url: str,
    target: str,
    *,
    timeout_s: float,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body of the answer to a request for *target*, as it is sent, below *url*.

    Raises:
        Unreachable: see the message.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=timeout_s)
    try:
        connection.request(method, parts.path.rstrip("/") + target, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unreachable(repr(error)) from error
    finally:
        connection.close()
