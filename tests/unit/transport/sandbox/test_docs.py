# SPDX-License-Identifier: Apache-2.0
"""docs/wire.md says what the code does: its examples are frames, its table is the table."""

import itertools
import json
import re
import zlib
from pathlib import Path

import pytest
from support.wire_page import PAGE, Written, block, message, with_bytes

from rollout_router.transport.sandbox import frame as frame_module
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.client import (
    Abort,
    Client,
    Deliver,
    Link,
    Outgoing,
    ResendFull,
)
from rollout_router.transport.sandbox.flags import FLAGS
from rollout_router.transport.sandbox.frame import Frame, parse_frame, rebuild
from rollout_router.transport.sandbox.stages import Laps, Timings
from rollout_router.transport.sandbox.transitions import TRANSITIONS, Sent

ORIGIN = "http://gateway:8000"
REQUESTS = ["first", "second", "third", "packed"]
ANSWERS = [f"{name}-answer" for name in [*REQUESTS, "malformed", "unsupported"]]


def built(name: str, base: bytes) -> bytes:
    return rebuild(parse_frame(message(name).body, length_max=1_000), base)


FIRST = message("first").body
SECOND = built("second", FIRST)
THIRD = built("third", SECOND)


def written_by_a_harness(body: bytes) -> wire.Headers:
    (host, content_type, *_) = message("first").headers
    return [host, content_type, ("Content-Length", str(len(body)))]


def settled(client: Client, outgoing: Outgoing, name: str) -> Deliver | ResendFull | Abort:
    start, headers, body = message(name)
    return client.settle(outgoing, int(start.split()[1]), headers, body)


def assert_as_written(outgoing: Outgoing, page: Written) -> None:
    """Another zlib may pack the same bytes otherwise; all else is exact."""
    if outgoing.sent is Sent.FULL:
        assert outgoing.payload == page.body
        assert outgoing.headers == page.headers
        return
    ours, theirs = (parse_frame(body, length_max=1_000) for body in (outgoing.payload, page.body))
    assert ours._replace(payload=b"") == theirs._replace(payload=b"")
    assert outgoing.payload.partition(b"\n")[0] == page.body.partition(b"\n")[0]
    length = str(len(page.body))
    assert wire.replaced(outgoing.headers, "Content-Length", length) == page.headers


@pytest.mark.parametrize(
    "frame_bytes", [block("frame"), with_bytes(block("deflated"))], ids=["plain", "deflated"]
)
def test_d1_the_frame_of_the_page_builds_its_target(frame_bytes: bytes) -> None:
    frame = parse_frame(frame_bytes, length_max=30)

    assert frame.base == wire.sha256_hex(block("base"))
    assert f"kept={frame.base}" in PAGE
    assert frame.type == "application/json"
    assert rebuild(frame, block("base")) == block("target")


@pytest.mark.parametrize("name", [*REQUESTS, *ANSWERS])
def test_a_message_of_the_page_is_as_long_as_it_says(name: str) -> None:
    _, headers, body = message(name)

    lengths = [value for key, value in headers if key.lower() == "content-length"]
    assert lengths == [str(len(body))]


def test_the_requests_of_the_page_are_of_one_rollout() -> None:
    starts = {message(name).start for name in REQUESTS}
    assert starts == {"POST /ng-rollout/r1/v1/chat/completions HTTP/1.1"}


def test_d1_the_frames_of_the_page_build_on_one_another() -> None:
    assert built("packed", b"") == THIRD
    assert (len(FIRST), len(SECOND), len(THIRD)) == (434, 489, 758)  # as the page says


def copied_first(frame: Frame, base: bytes) -> bytes:
    """What the operations before the first insert build."""
    leading = itertools.takewhile(lambda op: op.offset is not None, frame.ops)
    return b"".join(base[op.offset : (op.offset or 0) + op.size] for op in leading)


def inserted(frame: Frame, target: bytes) -> bytes:
    ends = itertools.accumulate(op.size for op in frame.ops)
    steps = zip(frame.ops, ends, strict=True)
    return b"".join(target[end - op.size : end] for op, end in steps if op.offset is None)


def test_d1_the_dictionary_of_the_page_is_that_of_its_frame() -> None:
    frame = parse_frame(message("third").body, length_max=1_000)

    dictionary = copied_first(frame, SECOND)
    named = zlib.adler32(dictionary)
    assert dictionary == SECOND[0 : 166 + 1] + SECOND[244 : 287 + 1]
    assert frame.payload.hex().startswith(f"78bb{named:08x}")
    assert (
        f"the {len(dictionary)} bytes that are 0 to 166 and 244 to 287 of the base. So the stream"
        f" begins with `78bb` and the Adler-32 of the dictionary, `{named:08x}`"
    ) in PAGE.replace("\n", " ")


