# SPDX-License-Identifier: Apache-2.0
"""What a published checkpoint says of itself. Pure.

One canonical JSON document with a digest of its own, in one form only: what is cut, changed, of
another form or has a field more is damaged, and what is whole but of another schema is unknown.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.wire import IDENTIFIER

__all__ = ["MANIFEST_BYTES_MAX", "SCHEMA", "Deliverable", "Heading", "Manifest"]

MANIFEST_BYTES_MAX: Final = 64 << 20
"""Bytes of one manifest; it protects memory. About 200,000 results that wait for their taker."""

SCHEMA: Final = 1

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverable:
    """A rollout that was completed, and whose result nobody acknowledged."""

    rollout_id: str
    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What a checkpoint is, besides its records.

    Raises:
        ValueError: a value has another form, or a rollout is named twice.
    """

    instance: str  # of the server that publishes it
    run: str  # of the training or evaluation: ids repeat between runs
    store_id: str
    checkpoint_id: str
    arguments_digest: str  # of what the checkpoint was asked with
    restarts: tuple[str, ...] = ()  # rollouts of which the input alone is in it
    deliverable: tuple[Deliverable, ...] = ()

    def __post_init__(self) -> None:
        waiting = [one.rollout_id for one in self.deliverable]
        named = (self.instance, self.run, self.store_id, self.checkpoint_id)
        identifiers: tuple[Any, ...] = (*named, *self.restarts, *waiting)  # as JSON may have them
        for identifier in identifiers:
            if not isinstance(identifier, str) or IDENTIFIER.fullmatch(identifier) is None:
                raise ValueError(f"not an id: {identifier!r:.210}")
        for text in (self.arguments_digest, *(one.receipt for one in self.deliverable)):
            _check_digest(text)
        if len({*self.restarts, *waiting}) != len(self.restarts) + len(waiting):
            raise ValueError("a rollout is named twice")

    @property
    def identity(self) -> tuple[str, ...]:
        """What is known of a checkpoint before its records are."""
        named = (self.instance, self.run, self.store_id, self.checkpoint_id)
        return (*named, self.arguments_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Heading):
    """A heading, and what its records are.

    Raises:
        ValueError: a value has another form.
    """

    records_sha256: str  # of the whole file
    records_bytes: int
    records_count: int

    def __post_init__(self) -> None:
        Heading.__post_init__(self)  # slots: a class made anew has no super() in its methods
        _check_digest(self.records_sha256)
        for number in (self.records_bytes, self.records_count):
            if type(number) is not int or number < 0:
                raise ValueError(f"not a size: {number!r:.40}")

    @classmethod
    def of(
        cls, heading: Heading, *, records_sha256: str, records_bytes: int, records_count: int
    ) -> Self:
        """The manifest of these records."""
        return cls(
            **{one.name: getattr(heading, one.name) for one in fields(Heading)},
            records_sha256=records_sha256,
            records_bytes=records_bytes,
            records_count=records_count,
        )

    def heading(self) -> Heading:
        """What it says besides its records."""
        return Heading(**{one.name: getattr(self, one.name) for one in fields(Heading)})

    @property
    def sha256(self) -> str:
        """Of all that it says."""
        return digest(canonical(self.document()))

    def to_bytes(self) -> bytes:
        """The content of the file.

        Raises:
            ValueError: it is longer than :data:`MANIFEST_BYTES_MAX`.
        """
        raw = canonical({**self.document(), "sha256": self.sha256}).encode()
        if len(raw) > MANIFEST_BYTES_MAX:
            raise ValueError(f"a manifest has at most {MANIFEST_BYTES_MAX} bytes, not {len(raw)}")
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read what :meth:`to_bytes` wrote, and nothing else.

        Raises:
            CheckpointRefusal: ``unknown_schema``.
            ValueError: it is damaged; the message says how.
        """
        document = _verified(raw)
        if (schema := document.pop("schema", None)) != SCHEMA:
            raise CheckpointRefusal(
                "unknown_schema",
                f"a manifest has schema {schema!r:.40}, this version knows {SCHEMA}: use the"
                " version that wrote it",
            )
        try:
            document["restarts"] = tuple(document["restarts"])
            document["deliverable"] = tuple(Deliverable(**one) for one in document["deliverable"])
            manifest = cls(**document)
        except (KeyError, TypeError) as error:  # a field is missing, unknown or of another type
            raise ValueError(f"the manifest has another form: {error}") from error
        if manifest.to_bytes() != raw:
            raise ValueError("the manifest is not written in its canonical form")
        return manifest

    def document(self) -> dict[str, Any]:
        """It, for JSON, without its digest."""
        return {**asdict(self), "schema": SCHEMA}


def _verified(raw: bytes) -> dict[str, Any]:
    """The document in *raw*, without its digest, which is right."""
    if len(raw) > MANIFEST_BYTES_MAX:
        raise ValueError(f"the manifest is longer than {MANIFEST_BYTES_MAX} bytes")
    try:
        document = json.loads(raw)
    except RecursionError:
        raise ValueError("the manifest is nested too deeply") from None
    if not isinstance(document, Mapping):
        raise ValueError("the manifest is no object")  # noqa: TRY004 - bad input, whatever its type
    rest = {name: value for name, value in document.items() if name != "sha256"}
    if document.get("sha256") != digest(canonical(rest)):
        raise ValueError("the manifest is not what was written")
    return rest


def _check_digest(text: Any) -> None:
    if not isinstance(text, str) or _DIGEST.fullmatch(text) is None:
        raise ValueError(f"not a digest: {text!r:.80}")
