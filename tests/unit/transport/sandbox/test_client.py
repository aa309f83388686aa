# SPDX-License-Identifier: Apache-2.0
import itertools
import random
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest

from rollout_router.bench.forms import FORMS
from rollout_router.transport.sandbox import client as client_module
from rollout_router.transport.sandbox.bases import Base
from rollout_router.transport.sandbox.client import (
    TRANSITIONS,
    Abort,
    Client,
    Decision,
    Deliver,
    Effect,
    Outgoing,
    ResendFull,
    Sent,
    Signal,
    Tally,
    is_eligible,
    wants_body,
)
from rollout_router.transport.sandbox.frame import encode_frame, parse_frame, rebuild
from rollout_router.transport.sandbox.origins import Link
from rollout_router.transport.sandbox.transitions import FRAMES
from rollout_router.transport.sandbox.wire import (
    CONTENT_TYPE,
    EMPTY_SHA256,
    HISTORY_HEADER,
    Headers,
    header_values,
    sha256_hex,
)

ORIGIN = "http://gateway:8000"
HEADERS: Headers = [("Content-Type", "application/json"), ("Content-Length", "0"), ("X-A", "1")]
ONE = b'{"messages":["' + b"the first turn " * 40 + b'"]}'
TWO = ONE[:-2] + b',"and the second"]}'
THREE = TWO[:-2] + b',"and the third"]}'


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(clock: Clock) -> Client:
    return Client(clock=clock)


def mark(value: str) -> Headers:
    return [("Content-Type", "application/json"), (HISTORY_HEADER, value)]


def kept(body: bytes) -> Headers:
    return mark("kept=" + sha256_hex(body))


def send(client: Client, body: bytes, rollout: str = "r", origin: str = ORIGIN) -> Outgoing:
    return client.prepare(origin, rollout, HEADERS, body)


def succeed(client: Client, body: bytes, rollout: str = "r", origin: str = ORIGIN) -> Outgoing:
    outgoing = send(client, body, rollout, origin)
    assert isinstance(client.settle(outgoing, 200, kept(body)), Deliver)
    return outgoing


def turn_on(client: Client) -> None:
    succeed(client, ONE)


def turn_off(client: Client) -> None:
    turn_on(client)
    client.settle(send(client, TWO), 415, [])
    assert client.link(ORIGIN) is Link.OFF


def test_s4_every_pair_of_request_and_signal_has_a_row() -> None:
    pairs = set(itertools.product(Sent, Signal))
    impossible = {(sent, Signal.MALFORMED) for sent in Sent if sent not in FRAMES}

    assert set(TRANSITIONS) == pairs - impossible


def test_s1_no_row_delivers_a_resync_and_only_one_full_resend_follows() -> None:
    after = {Sent.FULL: Decision.RESEND, Sent.FRAME: Decision.PACK}
    for sent in Sent:
        decision, _ = TRANSITIONS[sent, Signal.RESYNC]
        assert decision is after.get(sent, Decision.ABORT)


NOTHING_RAN = {Signal.RESYNC, Signal.MALFORMED, Signal.REFUSED}


def sent_after(sent: Sent, signal: Signal) -> set[Sent]:
    """What may go in place of a request, by its row."""
    decision, effect = TRANSITIONS[sent, signal]
    if decision is Decision.RESEND:
        return {Sent.PLAIN} if effect is Effect.OFF else {Sent.RESENT, Sent.PLAIN}
    return {Sent.PACKED, Sent.RESENT, Sent.PLAIN} if decision is Decision.PACK else set()


def test_s3_what_is_sent_again_did_not_run_and_at_most_three_go_out() -> None:
    longest = {
        sent: max(len(way) for way in ways(sent)) for sent in (Sent.FULL, Sent.FRAME, Sent.PLAIN)
    }

    assert longest == {Sent.FULL: 2, Sent.FRAME: 3, Sent.PLAIN: 1}
    assert {s for (_, s), (d, _) in TRANSITIONS.items() if d in RESENDS} == NOTHING_RAN
    assert max(ways(Sent.FRAME), key=len) == [Sent.FRAME, Sent.PACKED, Sent.PLAIN]


