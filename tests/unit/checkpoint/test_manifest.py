# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest

from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.manifest import Deliverable, Heading, Manifest

HEADING = Heading(
    instance="agent",
    run="run-1",
    store_id="store",
    checkpoint_id="step-10",
    arguments_digest=digest("arguments"),
    restarts=("r3",),
    deliverable=(Deliverable(rollout_id="r4", receipt=digest("receipt")),),
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest.of(HEADING, records_sha256=digest(""), records_bytes=0, records_count=0)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.heading() == HEADING


@pytest.mark.parametrize("name", ["instance", "checkpoint_id", "run", "store_id"])
@pytest.mark.parametrize("value", ["", "..", ".hidden", "a/b", "a\n", "x" * 201])
def test_a_name_has_the_form_of_an_id(name: str, value: str) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match="not an id"):
        replace(HEADING, **changes)


def test_a_rollout_is_named_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        replace(HEADING, restarts=("r4",))


def signed(**changes: Any) -> bytes:
    """A manifest with other fields, and a digest that is right."""
    manifest = Manifest.of(HEADING, records_sha256=digest(""), records_bytes=0, records_count=0)
    document = {**manifest.document(), **changes}
    document = {name: value for name, value in document.items() if value is not ...}
    return canonical({**document, "sha256": digest(canonical(document))}).encode()


def test_every_flipped_byte_and_every_cut_of_a_manifest_is_damage() -> None:
    raw = signed()
    flipped = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(len(raw))]
    cut = [raw[:at] for at in range(len(raw))]
    for damaged in [*flipped, *cut, raw + b" ", b"[]", b"[" * 100_000, b"\xff"]:
        with pytest.raises(ValueError):  # noqa: PT011 - whichever damage is seen first
            Manifest.from_bytes(damaged)


@pytest.mark.parametrize("schema", [2, "1", None, ...])
def test_another_schema_is_unknown(schema: Any) -> None:
    with pytest.raises(CheckpointRefusal) as caught:
        Manifest.from_bytes(signed(schema=schema))
    assert caught.value.code == "unknown_schema"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"more": 1}, "another form"),
        ({"run": ...}, "another form"),
        ({"run": 7}, "not an id: 7"),
        ({"restarts": 7}, "another form"),
        ({"restarts": [7]}, "not an id: 7"),
        ({"deliverable": [{"rollout_id": "r1"}]}, "another form"),
        ({"deliverable": [{"rollout_id": "r1", "receipt": "no"}]}, "not a digest"),
        ({"records_count": -1}, "not a size"),
        ({"records_bytes": True}, "not a size"),
        ({"records_bytes": 0.0}, "not a size"),
        ({"arguments_digest": "A" * 64}, "not a digest"),
    ],
    ids=str,
)
def test_a_manifest_with_other_fields_is_damage(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Manifest.from_bytes(signed(**changes))
