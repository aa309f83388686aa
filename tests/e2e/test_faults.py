# SPDX-License-Identifier: Apache-2.0
"""What may go wrong behind the sandbox side, call by call: the harness notices none of it, or is
told so, and the application is given what was written (S1, S3, H1, H4).
"""

import concurrent.futures
from collections.abc import Callable, Iterator

import httpx
import pytest
from support.control import Call, Control
from support.conversations import body_of, conversation, digest
from support.folders import private_folder
from support.gateway import Gateway, Shim

TURNS = [body_of(conversation(turns)) for turns in range(1, 9)]
EVENTS = {"content-type": "text/event-stream"}
StartShim = Callable[..., Shim]
Serve = Callable[..., Gateway]


@pytest.fixture(scope="module")
def controlled() -> Iterator[tuple[Gateway, Control]]:
    """One gateway whose application obeys, for the tests that leave it as it was."""
    with private_folder() as folder:
        control = Control(folder / "control.sock")
        gateway = Gateway(folder, control=control.path)
        yield gateway, control
        assert gateway.stop() == 0
        control.close()


def play(helper: Shim, rollout_id: str, bodies: list[bytes]) -> None:
    """Each answer shows that the model was given the bytes that were written."""
    for body in bodies:
        answer = helper.post(rollout_id, body)
        assert answer.status_code == 200
        assert answer.headers["scripted-request-sha256"] == digest(body)
        assert "rollout-history" not in answer.headers


def captured(gateway: Gateway, rollout_id: str) -> list[bytes]:
    return [record["request_text"].encode() for record in gateway.records(rollout_id)]


def test_s1_a_base_lost_before_any_one_call_costs_that_call_one_resend(
    shared: Gateway, shim: StartShim
) -> None:
    helper = shim(shared.url)
    for lost_before in range(1, len(TURNS)):
        rollout_id = f"lost-{lost_before}"
        play(helper, rollout_id, TURNS[:lost_before])
        shared.force(rollout_id)  # the next owner's entry is empty (H5)
        play(helper, rollout_id, TURNS[lost_before:])
        assert captured(shared, rollout_id) == TURNS
    counted = helper.stop_and_count()
    assert {id_: one["resyncs"] for id_, one in counted.items()} == dict.fromkeys(counted, 1)


def test_s1_s4_bases_lost_before_every_call_end_in_full_bodies(
    shared: Gateway, shim: StartShim
) -> None:
    helper = shim(shared.url)
    for body in TURNS:
        play(helper, "always-lost", [body])
        shared.force("always-lost")
    assert captured(shared, "always-lost") == TURNS
    assert helper.stop_and_count()["always-lost"]["resyncs"] == 3  # in a row: off


def test_s1_h3_bases_evicted_for_want_of_memory_cost_resends_and_nothing_else(
    serve: Serve, shim: StartShim
) -> None:
    gateway = serve("--history-bytes", str(2 * len(TURNS[-1])), workers=1)
    helper = shim(gateway.url)
    rollouts = [f"r{number}" for number in range(4)]
    bodies = {one: [body_of(conversation(n, tag=one)) for n in range(4, 9)] for one in rollouts}
    for turn in range(5):
        for one in rollouts:
            play(helper, one, [bodies[one][turn]])
    assert {one: captured(gateway, one) for one in rollouts} == bodies
    assert sum(one["resyncs"] for one in helper.stop_and_count().values()) > 0


@pytest.mark.parametrize("status", [409, 410])
def test_s1_what_the_application_itself_refuses_is_handed_on_untouched(
    controlled: tuple[Gateway, Control], shim: StartShim, status: int
) -> None:
    gateway, control = controlled
    helper, rollout_id = shim(gateway.url), f"own-{status}"
    assert helper.post(rollout_id, TURNS[0]).status_code == 200
    control.hold(rollout_id)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(helper.post, rollout_id, TURNS[1])
        control.next_call(rollout_id).answer(
            '{"mine":1}', status=status, headers={"retry-after": "7"}
        )
        answer = waiting.result()
    assert (answer.status_code, answer.text) == (status, '{"mine":1}')
    assert answer.headers["retry-after"] == "7"
    assert [run.sha256 for run in control.runs(rollout_id)] == [digest(one) for one in TURNS[:2]]
    assert helper.stop_and_count()[rollout_id]["resyncs"] == 0


def outcome(waiting: "concurrent.futures.Future[httpx.Response]") -> int | str:
    """The status, 500 where nothing of the answer had left yet, or that it was cut."""
    try:
        return waiting.result().status_code
    except httpx.RemoteProtocolError:
        return "cut"


def before_the_body(call: Call) -> None:
    call.begin(headers=EVENTS)
    call.fail()


def within_the_body(call: Call) -> None:
    call.begin(headers=EVENTS)
    call.send("data: {}\n\n")
    call.fail()


def after_the_body(call: Call) -> None:
    call.begin(headers=EVENTS)
    call.send('data: {"type":"response.completed"}\n\ndata: [DONE]\n\n')
    call.fail()


@pytest.mark.parametrize("drop", [before_the_body, within_the_body, after_the_body])
def test_r4_h4_an_answer_that_is_cut_is_no_clean_end_and_its_retry_needs_no_resend(
    controlled: tuple[Gateway, Control], shim: StartShim, drop: Callable[[Call], None]
) -> None:
    gateway, control = controlled
    helper, rollout_id = shim(gateway.url), drop.__name__
    assert helper.post(rollout_id, TURNS[0]).status_code == 200
    control.hold(rollout_id)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(helper.post, rollout_id, TURNS[1])
        drop(control.next_call(rollout_id))
        assert outcome(waiting) in {"cut", 500}
    control.unhold(rollout_id)
    assert helper.post(rollout_id, TURNS[1]).status_code == 200
    expected = [digest(TURNS[0]), digest(TURNS[1]), digest(TURNS[1])]
    assert [run.sha256 for run in control.runs(rollout_id)] == expected
    assert helper.stop_and_count()[rollout_id]["resyncs"] == 0


def test_s1_s4_a_gateway_restarted_with_deltas_and_then_without_is_not_noticed(
    serve: Serve, shim: StartShim
) -> None:
    at_once = ("--keep-alive-grace-seconds", "0")  # the shim lets go of idle connections itself
    first = serve(*at_once)
    port = ("--port", first.url.rsplit(":", 1)[1], *at_once)
    helper = shim(first.url)
    play(helper, "r", TURNS[:3])
    assert first.stop() == 0
    second = serve(*port, state=first.folder)
    play(helper, "r", TURNS[3:6])
    assert second.stop() == 0
    third = serve("--no-history-delta", *port, state=first.folder)
    play(helper, "r", TURNS[6:])
    assert captured(third, "r") == TURNS
    assert helper.stop_and_count()["r"]["resyncs"] == 1