RESENDS = {Decision.RESEND, Decision.PACK}


def ways(sent: Sent) -> Iterator[list[Sent]]:
    """All that may go out for one request of the harness."""
    yield [sent]
    for signal in Signal:
        if (sent, signal) in TRANSITIONS:
            for following in sent_after(sent, signal):
                yield from ([sent, *way] for way in ways(following))


def test_s4_no_row_delivers_a_success_of_a_frame_that_was_not_understood() -> None:
    for sent in FRAMES:
        assert TRANSITIONS[sent, Signal.OK] == (Decision.ABORT, Effect.OFF)


def test_s4_an_unknown_origin_gets_the_full_body_with_keep(client: Client) -> None:
    outgoing = send(client, ONE)

    assert client.link(ORIGIN) is Link.UNKNOWN
    assert (outgoing.sent, outgoing.payload) == (Sent.FULL, ONE)
    assert outgoing.headers == [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(ONE))),
        ("X-A", "1"),
        (HISTORY_HEADER, "keep"),
    ]


def test_s4_a_frame_follows_once_kept_named_the_base(client: Client) -> None:
    turn_on(client)

    outgoing = send(client, TWO)

    assert outgoing.sent is Sent.FRAME
    frame = parse_frame(outgoing.payload, length_max=1 << 20)
    assert frame.base == sha256_hex(ONE)
    assert frame.type == "application/json"
    assert rebuild(frame, ONE) == TWO
    assert outgoing.headers == [
        ("Content-Type", CONTENT_TYPE),
        ("Content-Length", str(len(outgoing.payload))),
        ("X-A", "1"),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="unmarked"),
        pytest.param(mark("none"), id="none"),
        pytest.param(mark("kept=" + "0" * 64), id="another digest"),
        pytest.param(mark("kept=" + sha256_hex(ONE).upper()), id="another spelling"),
        pytest.param(mark("resync"), id="resync without 409"),
        pytest.param(kept(ONE) * 2, id="twice"),
    ],
)
def test_s4_without_kept_there_are_no_frames(client: Client, headers: Headers) -> None:
    client.settle(send(client, ONE), 200, headers)

    assert send(client, TWO).sent is Sent.FULL


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(kept(ONE), id="another digest"),
        pytest.param(mark("None"), id="another spelling"),
        pytest.param(mark("resync"), id="resync without 409"),
        pytest.param(kept(TWO) * 2, id="twice"),
    ],
)
def test_s4_a_mark_that_does_not_count_is_not_the_mark_none(
    client: Client, headers: Headers
) -> None:
    turn_on(client)

    assert isinstance(client.settle(send(client, TWO), 200, headers), Abort)


@pytest.mark.parametrize("status", [200, 400, 429, 500])
def test_h4_a_base_is_usable_whatever_the_status(client: Client, status: int) -> None:
    client.settle(send(client, ONE), status, kept(ONE))

    assert send(client, ONE).sent is Sent.FRAME


def test_s4_a_new_rollout_of_a_known_origin_starts_on_the_empty_base(client: Client) -> None:
    turn_on(client)

    outgoing = send(client, ONE, rollout="another")

    assert parse_frame(outgoing.payload, length_max=1 << 20).base == EMPTY_SHA256


def test_s4_bases_are_per_origin(client: Client) -> None:
    turn_on(client)

    assert send(client, TWO, origin="http://other").sent is Sent.FULL


def test_s4_the_mark_is_removed_before_the_harness_sees_the_answer(client: Client) -> None:
    decision = client.settle(send(client, ONE), 200, kept(ONE))

    assert decision == Deliver([("Content-Type", "application/json")])


def test_s1_without_deflate_a_resync_leads_to_one_full_resend_with_keep(clock: Clock) -> None:
    client = Client(clock=clock, deflate=False)
    turn_on(client)

    again = resync(client, send(client, TWO))

    assert (again.sent, again.payload) == (Sent.RESENT, TWO)
    assert header_values(again.headers, "Content-Type") == ["application/json"]
    assert header_values(again.headers, HISTORY_HEADER) == ["keep"]
    assert header_values(again.headers, "Content-Length") == [str(len(TWO))]
    assert isinstance(client.settle(again, 200, kept(TWO)), Deliver)
    assert send(client, THREE).sent is Sent.FRAME