COMPRESSED = [
    pytest.param(with_bytes(block("deflated")), block("base"), block("target"), id="deflated"),
    pytest.param(message("third").body, SECOND, THIRD, id="third"),
    pytest.param(message("packed").body, b"", THIRD, id="packed"),
]


@pytest.mark.skipif("ng" in zlib.ZLIB_RUNTIME_VERSION, reason="it packs the same bytes otherwise")
@pytest.mark.parametrize(("body", "base", "target"), COMPRESSED)
def test_d1_the_compressed_bytes_of_the_page_are_those_of_zlib(
    body: bytes, base: bytes, target: bytes
) -> None:
    frame = parse_frame(body, length_max=1_000)

    dictionary = copied_first(frame, base)
    packer = zlib.compressobj(6, zdict=dictionary) if dictionary else zlib.compressobj(6)
    assert frame.payload == packer.compress(inserted(frame, target)) + packer.flush()


@pytest.mark.parametrize(("body", "base", "target"), COMPRESSED)
def test_d1_a_stream_that_does_not_use_its_dictionary_inflates_all_the_same(
    body: bytes, base: bytes, target: bytes
) -> None:
    """The page says so to those whose zlib can set none."""
    frame = parse_frame(body, length_max=1_000)

    other = frame._replace(payload=zlib.compress(inserted(frame, target)))

    assert rebuild(other, base) == target


def test_s1_the_sending_side_writes_the_conversation_of_the_page() -> None:
    client = Client(clock=lambda: 0.0)
    for name, body in (("first", FIRST), ("second", SECOND)):
        outgoing = client.prepare(ORIGIN, "r1", written_by_a_harness(body), body)
        assert_as_written(outgoing, message(name))
        assert isinstance(settled(client, outgoing, f"{name}-answer"), Deliver)
    outgoing = client.prepare(ORIGIN, "r1", written_by_a_harness(THIRD), THIRD)
    assert_as_written(outgoing, message("third"))

    again = settled(client, outgoing, "third-answer")

    assert isinstance(again, ResendFull)
    assert again.outgoing.sent is Sent.PACKED
    assert_as_written(again.outgoing, message("packed"))
    answer = settled(client, again.outgoing, "packed-answer")
    assert answer == Deliver(wire.without(message("packed-answer").headers, "Rollout-History"))
    assert client.link(ORIGIN) is Link.ON


@pytest.mark.parametrize("refused", ["malformed-answer", "unsupported-answer"])
def test_s4_a_refused_frame_of_the_page_is_followed_by_the_plain_body(refused: str) -> None:
    client = Client(clock=lambda: 0.0)
    first = client.prepare(ORIGIN, "r1", written_by_a_harness(FIRST), FIRST)
    settled(client, first, "first-answer")
    headers = written_by_a_harness(SECOND)

    again = settled(client, client.prepare(ORIGIN, "r1", headers, SECOND), refused)

    assert isinstance(again, ResendFull)
    assert (again.outgoing.sent, again.outgoing.headers) == (Sent.PLAIN, headers)
    assert again.outgoing.payload == SECOND
    assert client.link(ORIGIN) is Link.OFF


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
    laps.line = dict.fromkeys(("rollout", "sent", "sha256", "bytes_full", "bytes_sent"))
    Timings(str(file), report=pytest.fail).write(laps, [])

    assert list(json.loads(file.read_text())) == list(json.loads(block("json")))
    sent = re.search(r"\| `sent` \| (.*?) as above", PAGE)
    assert sent is not None
    assert re.findall(r"`(\w+)`", sent[1]) == [one.value for one in Sent]


def test_the_numbers_of_the_page_are_the_numbers_of_the_code() -> None:
    assert wire.EMPTY_SHA256 in PAGE
    assert f"{wire.LINE_BYTES_MAX:,} bytes" in PAGE
    assert f"{wire.OPS_MAX:,} operations" in PAGE
    assert f"{wire.DICTIONARY_BYTES:,} bytes" in PAGE
    assert f"at most {wire.COPY_TIMES_MAX} times" in PAGE
    for mark, most in frame_module.marks_max(wire.OPS_MAX).items():
        assert f"{most:,} `{mark.decode()}`" in PAGE
