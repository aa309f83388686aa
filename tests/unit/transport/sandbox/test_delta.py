# SPDX-License-Identifier: Apache-2.0
import json
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.transport.sandbox import delta as delta_module
from rollout_router.transport.sandbox.delta import (
    Op,
    apply,
    common_prefix,
    common_suffix,
    encode,
)

SNIPPETS = [b'{"role":"user","content":"', b'"},', b"a", b"0123456789" * 5, b"\x00\xff", b"]}"]


def texts() -> st.SearchStrategy[bytes]:
    """Byte strings that repeat themselves as conversations do."""
    return st.lists(st.sampled_from(SNIPPETS) | st.binary(max_size=40), max_size=24).map(b"".join)


@settings(deadline=None)
@given(base=texts(), target=texts())
def test_d1_applying_a_delta_yields_the_target(base: bytes, target: bytes) -> None:
    assert apply(base, *encode(base, target)) == target


@settings(deadline=None)
@given(base=texts(), start=texts(), end=texts(), at=st.integers(0, 400))
def test_d1_holds_around_an_edit(base: bytes, start: bytes, end: bytes, at: int) -> None:
    target = start + base[:at] + end + base[at:]

    assert apply(base, *encode(base, target)) == target


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("differs_at", [0, 1, 65_535, 65_536, 131_072])
def test_d1_prefix_and_suffix_are_exact_at_block_borders(size: int, differs_at: int) -> None:
    old = random.Random(size).randbytes(size)  # noqa: S311 - test data
    new = bytearray(old)
    if differs_at < size:
        new[differs_at] ^= 1
    shared = min(differs_at, size)

    assert common_prefix(old, bytes(new)) == shared
    assert common_suffix(old, bytes(new)) == (size - shared - 1 if differs_at < size else size)


def conversation(*items: str, tail: str = '],"model":"m"}') -> bytes:
    return ('{"messages":[' + ",".join(items) + tail).encode()


ITEMS = [
    json.dumps({"role": "user", "content": f"{i} {random.Random(i).randbytes(120).hex()}"})  # noqa: S311 - test data
    for i in range(30)
]


def test_growth_costs_what_grew() -> None:
    old = conversation(*ITEMS[:20])
    new = conversation(*ITEMS[:20], json.dumps({"content": "unlike anything before"}))

    ops, inserted = encode(old, new)

    assert ops[0] == Op(0, old.index(b'],"model"'))
    assert len(ops) == 2
    assert inserted == new[ops[0].size :]


def test_a_moved_marker_costs_its_own_length() -> None:
    marked = [item[:-1] + ',"cache_control":{"type":"ephemeral"}}' for item in ITEMS]
    old = conversation(*ITEMS[:18], *marked[18:20])
    new = conversation(*ITEMS[:19], *marked[19:21])

    delta = encode(old, new)

    assert apply(old, *delta) == new
    assert len(delta.inserted) < 2 * len(marked[20])


def test_a_replaced_word_costs_little() -> None:
    old = conversation(*ITEMS)
    new = old.replace(b'"7 ', b'"seven ')
    assert new != old

    assert len(encode(old, new).inserted) < 100


def test_what_was_dropped_at_the_front_costs_nothing() -> None:
    old, new = conversation(*ITEMS), conversation(*ITEMS[10:])

    assert len(encode(old, new).inserted) < 40


def test_a_summary_in_place_of_the_middle_costs_its_own_length() -> None:
    summary = json.dumps({"content": "SUMMARY " * 100})
    old = conversation(*ITEMS)
    new = conversation(*ITEMS[:3], summary, *ITEMS[20:], json.dumps({"content": "and more"}))

    assert len(encode(old, new).inserted) < len(summary) + 120


def test_keys_in_another_order_cost_their_operations() -> None:
    fields = {f"x-field-{n}": random.Random(n).randbytes(20).hex() for n in range(8)}  # noqa: S311 - test data
    old = conversation(*ITEMS, tail="]," + json.dumps(fields)[1:])
    new = conversation(*ITEMS, tail="]," + json.dumps(dict(reversed(fields.items())))[1:])

    assert len(encode(old, new).inserted) < 40


def test_members_in_another_order_cost_nothing() -> None:
    tools = json.dumps([{"name": f"tool{n}", "description": ITEMS[n]} for n in range(6)])
    messages = json.dumps([{"role": "user", "content": item} for item in ITEMS[6:]])
    old = f'{{"messages":{messages},"model":"m","tools":{tools}}}'.encode()
    new = f'{{"model":"m","tools":{tools},"messages":{messages}}}'.encode()

    assert len(encode(old, new).inserted) < 60