def test_s1_a_resync_leads_to_one_full_resend_compressed_on_the_empty_base(client: Client) -> None:
    turn_on(client)

    again = resync(client, send(client, TWO))

    assert again.sent is Sent.PACKED
    frame = parse_frame(again.payload, length_max=1 << 20)
    assert (frame.base, rebuild(frame, b"")) == (EMPTY_SHA256, TWO)
    assert len(again.payload) < len(TWO)
    assert header_values(again.headers, "Content-Type") == [CONTENT_TYPE]
    assert header_values(again.headers, HISTORY_HEADER) == []
    assert header_values(again.headers, "Content-Length") == [str(len(again.payload))]
    assert isinstance(client.settle(again, 200, kept(TWO)), Deliver)
    assert base_of(send(client, THREE)) == sha256_hex(TWO)


def test_d3_a_body_that_packing_makes_no_shorter_is_resent_in_full(client: Client) -> None:
    noise = b'{"messages":["' + random.Random(1).randbytes(900) + b'"]}'  # noqa: S311 - test data
    succeed(client, noise)

    again = resync(client, send(client, noise + b"."))

    assert (again.sent, again.payload) == (Sent.RESENT, noise + b".")


def packed(client: Client) -> Outgoing:
    turn_on(client)
    again = resync(client, send(client, TWO))
    assert again.sent is Sent.PACKED
    return again


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [(status, b"", []) for status in (400, 404, 415, 422)]
    + [(400, b'{"error":{"code":"delta_malformed"}}', mark("none"))],
)
def test_s4_a_packed_body_that_did_not_run_goes_once_more_and_plain(
    client: Client, status: int, body: bytes, headers: Headers
) -> None:
    again = packed(client)
    assert wants_body(again, status, headers) is bool(headers)

    decision = client.settle(again, status, headers, body)

    assert isinstance(decision, ResendFull)
    plain = decision.outgoing
    assert (plain.sent, plain.payload, client.link(ORIGIN)) == (Sent.PLAIN, TWO, Link.OFF)
    assert isinstance(client.settle(plain, status, headers, body), Deliver)


@pytest.mark.parametrize(("status", "headers"), [(409, mark("resync")), (200, [])])
def test_s4_a_packed_body_that_was_not_understood_is_aborted(
    client: Client, status: int, headers: Headers
) -> None:
    again = packed(client)

    assert isinstance(client.settle(again, status, headers), Abort)
    assert client.link(ORIGIN) is Link.OFF


@pytest.mark.parametrize("status", [401, 409, 410, 413, 429, 500, 503])
def test_s3_any_other_answer_to_a_packed_body_is_handed_on(client: Client, status: int) -> None:
    assert isinstance(client.settle(packed(client), status, []), Deliver)
    assert client.link(ORIGIN) is Link.ON


def test_s1_a_resync_of_the_resend_is_never_delivered(client: Client) -> None:
    turn_on(client)
    decision = client.settle(send(client, TWO), 409, mark("resync"))
    assert isinstance(decision, ResendFull)

    assert isinstance(client.settle(decision.outgoing, 409, mark("resync")), Abort)
    assert client.link(ORIGIN) is Link.OFF


def test_s1_a_resync_drops_the_bases_of_that_rollout_alone(client: Client) -> None:
    turn_on(client)
    succeed(client, ONE, rollout="other")

    client.settle(send(client, TWO), 409, mark("resync"))

    assert parse_frame(send(client, TWO).payload, length_max=1 << 20).base == EMPTY_SHA256
    other = send(client, TWO, rollout="other")
    assert parse_frame(other.payload, length_max=1 << 20).base == sha256_hex(ONE)


