# SPDX-License-Identifier: Apache-2.0
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.gateway.turn_end import Ending, TurnScanner, ending_of

CHAT_OPEN = (
    b'data: {"choices":[{"delta":{"content":"h\xc3\xa9"},"finish_reason":null}]}\n\n'
    b": keep-alive\n\n"
    b'data: {"choices":[{"delta":{"content":"an error, [DONE] \\"finish_reason\\""},'
    b'"finish_reason": null}]}\n\n'
)
CHAT_END = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
    b"data: [DONE]\n\n"
)
MESSAGES_OPEN = (
    b'event: message_start\ndata: {"type":"message_start","message":{"stop_reason":null}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta",'
    b'"delta":{"type":"text_delta","text":"message_stop"}}\n\n'
)
MESSAGES_END = (
    b'event: message_delta\ndata: {"type":"message_delta",'
    b'"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
RESPONSES_OPEN = (
    b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
    b'"delta":"response.completed"}\n\n'
)
RESPONSES_END = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"x"}}\n\n'
)
STREAMS = [
    pytest.param(CHAT_OPEN, CHAT_END, id="chat"),
    pytest.param(MESSAGES_OPEN, MESSAGES_END, id="messages"),
    pytest.param(RESPONSES_OPEN, RESPONSES_END, id="responses"),
]


def scanned(parts: list[bytes], **settings: Any) -> tuple[bytes, bytes, TurnScanner]:
    scanner = TurnScanner(**settings)
    left = b"".join(scanner.add(part) for part in parts)
    return left, scanner.rest(), scanner


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize(("opening", "end"), STREAMS)
def test_f2_the_turn_end_is_withheld_wherever_the_stream_is_divided(
    opening: bytes, end: bytes, line_end: bytes
) -> None:
    opening, end = opening.replace(b"\n", line_end), end.replace(b"\n", line_end)
    stream = opening + end
    for at in range(len(stream) + 1):
        left, rest, scanner = scanned([stream[:at], stream[at:]])

        assert left + rest == stream
        assert (left, rest.lstrip(line_end)) == (opening, end), at
        assert scanner.ending is Ending.COMPLETED


@pytest.mark.parametrize(("opening", "end"), STREAMS)
def test_f2_one_byte_at_a_time_changes_nothing(opening: bytes, end: bytes) -> None:
    left, rest, _ = scanned([bytes([byte]) for byte in opening + end])

    assert (left, rest) == (opening, end)


@given(st.data())
def test_f2_any_bytes_in_any_parts_come_out_in_order(data: st.DataObject) -> None:
    fragments = st.sampled_from([
        b"\n", b"\r", b"\r\n", b"data: ", b"event: ", b"error", b"[DONE]", b"\xff",
        b'{"choices":[{"finish_reason":"stop"}]}', b'{"type":"x"}', b"message_stop",
    ])  # fmt: skip
    parts = data.draw(st.lists(st.lists(fragments).map(b"".join)))

    whole_left, whole_rest, whole = scanned([b"".join(parts)])
    left, rest, scanner = scanned(parts)

    assert left + rest == whole_left + whole_rest == b"".join(parts)
    assert (scanner.ended, scanner.ending) == (whole.ended, whole.ending)
    assert left.rstrip(b"\r\n") == whole_left.rstrip(b"\r\n")


def test_f2_an_open_event_waits_and_whole_ones_leave_at_once() -> None:
    scanner = TurnScanner()

    assert scanner.add(b'data: {"a":1}\n') == b""
    assert scanner.add(b"\ndata: ") == b'data: {"a":1}\n\n'
    assert scanner.add(b'{"b":2}\r\n\r\n') == b'data: {"b":2}\r\n\r\n'
    assert scanner.held_bytes == 0


