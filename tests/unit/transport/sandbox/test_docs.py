# SPDX-License-Identifier: Apache-2.0
"""docs/wire.md says what the code does: its example is a frame, its table is the table."""

import json
import re
from pathlib import Path

import pytest

from rollout_router.transport.sandbox import frame as frame_module
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.flags import FLAGS
from rollout_router.transport.sandbox.frame import parse_frame, rebuild
from rollout_router.transport.sandbox.stages import Laps, Timings
from rollout_router.transport.sandbox.transitions import TRANSITIONS

PAGE = (Path(__file__).parents[4] / "docs" / "wire.md").read_text(encoding="utf-8")


def block(name: str) -> bytes:
    found = re.search(f"```{name}\n(.*?)\n```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1).encode()


def deflated() -> bytes:
    line, _, stream = block("deflated").partition(b"\n")
    return line + b"\n" + bytes.fromhex(stream.decode())


@pytest.mark.parametrize("frame_bytes", [block("frame"), deflated()], ids=["plain", "deflated"])
def test_d1_the_frame_of_the_page_builds_its_target(frame_bytes: bytes) -> None:
    frame = parse_frame(frame_bytes, length_max=30)

    assert frame.base == wire.sha256_hex(block("base"))
    assert f"kept={frame.base}" in PAGE
    assert rebuild(frame, block("base")) == block("target")


def test_s4_the_table_of_the_page_is_the_table_of_the_client() -> None:
    rows = [
        f"| {sent.value} | {signal.value} | {decision.value} | {effect.value} |"
        for (sent, signal), (decision, effect) in TRANSITIONS.items()
    ]

    table = PAGE.partition("| sent | the answer says |")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == rows


def test_the_flags_of_the_page_are_the_flags_of_the_shim() -> None:
    page = (Path(__file__).parents[4] / "docs" / "cli.md").read_text(encoding="utf-8")

    listed = re.findall(r"\| `--([a-z-]+)(?: ([A-Z]+))?` \|", page.partition("## `shim`")[2])
    assert listed == [(name, metavar or "") for name, (_, metavar, _) in FLAGS.items()]


def test_the_line_of_the_page_is_the_line_of_the_code(tmp_path: Path) -> None:
    laps, file = Laps(), tmp_path / "timings"
    laps.line = dict.fromkeys(("rollout", "sent", "bytes_full", "bytes_sent"))
    Timings(str(file), report=pytest.fail).write(laps, [])

    assert list(json.loads(file.read_text())) == list(json.loads(block("json")))


def test_the_numbers_of_the_page_are_the_numbers_of_the_code() -> None:
    assert wire.EMPTY_SHA256 in PAGE
    assert f"{wire.LINE_BYTES_MAX:,} bytes" in PAGE
    assert f"{wire.OPS_MAX:,} operations" in PAGE
    assert f"{wire.DICTIONARY_BYTES:,} bytes" in PAGE
    for mark, most in frame_module.marks_max(wire.OPS_MAX).items():
        assert f"{most:,} `{mark.decode()}`" in PAGE
