# SPDX-License-Identifier: Apache-2.0
"""What is known of workers and rollouts, from what they, their life locks and the store say."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.told import answer_of, event, row

from rollout_router.admin.changes import read_changes
from rollout_router.admin.known import Known, Survey
from rollout_router.admin.query import Query
from rollout_router.admin.workers import SeenWorker
from rollout_router.claims import Claim, Gate, Owner, OwnerIdentity

A, B = "a" * 20, "b" * 20
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
COUNTED = ("turns", "body_bytes", "sent_bytes", "saved_bytes", "takeovers", "resyncs", "releases")


class Clock:
    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> datetime:
        return self.now


class Service:
    """A Known, and what its sources say."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.known = Known(now=self.clock, **options)
        self.verdicts: dict[str, str] = {}

    def live(self, *workers: str) -> None:
        self.verdicts |= dict.fromkeys(workers, "alive")
        self.look()

    def look(self) -> None:
        self.known.see(
            SeenWorker(identity=identity(worker), verdict=verdict)
            for worker, verdict in self.verdicts.items()
        )

    def die(self, worker: str) -> None:
        self.verdicts[worker] = "dead"
        self.look()

    def tell(self, worker: str, *rows: dict[str, Any], **fields: Any) -> None:
        answer = answer_of(worker, rollouts=list(rows), **fields)
        self.known.apply(worker, read_changes(worker, answer))

    def survey(self, *claims: Claim, began: int | None = None, **fields: Any) -> None:
        at = self.known.version if began is None else began
        self.known.merge(Survey(began=at, claims=list(claims), **fields))

    def row(self, rollout_id: str) -> Any:
        return self.known.rollout(rollout_id)

    def totals(self, *names: str) -> list[int]:
        return [self.known.totals()[name] for name in names]

    def happened(self) -> list[str]:
        return [one["event"] for one in self.known.events.after(0, limit=1000)]


def identity(worker: str) -> OwnerIdentity:
    return OwnerIdentity(
        nonce=worker,
        inode=1,
        pid=1,
        started_at=1.0,
        boot_id="boot",
        socket=f"/run/{worker}.sock",
        service="model",
        at="2026-01-01T00:00:00Z",
    )


def claim(rollout_id: str, epoch: int, worker: str, *, state: str = "owned") -> Claim:
    return Claim(
        kind="session" if state == "lost" else "rollout",
        rollout_id=rollout_id,
        claim_epoch=epoch,
        state=state,  # type: ignore[arg-type] # one of two words
        owner=Owner(nonce=worker, inode=1),
        previous=None,
        at="2026-01-01T00:00:00Z",
    )


@pytest.fixture
def service() -> Service:
    service = Service()
    service.live(A, B)
    service.tell(A)
    service.tell(B)
    return service


def test_a_rollout_is_what_its_owner_tells(service: Service) -> None:
    service.tell(A, row("r", 5, turns=3, in_flight=1))

    found = service.row("r")
    assert (found["worker_id"], found["state"], found["verdict"]) == (A, "owned", "alive")
    assert (found["turns"], service.totals("rollouts", "in_flight")) == (3, [1, 1])


def test_c2_of_two_owners_the_higher_claim_epoch_is_right(service: Service) -> None:
    service.tell(B, row("r", 7))
    service.tell(A, row("r", 5))
    assert (service.row("r")["worker_id"], service.row("r")["claim_epoch"]) == (B, 7)

    service.tell(A, gone=[{"rollout_id": "r", "claim_epoch": 5}])
    assert service.row("r")["claim_epoch"] == 7


def test_what_a_worker_gave_back_is_known_no_more(service: Service) -> None:
    service.tell(A, row("r", 5, in_flight=1))
    service.tell(A, gone=[{"rollout_id": "r", "claim_epoch": 5}])

    assert (service.row("r"), service.totals("rollouts", "in_flight")) == (None, [0, 0])


def test_a_claim_that_was_read_before_it_was_given_back_does_not_come_back(
    service: Service,
) -> None:
    service.tell(A, row("r", 5))
    service.tell(A, gone=[{"rollout_id": "r", "claim_epoch": 5}])
    service.die(A)

    service.survey(claim("r", 5, A))
    assert service.row("r") is None


def test_c3_a_dead_workers_rollouts_wait_for_another(service: Service) -> None:
    service.tell(A, row("r", 5, in_flight=1))
    service.die(A)

    found = service.row("r")
    assert (found["state"], found["verdict"], found["in_flight"]) == ("owner_dead", "dead", 0)
    assert service.totals("in_flight") == [0]

    service.tell(B, row("r", 6, how="takeover"))
    assert (service.row("r")["state"], service.row("r")["worker_id"]) == ("owned", B)
    assert service.known.page(Query(worker=A)).matching == 0