@pytest.mark.parametrize(
    ("event", "ending"),
    [
        (b"data: [DONE]", Ending.COMPLETED),
        (b"data:[DONE]", Ending.COMPLETED),
        (b'data: {"choices":[{"finish_reason":"length"}]}', Ending.COMPLETED),
        (b'data: {"choices":[{"finish_reason":""}]}', Ending.COMPLETED),
        (b'data: {"choices":[{"finish_reason":null},{"finish_reason":"stop"}]}', Ending.COMPLETED),
        (b'data: {"choices":[{"finish_reason" :\ndata: "stop"}]}', Ending.COMPLETED),
        (b'data: {"choices":[{"finish_reason"\ndata: : "stop"}]}', Ending.COMPLETED),
        (b'\xef\xbb\xbfdata: {"choices":[{"finish_reason":"stop"}]}', Ending.COMPLETED),
        (b'data: {"choices":[{"finish_reason":"error"}]}', Ending.FAILED),
        (b'data: {"error":{"message":"busy"}}', Ending.FAILED),
        (b'data: {"object":"error","message":"busy"}', Ending.FAILED),
        (b'event: error\ndata: {"type":"error"}', Ending.FAILED),
        (b"event: error\ndata: busy", Ending.FAILED),
        (b'data: {"type":"error","code":"x"}', Ending.FAILED),
        (b'data: {"type":"response.failed"}', Ending.FAILED),
        (b'data: {"type":"response.incomplete"}', Ending.COMPLETED),
        (b'data: {"type":"message_stop"}', Ending.COMPLETED),
        (b'data: {"type":"message_delta","delta":{"stop_reason":"refusal"}}', Ending.COMPLETED),
        (b'data: {"type":"message_delta","delta":{"stop_reason":null}}', None),
        (b'data: {"type":"message_start","message":{"stop_reason":null}}', None),
        (b'data: {"choices":[{"finish_reason":null}],"error":null}', None),
        (b'data: {"choices":"finish_reason","delta":"stop_reason"}', None),
        (b'data: {"type":["error"]}', None),
        (b"data: error", None),
        (b'data: ["error"]', None),
        (b": error", None),
        (b"", None),
    ],
)
def test_f2_what_ends_a_turn(event: bytes, ending: Ending | None) -> None:
    assert ending_of(event) is ending

    scanner = TurnScanner()
    left = scanner.add(event + b"\n\n")
    assert scanner.ending is ending
    assert left == (b"" if ending else event + b"\n\n")


def test_f2_an_error_after_the_end_outweighs_it() -> None:
    _, _, scanner = scanned([CHAT_END, b'data: {"error":{"message":"lost"}}\n\n'])

    assert scanner.ending is Ending.FAILED


def test_f2_an_ending_without_a_blank_line_is_seen_at_the_end() -> None:
    left, rest, scanner = scanned([CHAT_OPEN, b"data: [DONE]"])

    assert (left, rest) == (CHAT_OPEN, b"data: [DONE]")
    assert scanner.ending is Ending.COMPLETED


def test_f2_a_stream_without_an_ending_has_none() -> None:
    assert scanned([CHAT_OPEN])[2].ending is None


def test_f2_an_oversized_event_is_taken_for_the_end_and_still_read() -> None:
    large = b'data: {"x":"' + b"y" * 200 + b'"}\n\n'
    left, rest, scanner = scanned(
        [CHAT_OPEN, large[:150], large[150:], CHAT_END], event_bytes_max=99
    )

    assert (left, rest) == (CHAT_OPEN, large + CHAT_END)
    assert scanner.ending is Ending.COMPLETED


def test_f2_deep_nesting_is_not_an_ending() -> None:
    assert ending_of(b"data: " + b"[" * 100_000) is None


def test_no_json_is_parsed_for_events_that_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        pytest.fail("parsed")

    monkeypatch.setattr(json, "loads", refuse)
    deltas = [
        {"type": "response.output_text.delta", "delta": "hello"},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}},
        {"choices": [{"delta": {"content": "hello"}, "finish_reason": None}]},
    ]
    for delta in deltas:
        event = b"data: " + json.dumps(delta).encode() + b"\n\n"
        assert TurnScanner().add(event) == event
