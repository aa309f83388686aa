# SPDX-License-Identifier: Apache-2.0
"""Whether a body is a call that a model can be asked (400 otherwise). Pure.

It checks what every model needs and no more: a real upstream judges the rest. The document is read
to be looked at; the bytes go on as they came.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rollout_router.gateway.model import Dialect

__all__ = ["BadRequest", "read_call"]


class BadRequest(ValueError):  # noqa: N818 - the name of the answer, 400
    """The body is not a call of its dialect; the message says why, for the one who sent it."""


def read_call(dialect: Dialect, body: bytes) -> Mapping[str, Any]:
    """Read *body* as a call of *dialect*.

    Raises:
        BadRequest: it is not one; nothing happened.
    """
    try:
        document = json.loads(body)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body has to be a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("'model' has to be a string that names a model")
    if not isinstance(document.get("stream", False), bool | None):
        raise BadRequest("'stream' has to be true or false")
    _CHECKS[dialect](document)
    return document


def _check_input(document: Mapping[str, Any]) -> None:
    if not isinstance(document.get("input"), str | list):
        raise BadRequest("'input' has to be a string or a list of items")


def _check_messages(document: Mapping[str, Any]) -> None:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("'messages' has to be a list of at least one message")
    if not all(isinstance(message, dict) for message in messages):
        raise BadRequest("each of 'messages' has to be an object")


_CHECKS: Mapping[Dialect, Callable[[Mapping[str, Any]], None]] = {
    Dialect.RESPONSES: _check_input,
    Dialect.CHAT: _check_messages,
    Dialect.MESSAGES: _check_messages,
}