def test_what_a_dead_worker_said_last_is_late(service: Service) -> None:
    service.die(A)
    service.tell(A, row("r", 5))

    assert service.row("r") is None


def test_totals_never_fall(service: Service) -> None:
    service.tell(
        A,
        row("r", 5, turns=4, body_bytes=4000, sent_bytes=400, resyncs=1),
        events=[
            event("claim_taken_over", "r", at="2026-01-01T00:00:01Z"),
            event("claim_released", "s", at="2026-01-01T00:00:02Z"),
        ],
    )
    counted = [4, 4000, 400, 3600, 1, 1, 1]
    assert service.totals(*COUNTED) == counted

    service.die(A)
    service.survey()
    del service.verdicts[A]
    service.look()
    assert (service.row("r"), service.totals(*COUNTED)) == (None, counted)
    assert [worker["id"] for worker in service.known.workers()] == [B]


def test_only_what_is_more_is_counted_again(service: Service) -> None:
    service.tell(A, row("r", 5, turns=4))
    service.tell(A, row("r", 5, turns=6))
    assert service.totals("turns") == [6]

    service.tell(A, row("r", 8, turns=1))
    assert service.totals("turns") == [7]


def test_a_worker_that_tells_all_anew_is_not_counted_twice(service: Service) -> None:
    first = event("claim_taken_over", "r", at="2026-01-01T00:00:01.0Z")
    second = event("claim_taken_over", "s", at="2026-01-01T00:00:02.0Z")
    service.tell(A, row("r", 5, turns=4), row("gone", 6), events=[first])

    service.tell(A, row("r", 5, turns=5), events=[first, second], reset=True, more=True)
    assert service.row("gone") is not None
    service.tell(A, row("s", 9, turns=1))

    assert service.row("gone") is None
    assert service.totals("turns", "takeovers") == [4 + 1 + 1 + 1, 2]


def test_the_store_tells_of_the_dead_the_silent_and_the_lost(service: Service) -> None:
    service.known.silent(A)
    service.survey(
        claim("silent", 5, A),
        claim("dead", 6, "c" * 20),
        claim("unknown", 7, "d" * 20),
        claim("session.x", 8, "d" * 20, state="lost"),
        claim("told", 9, B),
        verdicts={"c" * 20: "dead"},
        unreadable=2,
    )

    found = {row["rollout_id"]: (row["state"], row["verdict"]) for row in all_rows(service)}
    assert found == {
        "silent": ("owned", "alive"),
        "dead": ("owner_dead", "dead"),
        "unknown": ("owned", "unknown"),
        "session.x": ("lost", None),
    }
    assert (service.row("dead")["turns"], service.totals("unreadable")) == (None, [2])


def test_what_the_sweep_freed_goes_with_the_next_survey(service: Service) -> None:
    service.tell(A, row("freed", 5), row("stays", 6))
    service.die(A)
    service.survey(claim("stays", 6, A))

    assert [row["rollout_id"] for row in all_rows(service)] == ["stays"]
    assert service.row("stays")["turns"] == 1


def test_what_was_told_while_a_survey_ran_is_newer_than_it(service: Service) -> None:
    began = service.known.version
    service.tell(A, row("new", 5))
    service.survey(began=began)

    assert service.row("new") is not None


def test_a_forced_claim_is_not_counted_twice_when_its_owner_tells_of_it_once_more(
    service: Service,
) -> None:
    service.tell(A, row("r", 5, turns=4))
    service.survey()
    assert service.row("r") is None

    service.tell(A, row("r", 5, turns=5))
    assert service.totals("turns") == [5]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("swept", True), ("session_lost", True), ("claim_lost", True), ("resync", False)],
)
def test_what_only_the_store_tells_makes_it_be_read(
    service: Service, name: str, *, wanted: bool
) -> None:
    service.known.survey_wanted = False
    service.tell(A, events=[event(name, at="2026-01-01T00:00:01Z")])

    assert service.known.survey_wanted is wanted


def test_workers_come_and_go(service: Service) -> None:
    service.die(A)
    del service.verdicts[A]
    del service.verdicts[B]
    service.look()

    assert service.happened() == ["worker_started", "worker_started", "worker_dead", "worker_left"]
    assert service.known.workers() == []


def test_a_worker_that_was_dead_when_it_was_seen_first_is_dead() -> None:
    service = Service()
    service.die(A)
    assert [worker["verdict"] for worker in service.known.workers()] == ["dead"]


