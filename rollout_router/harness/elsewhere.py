# SPDX-License-Identifier: Apache-2.0
"""Has a rollout owned by the worker that a shim's connection does not end at: its calls take a hop.

A rollout belongs to the worker where it arrives first, so looking up the models in its name, over a
connection of our own, decides who owns it. A look-up is no call of a model.
"""

import http.client
from contextlib import ExitStack, closing
from typing import Final
from urllib.parse import urlsplit

__all__ = ["NotPlaced", "own_elsewhere"]

_CONNECTIONS_MAX: Final = 64
"""Each ends at one of two workers: that all end at the same one does not happen by chance."""
_PATIENCE_S: Final = 30.0


class NotPlaced(Exception):  # noqa: N818 - named by what did not happen
    """Who owns the rollout was left to chance; the message says why."""


def own_elsewhere(rollout_id: str, *, shim_url: str, gateway_url: str) -> None:
    """Give the rollout, which nobody owns yet, to the worker that the shim is not connected to.

    Raises:
        NotPlaced: it is owned by chance.
    """
    with ExitStack() as stack:

        def connected(url: str) -> http.client.HTTPConnection:
            return stack.enter_context(closing(_connection(url)))

        try:
            through_shim = _looked_up(connected(shim_url), "seen-by-the-shim")
            for number in range(_CONNECTIONS_MAX):
                connection = connected(gateway_url)
                if _looked_up(connection, f"seen-{number}") != through_shim:
                    _looked_up(connection, rollout_id)
                    return
        except (OSError, http.client.HTTPException) as error:
            raise NotPlaced(f"a look-up failed: {error!r}") from error
    raise NotPlaced(f"{_CONNECTIONS_MAX} connections ended all at worker {through_shim}")


def _connection(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_S)


def _looked_up(connection: http.client.HTTPConnection, rollout_id: str) -> str | None:
    """The worker that owns the rollout, which is the one at the connection where nobody did."""
    connection.request("GET", f"/ng-rollout/{rollout_id}/v1/models")
    response = connection.getresponse()
    response.read()
    return response.headers["Rollout-Worker"]