def test_items_in_another_order_cost_their_operations() -> None:
    ops, inserted = encode(conversation(*ITEMS), conversation(*reversed(ITEMS)))

    assert len(inserted) < 40
    assert len(ops) < 2 * len(ITEMS)


def test_nothing_in_common_is_one_insert() -> None:
    base, target = bytes(1 << 20), b"\x01" * (1 << 20)

    assert encode(base, target) == ([Op(None, 1 << 20)], target)


@pytest.mark.parametrize(
    ("ops", "inserted"),
    [
        pytest.param([Op(0, 4)], b"", id="beyond the base"),
        pytest.param([Op(4, 1)], b"", id="behind the base"),
        pytest.param([Op(-1, 1)], b"", id="before the base"),
        pytest.param([Op(None, 2)], b"x", id="too few inserted bytes"),
        pytest.param([Op(None, 1)], b"xy", id="too many inserted bytes"),
    ],
)
def test_d2_operations_outside_what_is_there_are_refused(ops: list[Op], inserted: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        apply(b"abc", ops, inserted)


class Read(bytes):
    """Counts the bytes that are read of it: those that are taken out, and those searched."""

    bytes_read = 0

    def find(self, sub: object, start: object = 0, end: object = sys.maxsize) -> int:
        assert isinstance(sub, bytes)
        assert isinstance(start, int)
        assert isinstance(end, int)
        found = super().find(sub, start, end)
        self.bytes_read += (found if found >= 0 else min(end, len(self))) - start
        return found

    def rfind(self, sub: object, start: object = 0, end: object = sys.maxsize) -> int:
        assert isinstance(sub, bytes)
        assert isinstance(start, int)
        assert isinstance(end, int)
        self.bytes_read += min(end, len(self)) - start
        return super().rfind(sub, start, end)

    def __getitem__(self, key: object) -> bytes:  # type: ignore[override]  # slices alone
        assert isinstance(key, slice)
        taken = super().__getitem__(key)
        self.bytes_read += len(taken)
        return taken


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - test data


def scattered() -> tuple[bytes, bytes]:
    """What they share stands so far apart that each step reads long stretches of both in vain."""
    shared = [noise(seed, 32) for seed in range(30)]
    base = b"".join(noise(100 + seed, 70_000) + run for seed, run in enumerate(shared))
    return base, b"".join(noise(200 + seed, 8_192) + run for seed, run in enumerate(shared))


def edited_everywhere() -> tuple[bytes, bytes]:
    items = [noise(seed, 100) for seed in range(3_000)]
    return b"".join(items), b"".join(b"%b%d" % (item, n) for n, item in enumerate(items))


HARD = {
    "scattered": scattered(),
    "edited everywhere": edited_everywhere(),
    "nothing in common": (noise(1, 300_000), noise(2, 300_000)),
    "a long base": (noise(3, 5_000_000), noise(4, 20_000)),
    "one byte again and again": (b"a" * 300_000, (b"a" * 999 + b"b") * 300),
    "a period": (b'"abcdefghijklmnopqrstuvwxyz"' * 9_000, b'"abcdefghijklmnopqrstuvwxy"' * 9_000),
    "strings in reverse": (
        b"".join(b'"%b"' % noise(seed, 40).hex().encode() for seed in range(3_000)),
        b"".join(b'"%b"' % noise(seed, 40).hex().encode() for seed in reversed(range(3_000))),
    ),
    "quotes": (b'"' * 200_000, b'"' * 100_000 + b"'" + b'"' * 100_000),
}


@pytest.mark.parametrize("name", HARD)
def test_d1_the_work_is_bounded_by_the_body(name: str) -> None:
    base, target = Read(HARD[name][0]), Read(HARD[name][1])

    delta = encode(base, target)

    assert base.bytes_read + target.bytes_read <= 32 * len(target) + (1 << 20)
    assert len(delta.ops) <= 1_025
    assert apply(base, *delta) == target


def test_d1_the_search_reads_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_module, "_SCAN_BYTES_MAX", 100_000)
    base, target = (Read(body) for body in scattered())

    delta = encode(base, target)

    ends = 2 * 65_536  # where both differ at once, and what the strings reach beyond
    strings = len(base) + len(target)
    one_more = max(len(base), len(target))  # the scan that used it up runs to its end
    assert base.bytes_read + target.bytes_read <= 100_000 + strings + one_more + ends
    assert apply(base, *delta) == target


def test_d1_the_number_of_operations_is_bounded() -> None:
    base, target = edited_everywhere()

    delta = encode(base, target)

    assert 1_000 <= len(delta.ops) <= 1_025  # 512 copies, and an insert beside each
    assert apply(base, *delta) == target
