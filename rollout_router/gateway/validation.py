# SPDX-License-Identifier: Apache-2.0
"""Whether a body is a call that a model can be asked (400 otherwise). Pure.

It checks what every model needs and no more: a real upstream judges the rest. The document is read
to be looked at; the bytes go on as they came.

A body of many megabytes belongs in a thread, and that alone would not do: the decoder keeps the
interpreter's lock for as long as it runs. So text is decoded in slices, and each object of the
document passes through Python, where other threads get their turn.
"""

import codecs
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from rollout_router.gateway.model import Dialect

__all__ = ["BadRequest", "check_call", "read_call"]

_SLICE_BYTES: Final = 1 << 20
_READ: Final[dict[str, Any]] = {}  # stands for an object that was read and let go
_Hook = Callable[[dict[str, Any]], dict[str, Any]]


class BadRequest(ValueError):  # noqa: N818 - the name of the answer, 400
    """The body is not a call of its dialect; the message says why, for the one who sent it."""


def read_call(dialect: Dialect, body: bytes) -> Mapping[str, Any]:
    """Read *body* as a call of *dialect*.

    Raises:
        BadRequest: it is not one; nothing happened.
    """
    return _checked(dialect, _parsed(body, _as_it_is))


def check_call(dialect: Dialect, body: bytes) -> None:
    """Check *body* as :func:`read_call` does, and keep nothing of it.

    Each object inside is let go once it is read, so this needs the memory of the text and of the
    strings and lists outside of them.

    Raises:
        BadRequest: it is not a call; nothing happened.
    """
    outermost = _Outermost()
    document = _parsed(body, outermost)
    _checked(dialect, outermost.last if document is _READ else document)


def _parsed(body: bytes, hook: _Hook) -> Any:
    try:
        return json.loads(_text(body), object_hook=hook)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        raise BadRequest(f"the body is not JSON: {error}") from None


def _text(body: bytes) -> str:
    """*body* as ``json.loads`` would decode it."""
    encoding = json.detect_encoding(body)
    if len(body) <= _SLICE_BYTES:
        return body.decode(encoding, "surrogatepass")
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    slices = (body[at : at + _SLICE_BYTES] for at in range(0, len(body), _SLICE_BYTES))
    return "".join([*map(decoder.decode, slices), decoder.decode(b"", final=True)])


def _as_it_is(read: dict[str, Any]) -> dict[str, Any]:
    return read


class _Outermost:
    """Lets go of every object but the last one read, which is the outermost."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}

    def __call__(self, read: dict[str, Any]) -> dict[str, Any]:
        self.last = read
        return _READ


def _checked(dialect: Dialect, document: Any) -> Mapping[str, Any]:
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