def test_a_silent_worker_keeps_its_rollouts(service: Service) -> None:
    service.tell(A, row("r", 5))
    service.known.silent(A)

    (shown,) = (worker for worker in service.known.workers() if worker["id"] == A)
    assert (shown["answers"], shown["verdict"], service.row("r")["state"]) == (
        *(False, "alive"),
        "owned",
    )


def test_the_version_rises_exactly_where_something_changed(service: Service) -> None:
    service.tell(A, row("r", 5))
    version = service.known.version
    service.tell(A, row("r", 5))
    service.look()
    service.survey(claim("r", 5, A))
    service.known.look_at(Gate(open=True), service.known.store_error)
    assert service.known.version == version

    service.tell(A, row("r", 5, turns=2))
    assert service.known.version > version


def test_r3_a_lost_session_is_nobodys_and_stays_while_its_tombstone_does(service: Service) -> None:
    service.tell(A, row("session.x", 5, kind="session"))
    service.tell(A, gone=[{"rollout_id": "session.x", "claim_epoch": 5}])
    service.survey(claim("session.x", 5, A, state="lost"))
    service.tell(A, reset=True)
    service.die(A)

    found = service.row("session.x")
    assert (found["state"], found["verdict"], found["worker_id"]) == ("lost", None, A)
    service.survey()
    assert service.row("session.x") is None


def test_a_session_that_is_lost_where_it_stands_keeps_what_was_counted(service: Service) -> None:
    service.tell(A, row("session.x", 5, kind="session", turns=4, in_flight=1))
    service.survey(claim("session.x", 5, A, state="lost"))

    assert (service.row("session.x")["state"], service.row("session.x")["turns"]) == ("lost", 4)
    assert service.totals("in_flight", "turns") == [0, 4]


@pytest.mark.parametrize(
    ("lag_ms", "news"), [(0.9, False), (1.2, False), (2.0, True), (None, True)]
)
def test_a_lag_that_trembles_is_no_news(
    service: Service, lag_ms: float | None, *, news: bool
) -> None:
    status = {"leaving": False, "claims": 1, "lag_ms": 0.5}
    service.tell(A, status=status)
    version = service.known.version
    service.tell(A, status={**status, "lag_ms": lag_ms})

    assert (service.known.version > version) is news


def test_what_moves_with_time_alone_is_a_change_while_there_is_any(service: Service) -> None:
    def moved(seconds: float) -> bool:
        service.clock.now += timedelta(seconds=seconds)
        before = service.known.version
        service.known.look_at(Gate(open=True), None)
        return service.known.version > before

    moved(0)
    assert not moved(5)
    service.tell(A, row("r", 5))
    assert moved(5)
    assert not moved(1)
    assert not moved(1000)


def test_the_series_counts_in_steps(service: Service) -> None:
    service.tell(A, row("r", 5, turns=2))
    service.clock.now += timedelta(seconds=5)
    service.tell(
        A,
        row("r", 5, turns=3, body_bytes=2000),
        events=[event("claim_taken_over", "r", at="2026-01-01T00:00:05Z")],
    )

    series = service.known.series()
    assert len(series) == 120
    assert series[-2:] == [
        {
            "at": "2026-01-01T00:00:00Z",
            "takeovers": 0,
            "saved_bytes": 900,
            "sent_bytes": 100,
            "turns": 2,
        },
        {
            "at": "2026-01-01T00:00:05Z",
            "takeovers": 1,
            "saved_bytes": 1000,
            "sent_bytes": 0,
            "turns": 1,
        },
    ]


def test_more_rollouts_than_are_kept_are_counted(service: Service) -> None:
    service = Service(rollouts_max=2)
    service.live(A)
    service.tell(A, row("r1", 5), row("r2", 6), row("r3", 7, turns=9))
    service.survey(claim("r1", 5, A), claim("r2", 6, A), claim("r3", 7, A))

    assert service.totals("rollouts", "left_out", "turns") == [3, 1, 2]


def test_readiness_says_what_is_in_the_way() -> None:
    service = Service()
    assert service.known.not_ready() == ["the store was not read yet", "no worker answers"]

    service.live(A)
    service.tell(A)
    service.known.look_at(Gate(open=False, by="ada", why="lunch"), None)
    assert service.known.not_ready() == ["admission is closed by ada: lunch"]

    service.known.look_at(Gate(open=True), None)
    assert service.known.not_ready() == []


def all_rows(service: Service) -> list[dict[str, Any]]:
    return service.known.page(Query(sort="claim_epoch", descending=False)).rows