def test_s4_three_resyncs_in_a_row_turn_it_off(client: Client) -> None:
    turn_on(client)
    sent = []
    for body in (ONE, TWO, THREE):
        decision = client.settle(send(client, body), 409, mark("resync"))
        assert isinstance(decision, ResendFull)
        sent.append(decision.outgoing.sent)
        client.settle(decision.outgoing, 200, kept(body))

    assert sent == [Sent.PACKED, Sent.PACKED, Sent.PLAIN]
    assert client.link(ORIGIN) is Link.OFF


def resync(client: Client, outgoing: Outgoing) -> Outgoing:
    decision = client.settle(outgoing, 409, mark("resync"))
    assert isinstance(decision, ResendFull)
    return decision.outgoing


def base_of(outgoing: Outgoing) -> str:
    assert outgoing.sent is Sent.FRAME
    return parse_frame(outgoing.payload, length_max=1 << 20).base


def test_s4_one_loss_counts_once_however_many_calls_are_under_way(client: Client) -> None:
    turn_on(client)
    frames = [send(client, TWO + b"%d" % number) for number in range(5)]

    resent = [resync(client, frame) for frame in frames]

    assert [outgoing.sent for outgoing in resent] == [Sent.PACKED] * 5
    assert client.link(ORIGIN) is Link.ON


def test_s4_a_late_resync_leaves_what_the_new_owner_has_kept(client: Client) -> None:
    turn_on(client)
    first, second = send(client, TWO), send(client, TWO + b"2")
    assert isinstance(client.settle(resync(client, first), 200, kept(TWO)), Deliver)

    resync(client, second)

    assert base_of(send(client, THREE)) == sha256_hex(TWO)


def test_s4_a_row_is_the_rollouts_and_off_is_the_origins(client: Client) -> None:
    rollouts = ["a", "b", "c", "d"]
    for rollout in rollouts:
        succeed(client, ONE, rollout)
    for _ in range(2):  # two owners die, one after the other, each with all four rollouts
        for rollout in rollouts:
            client.settle(resync(client, send(client, TWO, rollout)), 200, kept(TWO))
    assert client.link(ORIGIN) is Link.ON

    resync(client, send(client, TWO, "a"))

    assert client.link(ORIGIN) is Link.OFF


def test_s4_a_frame_that_works_ends_its_own_rollouts_row_alone(client: Client) -> None:
    turn_on(client)
    succeed(client, ONE, "other")
    for _ in range(2):
        client.settle(resync(client, send(client, TWO)), 200, kept(TWO))
    assert succeed(client, TWO, "other").sent is Sent.FRAME

    assert resync(client, send(client, TWO)).sent is Sent.PLAIN


def test_s4_a_resync_of_the_empty_base_always_counts(client: Client) -> None:
    turn_on(client)
    frames = [send(client, ONE, "new") for _ in range(3)]
    assert {base_of(frame) for frame in frames} == {EMPTY_SHA256}

    resent = [resync(client, frame).sent for frame in frames]

    assert resent == [Sent.RESENT, Sent.RESENT, Sent.PLAIN]


def test_s4_going_off_drops_the_bases_of_the_origin(client: Client, clock: Clock) -> None:
    turn_on(client)
    client.settle(send(client, TWO, "another"), 415, [])
    clock.now_s += 30
    succeed(client, ONE, "another")

    assert base_of(send(client, TWO)) == EMPTY_SHA256


def test_s4_a_frame_that_works_ends_the_row_of_resyncs(client: Client) -> None:
    turn_on(client)
    for _ in range(4):
        decision = client.settle(send(client, ONE), 409, mark("resync"))
        assert isinstance(decision, ResendFull)
        client.settle(decision.outgoing, 200, kept(ONE))
        assert succeed(client, TWO).sent is Sent.FRAME

    assert client.link(ORIGIN) is Link.ON


@pytest.mark.parametrize("status", [400, 404, 415, 422])
def test_s4_an_unmarked_refusal_of_a_frame_turns_it_off_and_sends_in_full(
    client: Client, status: int
) -> None:
    turn_on(client)

    decision = client.settle(send(client, TWO), status, [])

    assert isinstance(decision, ResendFull)
    assert (decision.outgoing.sent, decision.outgoing.payload) == (Sent.PLAIN, TWO)
    assert header_values(decision.outgoing.headers, HISTORY_HEADER) == []
    assert client.link(ORIGIN) is Link.OFF


