# SPDX-License-Identifier: Apache-2.0
"""Records and their bytes: a whole record or none (C5)."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.claims.envelope import Malformed
from rollout_router.claims.epochs import CLAIM_EPOCH_MAX
from rollout_router.claims.names import (
    file_name,
    new_nonce,
    stripe_of,
    valid_nonce,
    valid_rollout_id,
)
from rollout_router.claims.record import (
    Claim,
    Owner,
    OwnerIdentity,
    Previous,
    decode_claim,
    decode_identity,
    encode_claim,
    encode_identity,
)

CLAIM = Claim(
    kind="rollout",
    rollout_id="task-1.attempt_2",
    claim_epoch=(1 << 32) + 7,
    state="owned",
    owner=Owner(nonce="a1b2", inode=42),
    previous=Previous(claim_epoch=3, nonce="c3d4"),
    at="2026-11-29T12:00:00.123456Z",
)
IDENTITY = OwnerIdentity(
    nonce="a1b2",
    inode=42,
    pid=7,
    started_at=1796000000.25,
    boot_id="boot-one",
    socket="/run/r/a1b2.sock",
    service="model",
    at="2026-11-29T12:00:00Z",
)
FIELDS = json.loads(encode_claim(CLAIM))
ROLLOUT_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", fullmatch=True)


def sealed(fields: dict[str, Any], *, body: bytes | None = None) -> bytes:
    """A record with a true checksum over whatever *fields* say."""
    fields.pop("sha256", None)
    body = json.dumps(fields)[:-1].encode() if body is None else body
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def changed(**fields: Any) -> bytes:
    return sealed({**FIELDS, **fields})


def without(name: str) -> bytes:
    return sealed({key: value for key, value in FIELDS.items() if key != name})


@settings(max_examples=40)
@given(rollout_id=ROLLOUT_IDS, epoch=st.integers(1, CLAIM_EPOCH_MAX), reason=st.text(max_size=200))
def test_c5_a_claim_reads_as_it_was_written(rollout_id: str, epoch: int, reason: str) -> None:
    claim = replace(CLAIM, kind="session", rollout_id=rollout_id, claim_epoch=epoch, reason=reason)

    assert decode_claim(encode_claim(claim)) == claim


def test_c5_an_owner_identity_reads_as_it_was_written() -> None:
    assert decode_identity(encode_identity(IDENTITY)) == IDENTITY


@given(cut=st.integers(0, len(encode_claim(CLAIM).rstrip()) - 1))
def test_c5_a_record_that_was_cut_off_is_no_record(cut: int) -> None:
    with pytest.raises(Malformed):
        decode_claim(encode_claim(CLAIM)[:cut])


@given(at=st.integers(0, len(encode_claim(CLAIM).rstrip()) - 1), bit=st.integers(0, 7))
def test_c5_a_record_with_one_bit_turned_is_no_record(at: int, bit: int) -> None:
    raw = bytearray(encode_claim(CLAIM))
    raw[at] ^= 1 << bit

    with pytest.raises(Malformed):
        decode_claim(bytes(raw))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(b"", "empty", id="no bytes"),
        pytest.param(b"\n", "checksum", id="a newline"),
        pytest.param(b"\0" * 300, "checksum", id="zeros, as after a power cut"),
        pytest.param(encode_claim(CLAIM)[:-9] + b"\0" * 9, "checksum", id="zeros at the end"),
        pytest.param(json.dumps(FIELDS).encode(), "checksum", id="written by hand"),
        pytest.param(b"9" * 400_000, "too_large", id="400 kB of digits"),
        pytest.param(b"[" * 4096, "checksum", id="brackets"),
        pytest.param(changed(x="y" * 4096), "too_large", id="above 4 KiB"),
        pytest.param(sealed({}, body=b"{" + b"[" * 3000), "not_json", id="brackets, sealed"),
        pytest.param(sealed({}, body=b'{"v":\xff'), "not_json", id="no UTF-8, sealed"),
        pytest.param(changed(v=2), "newer_format", id="a newer format"),
        pytest.param(changed(v=0), "version", id="a version that never was"),
        pytest.param(changed(v="1"), "version", id="a version in quotes"),
        pytest.param(changed(v=True), "version", id="a version that is true"),
        pytest.param(without("v"), "version", id="no version"),
        *[pytest.param(without(n), "field", id=f"no {n}") for n in FIELDS if n in CLAIM.__slots__
          and n != "reason"],
        pytest.param(changed(claim_epoch=0), "field", id="epoch 0"),
        pytest.param(changed(claim_epoch=-1), "field", id="epoch -1"),
        pytest.param(changed(claim_epoch=2**63), "field", id="epoch 2**63"),
        pytest.param(changed(claim_epoch=1.0), "field", id="epoch with a point"),
        pytest.param(changed(claim_epoch=True), "field", id="epoch true"),
        pytest.param(changed(claim_epoch="7"), "field", id="epoch in quotes"),
        pytest.param(changed(claim_epoch=None), "field", id="epoch null"),
        pytest.param(changed(kind="lease"), "field", id="another kind"),
        pytest.param(changed(kind=["rollout"]), "field", id="a list of kinds"),
        pytest.param(changed(state="released"), "field", id="another state"),
        pytest.param(changed(state="lost"), "field", id="a rollout that is lost"),
        pytest.param(changed(rollout_id="../x"), "field", id="a path for an id"),
        pytest.param(changed(rollout_id=""), "field", id="an empty id"),
        pytest.param(changed(rollout_id="a" * 201), "field", id="a long id"),
        pytest.param(changed(rollout_id="a\n"), "field", id="an id with a newline"),
        pytest.param(changed(owner="a1b2"), "field", id="an owner that is text"),
        pytest.param(changed(owner={"nonce": "../x", "inode": 1}), "field", id="a path as nonce"),
        pytest.param(changed(owner={"nonce": "a", "inode": 0}), "field", id="inode 0"),
        pytest.param(changed(previous={"nonce": "a"}), "field", id="half a previous"),
        pytest.param(changed(previous=7), "field", id="previous that is a number"),
        pytest.param(changed(at="yesterday"), "field", id="another time format"),
        pytest.param(changed(at="2026-11-29T12:00:00+01:00"), "field", id="another time zone"),
        pytest.param(changed(reason="x" * 201), "field", id="a long reason"),
    ],
)  # fmt: skip
def test_c5_what_is_no_claim_is_named(raw: bytes, code: str) -> None:
    with pytest.raises(Malformed) as raised:
        decode_claim(raw)

    assert raised.value.code == code


def test_c5_a_reader_ignores_fields_that_it_does_not_know() -> None:
    assert decode_claim(changed(colour="red")) == CLAIM


def test_c5_a_reader_does_without_a_reason() -> None:
    assert decode_claim(without("reason")) == CLAIM


@pytest.mark.parametrize("name", [n for n in OwnerIdentity.__slots__ if n != "at"])
@pytest.mark.parametrize("value", [None, True, [], ""], ids=repr)
def test_c5_an_identity_with_a_wrong_field_is_no_identity(name: str, value: object) -> None:
    fields = {**json.loads(encode_identity(IDENTITY)), name: value}

    with pytest.raises(Malformed):
        decode_identity(sealed(fields))


@given(first=st.integers(1, 2**40), ahead=st.integers(1, 255))
def test_c1_later_epochs_have_other_sizes(first: int, ahead: int) -> None:
    """A signature holds also where inode and coarse change time repeat."""
    earlier = encode_claim(replace(CLAIM, claim_epoch=first))
    later = encode_claim(replace(CLAIM, claim_epoch=first + ahead))

    assert len(earlier) != len(later)


@given(one=ROLLOUT_IDS, other=ROLLOUT_IDS)
def test_c1_two_ids_never_share_a_file_also_where_case_is_folded(one: str, other: str) -> None:
    assert (file_name(one).casefold() == file_name(other).casefold()) == (one == other)


@given(rollout_id=ROLLOUT_IDS)
def test_c1_a_file_name_is_safe(rollout_id: str) -> None:
    name = file_name(rollout_id)

    assert len(name) <= 180
    assert name.startswith("r.")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def test_c1_the_names_of_files_are_part_of_the_format() -> None:
    """Another encoding or stripe would let an old and a new worker both own a rollout."""
    assert file_name("Ab.c_d-9") == "r._41b_2ec_5fd-9"
    assert (
        file_name("Z" * 80) == "r." + "_5a" * 32 + "_5_.h" + hashlib.sha256(b"Z" * 80).hexdigest()
    )
    assert stripe_of("Ab.c_d-9") == hashlib.sha256(b"Ab.c_d-9").hexdigest()[:2]


@pytest.mark.parametrize("text", ["", ".a", "-a", "_a", "a/b", "a b", "é", "a\n", "a" * 201, "%41"])
def test_c1_what_is_no_rollout_id_is_refused(text: str) -> None:
    assert not valid_rollout_id(text)


def test_c1_a_nonce_is_random_and_safe() -> None:
    nonces = {new_nonce() for _ in range(1000)}

    assert len(nonces) == 1000
    assert all(valid_nonce(nonce) and len(nonce) <= 32 for nonce in nonces)
