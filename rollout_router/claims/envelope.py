# SPDX-License-Identifier: Apache-2.0
"""What every record of a store is wrapped in: a version before it, a checksum behind it (law C5).

A record is one JSON object of at most 4 KiB whose last member is a sha256 over the bytes before it,
so a reader takes a whole record or none (C5). Reading is tolerant of unknown fields; writing is
strict. A newer ``v`` is refused and never guessed at. Pure.
"""

import hashlib
import json
import re
from typing import Any, Final

__all__ = ["RECORD_BYTES_MAX", "Malformed", "open_envelope", "seal_envelope"]

FORMAT_VERSION: Final = 1
RECORD_BYTES_MAX: Final = 4096
_ENVELOPE: Final = re.compile(rb'(\{.+),"sha256":"([0-9a-f]{64})"\}[ \n]*', re.DOTALL)
_SIGNATURE_MODULUS: Final = 256


class Malformed(ValueError):  # noqa: N818 - names the state of the bytes
    """Bytes that are no record. ``code`` is one of the codes of ``ClaimUnreadable``."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


def seal_envelope(fields: dict[str, Any], *, remainder: int | None = None) -> bytes:
    """The bytes of one record: *fields*, a format version before them, a checksum behind them.

    Args:
        fields: JSON values.
        remainder: when given, spaces make the size congruent to it modulo 256.

    Raises:
        ValueError: the record would be above 4 KiB.
    """
    body = json.dumps({"v": FORMAT_VERSION, **fields}, separators=(",", ":"))[:-1].encode()
    raw = body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
    if remainder is not None:
        raw += b" " * ((remainder - len(raw) - 1) % _SIGNATURE_MODULUS)
    raw += b"\n"
    if len(raw) > RECORD_BYTES_MAX:
        raise ValueError("a record has at most 4096 bytes")
    return raw


def open_envelope(raw: bytes) -> dict[str, Any]:
    """The fields of one record, its checksum verified.

    Raises:
        Malformed: ``empty``, ``too_large``, ``checksum``, ``not_json``, ``version`` or
            ``newer_format``.
    """
    if not raw:
        raise Malformed("empty")
    if len(raw) > RECORD_BYTES_MAX:
        raise Malformed("too_large")
    match = _ENVELOPE.fullmatch(raw)
    if match is None or hashlib.sha256(match[1]).hexdigest().encode() != match[2]:
        raise Malformed("checksum")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Malformed("not_json") from error
    version = fields.get("v")
    if type(version) is not int or version < 1:
        raise Malformed("version")
    if version > FORMAT_VERSION:
        raise Malformed("newer_format")
    return dict(fields)