@pytest.mark.parametrize("status", [307, 401, 403, 409, 410, 413, 429, 500, 502, 503, 504])
def test_s3_any_other_answer_to_a_frame_is_handed_on(client: Client, status: int) -> None:
    turn_on(client)

    assert isinstance(client.settle(send(client, TWO), status, []), Deliver)
    assert client.link(ORIGIN) is Link.ON


@pytest.mark.parametrize("status", [400, 404, 409, 415, 422, 500])
def test_s3_a_full_request_is_not_sent_again(client: Client, status: int) -> None:
    assert isinstance(client.settle(send(client, ONE), status, []), Deliver)


def test_s4_an_unmarked_success_of_a_frame_is_aborted(client: Client) -> None:
    turn_on(client)

    assert isinstance(client.settle(send(client, TWO), 200, []), Abort)
    assert client.link(ORIGIN) is Link.OFF


def test_s4_a_success_that_kept_another_body_is_aborted(client: Client) -> None:
    turn_on(client)

    assert isinstance(client.settle(send(client, TWO), 200, kept(ONE)), Abort)


def test_s4_delta_malformed_turns_it_off_and_sends_in_full(client: Client) -> None:
    turn_on(client)
    frame = send(client, TWO)
    assert wants_body(frame, 400, mark("none"))

    body = b'{"error":{"code":"delta_malformed"}}'
    decision = client.settle(frame, 400, mark("none"), body)

    assert isinstance(decision, ResendFull)
    assert decision.outgoing.sent is Sent.PLAIN


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"code":"rollout_id_invalid"}}',
        b'{"error":{"code":["delta_malformed"]}}',
        b'{"error":"delta_malformed"}',
        b"[]",
        b"delta_malformed",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_s3_another_marked_400_is_handed_on(client: Client, body: bytes) -> None:
    turn_on(client)

    assert isinstance(client.settle(send(client, TWO), 400, mark("none"), body[:65_536]), Deliver)


def test_s4_while_off_requests_go_as_if_there_were_no_client(client: Client) -> None:
    turn_off(client)

    outgoing = send(client, TWO)

    assert (outgoing.sent, outgoing.payload) == (Sent.PLAIN, TWO)
    assert header_values(outgoing.headers, HISTORY_HEADER) == []


def test_s4_off_lasts_30_s_then_twice_as_long_up_to_10_minutes(
    client: Client, clock: Clock
) -> None:
    lasted = []
    for _ in range(7):
        turn_off(client)
        start_s = clock.now_s
        while client.link(ORIGIN) is Link.OFF:
            clock.now_s += 30
        assert client.link(ORIGIN) is Link.UNKNOWN
        assert send(client, ONE).sent is Sent.FULL
        lasted.append(clock.now_s - start_s)

    assert lasted == [30, 60, 120, 240, 480, 600, 600]


def test_s4_a_frame_that_works_makes_the_next_off_short_again(client: Client, clock: Clock) -> None:
    turn_off(client)
    clock.now_s += 30
    turn_on(client)
    succeed(client, TWO)
    client.settle(send(client, THREE), 415, [])

    clock.now_s += 30

    assert client.link(ORIGIN) is Link.UNKNOWN


def test_s4_what_was_under_way_when_it_went_off_changes_nothing(
    client: Client, clock: Clock
) -> None:
    turn_on(client)
    frames = [send(client, TWO) for _ in range(3)]

    client.settle(frames[0], 415, [])
    again = client.settle(frames[1], 415, [])
    client.settle(frames[2], 200, kept(TWO))

    assert isinstance(again, ResendFull)
    assert client.link(ORIGIN) is Link.OFF
    clock.now_s += 30
    assert client.link(ORIGIN) is Link.UNKNOWN
    succeed(client, ONE)
    assert parse_frame(send(client, TWO).payload, length_max=1 << 20).base == sha256_hex(ONE)


