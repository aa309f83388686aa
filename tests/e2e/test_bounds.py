# SPDX-License-Identifier: Apache-2.0
"""More one-call rollouts than the bound: claims and memory go back to what is in use (C6)."""

import concurrent.futures
from collections.abc import Callable

from support.control import Control
from support.conversations import FRAME_HEADERS, body_of, conversation, digest, frame
from support.gateway import Gateway, kept

ROLLOUTS_MAX = 4  # a worker
ONE_CALL_ROLLOUTS = 40


def test_c6_claims_go_back_to_what_is_in_use_and_what_is_used_keeps_its_owner(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve("--history-rollouts", str(ROLLOUTS_MAX), control=control.path)
    control.hold("blocked")
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        blocked = threads.submit(gateway.post, "blocked", body_of(conversation(1)))
        held_call = control.next_call("blocked")

        base = body_of(conversation(1))
        active = [gateway.post("active", base)]
        for number in range(ONE_CALL_ROLLOUTS):
            assert gateway.post(f"once-{number}", body_of(conversation(1))).status_code == 200
            target = body_of(conversation(2 + number))
            sent = frame(base, target)
            active.append(gateway.post("active", sent, keep=False, headers=FRAME_HEADERS))
            assert kept(active[-1]) == digest(target), "an active conversation keeps its bases"
            base = target

        claims = gateway.claims()
        held_call.answer()
        assert blocked.result().status_code == 200

    assert len({a.headers["rollout-claim-epoch"] for a in active}) == 1
    assert claims["blocked"]["claim_epoch"] == held_call.claim_epoch
    assert {"active", "blocked"} <= set(claims)
    assert len(claims) <= 2 * ROLLOUTS_MAX
    files = [p for p in gateway.state_dir.glob("claims/*/*") if p.is_file()]
    assert len(files) == len(gateway.claims())


def test_c6_without_room_for_history_nothing_is_left_behind(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--history-rollouts", "0")
    for number in range(6):
        answer = gateway.post(f"r{number}", body_of(conversation(1)))
        assert answer.status_code == 200
    # A release runs beside the answer; the stop waits for it.
    assert gateway.stop() == 0
    assert not [p for p in gateway.state_dir.glob("claims/*/*") if p.is_file()]


def test_c2_the_epoch_rises_when_a_forgotten_rollout_comes_back(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--history-rollouts", "1", workers=1)
    epochs = []
    for _ in range(3):
        epochs.append(
            int(gateway.post("r", body_of(conversation(1))).headers["rollout-claim-epoch"])
        )
        gateway.post("other", body_of(conversation(1)))
    assert epochs == sorted(set(epochs))


def test_h3_a_body_over_the_bound_is_served_and_not_kept(serve: Callable[..., Gateway]) -> None:
    gateway = serve("--history-bytes", "1000")
    answer = gateway.post("large", body_of(conversation(9)))
    assert answer.status_code == 200
    assert answer.headers["rollout-history"] == "none"


def test_c2_epochs_rise_over_a_restart_of_all_workers(serve: Callable[..., Gateway]) -> None:
    first = serve()
    before = first.post("r", body_of(conversation(1)))
    assert first.stop() == 0
    assert not [p for p in first.state_dir.glob("claims/*/*") if p.is_file()]
    second = serve(state=first.folder)
    after = second.post("r", body_of(conversation(1)))
    assert int(after.headers["rollout-claim-epoch"]) > int(before.headers["rollout-claim-epoch"])
    assert len(second.records("r")) == 2


def test_c3_after_a_kill_of_everything_the_next_start_goes_on(
    serve: Callable[..., Gateway],
) -> None:
    first = serve()
    before = first.post("r", body_of(conversation(1)))
    first.kill_all()
    assert first.claims()["r"]["verdict"] == "dead"
    second = serve(state=first.folder)
    after = second.post("r", body_of(conversation(1)))
    assert after.status_code == 200
    assert int(after.headers["rollout-claim-epoch"]) > int(before.headers["rollout-claim-epoch"])