def test_h2_a_repeated_body_is_a_frame_on_itself(client: Client) -> None:
    turn_on(client)
    succeed(client, TWO)

    first, second = send(client, TWO), send(client, TWO)

    assert first.payload == second.payload
    assert parse_frame(first.payload, length_max=1 << 20).base == sha256_hex(TWO)


def test_s5_where_no_frame_can_be_made_the_full_body_goes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []
    client = Client(clock=clock, on_failure=failures.append)
    turn_on(client)

    def fail(*_: object, **__: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(client_module, "encode_frame", fail)
    outgoing = send(client, TWO)

    assert (outgoing.sent, outgoing.payload) == (Sent.FULL, TWO)
    assert [type(failure) for failure in failures] == [MemoryError]


def test_s5_where_telling_of_it_fails_the_full_body_goes_as_well(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise BrokenPipeError

    client = Client(clock=clock, on_failure=fail)
    turn_on(client)
    monkeypatch.setattr(client_module, "encode_frame", fail)

    assert send(client, TWO).payload == TWO


def test_d3_a_body_that_no_frame_makes_shorter_goes_in_full(client: Client) -> None:
    turn_on(client)

    assert send(client, b"{}").sent is Sent.FULL


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        pytest.param("GET", [], id="not a POST"),
        pytest.param("POST", [("content-encoding", "zstd")], id="encoded"),
        pytest.param("POST", [("Content-Type", "a/b"), ("Content-Type", "a/b")], id="two types"),
        pytest.param("POST", [("Content-Type", CONTENT_TYPE)], id="a frame already"),
        pytest.param("POST", [(HISTORY_HEADER, "keep")], id="asks itself"),
    ],
)
def test_s4_what_is_not_eligible(method: str, headers: Headers) -> None:
    assert not is_eligible(method, headers)
    assert is_eligible("POST", HEADERS)


@pytest.mark.parametrize("deflate", [False, True])
def test_the_tally_counts_bodies_and_resyncs(clock: Clock, *, deflate: bool) -> None:
    client = Client(clock=clock, deflate=deflate)
    turn_on(client)
    frame = send(client, TWO)
    again = resync(client, frame)
    client.tally("other", bytes_sent=5, bytes_full=5)

    undeflated = encode_frame(
        sha256_hex(ONE), TWO, ONE, content_type="application/json", deflate=False
    )
    assert undeflated is not None
    assert client.statistics() == {
        "r": Tally(
            calls=2,
            bytes_sent=len(ONE) + len(frame.payload) + len(again.payload),
            bytes_plain=len(ONE) + len(undeflated) + len(TWO),
            bytes_full=len(ONE) + len(TWO),
            resyncs=1,
        ),
        "other": Tally(calls=1, bytes_sent=5, bytes_plain=5, bytes_full=5, resyncs=0),
    }


def test_a_run_with_deflate_counts_what_one_without_sends(clock: Clock) -> None:
    tallies = []
    for deflate in (False, True):
        client = Client(clock=clock, deflate=deflate)
        for body in FORMS["metadata in random order"]():
            outgoing = send(client, body)
            client.settle(outgoing, 200, kept(body))
        tallies.append(client.statistics()["r"])
    plain, deflated = tallies

    assert plain.bytes_sent == plain.bytes_plain == deflated.bytes_plain
    assert deflated.bytes_sent < deflated.bytes_plain < deflated.bytes_full


def test_threads_share_one_client(client: Client) -> None:
    turn_on(client)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            body, rollout = ONE, f"r{number % 3}"
            for turn in range(20):
                body += b"turn %d of %d;" % (turn, number)
                outgoing = send(client, body, rollout)
                if outgoing.sent is Sent.FRAME:
                    frame = parse_frame(outgoing.payload, length_max=1 << 20)
                    assert frame.target == sha256_hex(body)
                client.settle(outgoing, 200, kept(body))
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert sum(tally.calls for tally in client.statistics().values()) == 121


def test_a_target_is_named_by_its_digest(client: Client) -> None:
    assert send(client, ONE).target == Base(sha256_hex(ONE), ONE)
