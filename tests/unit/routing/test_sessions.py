# SPDX-License-Identifier: Apache-2.0
"""Stateful sessions: named, decided about, owned, lost (R3). Beside them R7, C6, C7 and H5."""

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.metrics import counted
from support.routing import AppCall, Application, Client, Rig, answer

from rollout_router import close_session
from rollout_router.claims import Claim, Gate, Grant, Owner, StoreUnavailable, Verdict
from rollout_router.history import Bounds
from rollout_router.routing import Router, SessionSettings, Settings
from rollout_router.routing.decision import (
    Acquire,
    Bury,
    Forget,
    Forward,
    Lost,
    Refuse,
    Reread,
    after_connect_failure,
    route_public,
    route_session,
)
from rollout_router.routing.identity import InvalidIdentity, Rollout, identify
from rollout_router.routing.ownership import Held
from rollout_router.routing.sessions import SessionNames
from rollout_router.routing.worker import Worker
from rollout_router.transport.sandbox.frame import encode_frame

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DAY_S = 24 * 3600.0
COOKIE = SessionSettings(cookie="sid")
HEADER = SessionSettings(header="Session-Token")
OPEN, CLOSED = Gate(open=True), Gate(open=False, by="ada", why="a checkpoint")
ME = "me"
THEIRS = Claim(
    kind="session",
    rollout_id="session.a",
    claim_epoch=7,
    state="owned",
    owner=Owner(nonce="them", inode=1),
    previous=None,
    at="2026-01-01T00:00:00Z",
)
TOMBSTONE = replace(THEIRS, state="lost", reason="the worker that owned it died")
FRAME = (b"content-type", b"application/vnd.rollout-delta")
FULL = StoreUnavailable("writing", 28)
NAME = "session.abc"


def digest_name(text: str) -> str:
    return f"session..{hashlib.sha256(text.encode()).hexdigest()}"


# How a session is named.


def named(
    settings: SessionSettings, headers: Iterable[tuple[bytes, bytes]], path: bytes = b"/x"
) -> object:
    return identify(path, headers, header=b"x-session-id", sessions=SessionNames(settings))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"cookie", b"sid=abc")], NAME),
        ([(b"Cookie", b"a=b; sid=abc; c=d")], NAME),
        ([(b"cookie", b"a=b"), (b"cookie", b"sid=abc")], NAME),
        ([(b"cookie", b'sid="abc"')], NAME),
        ([(b"cookie", b"sid=abc; sid=abc")], NAME),
        ([(b"cookie", b"sid=a=b")], digest_name("a=b")),
        ([(b"cookie", b"sid=.a")], digest_name(".a")),
        ([(b"cookie", b"sid=" + b"a" * 192)], "session." + "a" * 192),
        ([(b"cookie", b"sid=" + b"a" * 193)], digest_name("a" * 193)),
        ([(b"cookie", b"sid=")], None),
        ([(b"cookie", b"SID=abc; xsid=abc; sid")], None),
        ([(b"sid", b"abc")], None),
        ([], None),
    ],
)
def test_r3_a_session_is_named_by_its_cookie(
    headers: list[tuple[bytes, bytes]], expected: str | None
) -> None:
    found = named(COOKIE, headers)

    assert found == (None if expected is None else Rollout(expected, kind="session"))


def test_r3_a_session_is_named_by_its_header() -> None:
    found = named(HEADER, [(b"session-token", b"abc"), (b"cookie", b"session-token=x")])

    assert found == Rollout(NAME, kind="session")


def test_r3_no_id_is_mistaken_for_the_digest_of_another() -> None:
    digest = hashlib.sha256(b"a b").hexdigest()
    plain = named(COOKIE, [(b"cookie", b"sid=" + digest.encode())])

    assert plain == Rollout(f"session.{digest}", kind="session")
    assert plain != named(COOKIE, [(b"cookie", b"sid=a b")])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/sessions/r1/x", Rollout("r1")),
        (b"/sessions/%61/x", InvalidIdentity("%61")),
        (b"/ng-control/a/x", None),
        (b"/x", Rollout("h")),
    ],
)
def test_r3_path_and_rollout_header_stand_before_the_session(path: bytes, expected: object) -> None:
    headers = [(b"cookie", b"sid=abc"), (b"x-session-id", b"h")]

    assert named(COOKIE, headers, path) == expected


def test_r3_two_sessions_in_one_request_are_no_identity() -> None:
    found = named(COOKIE, [(b"cookie", b"sid=a; sid=b")])

    assert found == InvalidIdentity("session.a, session.b")


def test_r3_no_rollout_bears_the_name_of_a_session_where_sessions_are_routed() -> None:
    path = b"/sessions/session.abc/x"

    assert named(COOKIE, [], path) == InvalidIdentity(NAME)
    assert identify(path, [], header=b"h") == Rollout(NAME)


def test_r3_a_stable_id_outlives_what_the_cookie_says() -> None:
    def of_signed(text: str) -> str:
        stable_id, dot, _ = text.partition(".")
        if not dot:
            raise ValueError("not signed")
        return stable_id

    settings = SessionSettings(cookie="sid", stable_id=of_signed)
    assert {named(settings, [(b"cookie", b"sid=abc." + tail)]) for tail in (b"1", b"2")} == {
        Rollout(NAME, kind="session")
    }
    assert named(settings, [(b"cookie", b"sid=abc")]) is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"sid=abc; Path=/; HttpOnly"], NAME),
        ([b"sid=abc; Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], NAME),
        ([b"sid=abc; expires=Fri, 02 Jan 2026 00:00:01 GMT"], NAME),
        ([b"sid=abc; expires=rubbish; max-age=rubbish"], NAME),
        ([b"sid=null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT"], None),
        ([b"sid=null; expires=Thu, 01 Jan 1970 00:00:00 -0000"], None),
        ([b"sid=abc; Max-Age=0"], None),
        ([b"sid=; Path=/"], None),
        ([b"other=abc"], None),
        ([b"sid=a", b"sid=abc"], NAME),
        ([b"sid=a; Max-Age=0", b"sid=abc"], NAME),
        ([b"sid=abc", b"sid=a; Max-Age=-1"], None),
        ([], None),
    ],
)
def test_r3_an_answer_names_the_session_that_its_client_will_know(
    lines: list[bytes], expected: str | None
) -> None:
    headers = [(b"Set-Cookie", line) for line in lines]

    assert SessionNames(COOKIE).in_answer(headers, now=NOW) == expected


def test_r3_an_answer_names_a_session_by_its_header() -> None:
    names = SessionNames(HEADER)

    assert names.in_answer([(b"session-token", b"a"), (b"Session-Token", b"abc")], now=NOW) == NAME
    assert names.in_answer([(b"set-cookie", b"session-token=a")], now=NOW) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "either by a cookie or by a header"),
        ({"cookie": "a", "header": "b"}, "either by a cookie or by a header"),
        ({"cookie": "a b"}, "cookie"),
        ({"header": ""}, "header"),
        ({"cookie": "a", "number_max": 0}, "number_max"),
        ({"cookie": "a", "remembered_max": 0}, "remembered_max"),
        ({"cookie": "a", "tombstone_s": -1}, "tombstone_s"),
    ],
)
def test_r3_session_settings_that_make_no_sense_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SessionSettings(**changes)


def test_r3_one_header_cannot_name_rollouts_and_sessions(rig: Rig) -> None:
    with pytest.raises(ValueError, match="X-Session-ID"):
        rig.settings(sessions=SessionSettings(header="x-session-id"))


# The decision.


@pytest.mark.parametrize("gate", [OPEN, CLOSED])
@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (THEIRS, Forward(THEIRS)),
        (TOMBSTONE, Lost(TOMBSTONE, "the worker that owned it died, 2026-01-01T00:00:00Z")),
    ],
)
def test_r3_a_session_goes_to_its_owner_or_is_lost(
    claim: Claim, gate: Gate, expected: object
) -> None:
    for me in (ME, "other"):
        assert decide(claim, me=me, gate=gate) == expected


def test_r3_a_claim_in_our_own_name_that_memory_does_not_hold_is_lost() -> None:
    decision = decide(THEIRS, me="them")

    assert decision == Lost(THEIRS, "its owner no longer holds it")


def test_r3_a_tombstone_is_forgotten_after_its_time() -> None:
    later = NOW + timedelta(microseconds=1)

    assert isinstance(decide(TOMBSTONE, now=NOW), Lost)
    assert decide(TOMBSTONE, now=later) == Forget(TOMBSTONE)


def test_r3_a_session_that_nobody_claims_is_held_unless_the_gate_is_closed() -> None:
    assert decide(None) == Acquire()
    refusal = decide(None, gate=CLOSED)
    assert isinstance(refusal, Refuse)
    assert refusal.code == "admission_closed"


def test_r3_kinds_are_never_mistaken_for_each_other() -> None:
    rollout = replace(THEIRS, kind="rollout")

    for decision in (
        decide(rollout),
        route_public(me=ME, held_epoch=None, claim=THEIRS, gate=OPEN),
        route_public(me=ME, held_epoch=None, claim=TOMBSTONE, gate=OPEN),
    ):
        assert isinstance(decision, Refuse)
        assert decision.code == "rollout_id_invalid"


@pytest.mark.parametrize("gate", [OPEN, CLOSED])
def test_r3_a_session_of_a_dead_owner_is_buried_and_never_taken_over(gate: Gate) -> None:
    def after(verdict: Verdict, now: Claim | None = THEIRS) -> object:
        return after_connect_failure(verdict, before=THEIRS, now=now, gate=gate, reason="why")

    assert after(Verdict.DEAD) == Bury()
    assert after(Verdict.DEAD, now=None) == Reread()
    for verdict in (Verdict.ALIVE, Verdict.UNKNOWN):
        refusal = after(verdict)
        assert isinstance(refusal, Refuse)
        assert refusal.code == "owner_unreachable"


def decide(
    claim: Claim | None, *, me: str = ME, gate: Gate = OPEN, now: datetime = NOW
) -> Acquire | Forward | Lost | Forget | Refuse:
    return route_session(me=me, claim=claim, gate=gate, now=now, tombstone_s=DAY_S)


# The router.


def browser(
    session: str = "abc", *, path: str = "/x", body: bytes = b"{}", keep: bool = False
) -> Client:
    headers = [(b"cookie", f"sid={session}".encode())] if session else []
    if keep:
        headers.append((b"rollout-history", b"keep"))
    return Client(body, path=path, headers=headers)


def setting(session: str = "abc") -> Any:
    return answer(headers=[(b"set-cookie", f"sid={session}; Path=/".encode())])


class Site:
    """A service with sessions."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.app = Application(setting())

    async def start(self, **changes: Any) -> tuple[Router, Worker]:
        options: dict[str, Any] = {"sessions": COOKIE, **changes}
        return await self.rig.start(self.app, **options)

    async def made(self, router: Router) -> Claim:
        """A session abc that the application made; from then on it answers without naming one."""
        self.app.script = setting()
        assert (await browser("").ask(router)).status == 200
        self.app.script = answer()
        return self.rig.claim(NAME)


@pytest.fixture
def site(rig: Rig) -> Site:
    return Site(rig)


def code(client: Client) -> tuple[int, str | None]:
    """The status of an answer, and the code of a refusal."""
    found = re.search(rb'"code": ?"([a-z_]+)"', client.content)
    return client.status, found and found.group(1).decode()


GONE = (410, "session_owner_lost")


async def test_r3_a_session_is_claimed_before_the_answer_that_names_it_leaves(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    store = rig.pause_claims(worker)
    pause = store.pause("take")
    client = browser("")

    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await pause.reached.wait()
        assert client.sent == []
        pause.go()

    claim = rig.claim(NAME)
    assert (claim.kind, claim.owner.nonce) == ("session", worker.id)
    assert client.status == 200
    assert client.epoch == claim.claim_epoch
    assert client.value(b"set-cookie") == b"sid=abc; Path=/"
    assert client.value(b"rollout-worker") == worker.id.encode()


async def test_r3_a_session_is_served_by_its_owner_wherever_it_arrives(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    claim = await site.made(router)
    site.app.calls.clear()

    for entrance in (router, other, router, other):
        client = await browser().ask(entrance)
        assert client.value(b"rollout-worker") == worker.id.encode()
        assert client.epoch == claim.claim_epoch
    assert [call.routed.worker_id for call in site.app.calls if call.routed] == [worker.id] * 4
    assert rig.claim(NAME) == claim


async def test_r3_a_session_stays_where_it_is_though_its_cookie_is_signed_anew_each_time(
    rig: Rig, site: Site
) -> None:
    settings = replace(COOKIE, stable_id=lambda text: text.partition(".")[0])
    router, worker = await site.start(sessions=settings)
    other, _ = await site.start(sessions=settings)
    cookie = ""

    for number in range(4):
        site.app.script = setting(f"abc.{number}")
        client = await browser(cookie).ask((router, other)[number % 2])
        assert client.value(b"rollout-worker") == worker.id.encode()
        cookie = f"abc.{number}"

    assert rig.files_of(worker) == {NAME: client.epoch}
    assert len(list(rig.store.survey())) == 1


@pytest.mark.parametrize("http_version", ["1.0", "1.1"])
@pytest.mark.parametrize("swallows", [False, True])
async def test_r3_an_answer_whose_session_cannot_be_claimed_is_replaced(
    rig: Rig, site: Site, *, swallows: bool, http_version: str
) -> None:
    router, worker = await site.start()
    store = rig.pause_claims(worker)
    store.fail("take", FULL)

    async def making(call: AppCall) -> None:
        try:
            await setting()(call)
        except Exception:
            if not swallows:
                raise

    site.app.script = making
    client = Client(path="/x", http_version=http_version)
    await client.ask(router)

    assert client.status == 502
    assert b'"session_refused"' in client.content
    assert client.value(b"retry-after") is None, "its call ran"
    assert client.value(b"set-cookie") is None
    assert b"fine" not in client.content
    assert worker.ownership.grants == {}
    site.app.script = setting()
    assert (await browser("").ask(router)).status == 200, "it works again when the cause is gone"


async def test_r3_a_session_of_another_worker_is_given_to_nobody_else(rig: Rig, site: Site) -> None:
    router, _ = await site.start()
    other, _ = await site.start()
    claim = await site.made(router)

    site.app.script = setting()
    client = await browser("").ask(other)

    assert client.status == 502
    assert f"belongs to worker {claim.owner.nonce}".encode() in client.content
    assert client.value(b"set-cookie") is None
    assert rig.claim(NAME) == claim


async def test_r3_a_second_session_made_in_a_call_of_the_first_is_owned_too(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    await site.made(router)
    site.app.script = setting("second")

    assert (await browser().ask(router)).status == 200
    assert set(rig.files_of(worker)) == {NAME, "session.second"}


@pytest.mark.parametrize("swallows", [False, True])
async def test_r3_so_is_an_answer_to_a_call_of_another_session(
    rig: Rig, site: Site, *, swallows: bool
) -> None:
    router, worker = await site.start()
    claim = await site.made(router)
    rig.pause_claims(worker).fail("take", FULL)

    async def making(call: AppCall) -> None:
        try:
            await setting("second")(call)
        except Exception:
            if not swallows:
                raise

    site.app.script = making
    client = await browser(keep=True).ask(router)

    assert client.status == 502
    assert b'"session_refused"' in client.content
    assert client.value(b"set-cookie") is None
    assert rig.files_of(worker) == {NAME: claim.claim_epoch}


async def test_r3_a_session_made_in_a_call_of_a_rollout_is_the_rollouts_own_affair(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()

    assert (await Client().ask(router)).value(b"set-cookie") == b"sid=abc; Path=/"
    assert set(rig.files_of(worker)) == {"r1"}


async def test_r3_a_session_needs_no_rollout_key(rig: Rig) -> None:
    site = Site(rig)
    router, _ = await site.start(rollout_keys=b"secret")
    claim = await site.made(router)

    assert (await browser().ask(router)).epoch == claim.claim_epoch
    assert (await Client().ask(router)).status == 401


async def test_r3_deltas_of_a_session_are_rebuilt_at_its_owner(rig: Rig) -> None:
    site = Site(rig)
    router, _ = await site.start()
    other, _ = await site.start()
    claim = await site.made(router)
    first, second = b"a" * 2000, b"a" * 2000 + b"b"
    digest = hashlib.sha256(first).hexdigest()
    frame = encode_frame(digest, second, first, content_type=None, deflate=False)
    assert frame is not None

    def delta() -> Client:
        return Client(frame, path="/x", headers=[(b"cookie", b"sid=abc"), FRAME])

    early = await delta().ask(other)
    assert (early.status, early.mark) == (409, b"resync")
    assert (await browser(body=first, keep=True).ask(other)).status == 200
    late = await delta().ask(other)

    assert late.mark == b"kept=" + hashlib.sha256(second).hexdigest().encode()
    assert late.epoch == claim.claim_epoch
    assert site.app.calls[-1].body == second


async def test_r3_at_the_bound_new_sessions_are_refused_and_old_ones_stay(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start(sessions=replace(COOKIE, number_max=1))
    await site.made(router)

    site.app.script = setting("second")
    making = await browser("").ask(router)
    offered = await browser("second").ask(router)
    assert code(making) == (502, "session_refused")
    assert code(offered) == (503, "overloaded"), "nothing ran"
    assert [client.value(b"retry-after") for client in (making, offered)] == [None, b"1"]
    site.app.script = answer()
    assert (await browser().ask(router)).status == 200
    assert set(rig.files_of(worker)) == {NAME}


async def test_r3_a_closed_session_gives_its_claim_back_and_makes_room(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start(sessions=replace(COOKIE, number_max=1))
    await site.made(router)

    async def closing(call: AppCall) -> None:
        assert close_session(call.scope)
        await setting()(call)  # the refresh of a cookie does not bring it back

    site.app.script = closing
    assert (await browser().ask(router)).status == 200
    await worker.ownership.wait_settled(NAME)
    assert rig.store.read(NAME) is None

    site.app.script = setting("second")
    assert (await browser("").ask(router)).status == 200
    assert set(rig.files_of(worker)) == {"session.second"}


async def test_r3_a_session_closed_during_another_call_goes_with_the_last_one(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    claim = await site.made(router)
    finish = asyncio.Event()

    async def waiting(call: AppCall) -> None:
        await finish.wait()
        await answer()(call)

    site.app.script = waiting
    async with asyncio.TaskGroup() as group:
        group.create_task(browser().ask(router))
        for _ in range(2):
            await site.app.arrived()  # the call that made it, then this one
        site.app.script = _close
        await browser().ask(router)
        assert rig.claim(NAME) == claim
        finish.set()

    await worker.ownership.wait_settled(NAME)
    assert rig.store.read(NAME) is None


async def _close(call: AppCall) -> None:
    close_session(call.scope)
    await answer()(call)


async def test_r3_a_release_that_failed_is_tried_again(rig: Rig, site: Site) -> None:
    router, worker = await site.start()
    await site.made(router)
    rig.pause_claims(worker).fail("release", FULL)
    site.app.script = _close

    await browser().ask(router)
    await worker.ownership.wait_settled(NAME)
    assert set(worker.ownership.grants) == {NAME}
    worker.ownership.release_overdue()
    await worker.ownership.wait_settled(NAME)
    assert rig.store.read(NAME) is None
    assert worker.ownership.is_clear


def test_r3_a_request_of_no_session_closes_none() -> None:
    assert not close_session({"type": "http"})


async def test_r3_an_id_that_only_a_client_names_is_held_for_the_call_alone(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    site.app.script = answer(status=404)
    epochs = []

    for entrance in (router, other):
        client = await browser("invented").ask(entrance)
        assert client.status == 404
        epochs.append(client.epoch)
        served = entrance.worker
        assert served is not None
        await served.ownership.wait_settled("session.invented")
        assert rig.store.read("session.invented") is None
    assert None not in epochs
    assert worker.ownership.grants == {}


async def test_r3_an_id_that_the_application_keeps_has_one_owner_from_its_first_call_on(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    begin = asyncio.Event()

    async def keeping(call: AppCall) -> None:
        await begin.wait()
        await setting()(call)

    site.app.script = keeping
    clients = [browser(), browser()]
    async with asyncio.TaskGroup() as group:
        group.create_task(clients[0].ask(router))
        await site.app.arrived()
        group.create_task(clients[1].ask(other))
        await site.app.arrived()  # over the hop
        begin.set()

    assert {client.value(b"rollout-worker") for client in clients} == {worker.id.encode()}
    assert rig.claim(NAME).owner.nonce == worker.id


async def test_r3_a_session_of_a_dead_owner_is_410_at_every_worker(rig: Rig, site: Site) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    claim = await site.made(router)
    await rig.kill(worker)
    site.app.calls.clear()

    first, second = await browser().ask(other), await browser(keep=True).ask(other)

    assert code(first) == code(second) == GONE
    assert second.mark == b"none"
    assert b"the worker that owned it died" in first.content
    assert first.epoch == claim.claim_epoch
    assert rig.claim(NAME).state == "lost"
    assert site.app.calls == []
    site.app.script = setting()
    again = await browser("").ask(other)
    assert again.status == 502, "a lost id is not given out again"
    assert b"was lost by worker" in again.content


async def test_r3_a_leaver_marks_its_sessions_lost_when_their_calls_have_ended(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    await site.made(router)
    finish = asyncio.Event()

    async def waiting(call: AppCall) -> None:
        await finish.wait()
        await answer(b"in time")(call)

    site.app.script = waiting
    client = browser()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(other))
        for _ in range(2):
            await site.app.arrived()
        group.create_task(router.stop_worker())
        await asyncio.sleep(0)  # it has begun to leave
        assert worker.ownership.leaving
        assert rig.claim(NAME).state == "owned"
        finish.set()

    assert client.content == b"in time"
    assert rig.claim(NAME).state == "lost"
    after = await browser().ask(other)
    assert code(after) == GONE
    assert b"the worker that owned it left" in after.content
    assert rig.store.owner(worker.id) is None, "its owner file went: no claim needs it"


async def test_sessions_are_counted_while_they_are_held_and_by_how_they_end(site: Site) -> None:
    async def close(call: AppCall) -> None:
        assert close_session(call.scope)
        await answer()(call)

    def ended(reason: str) -> float:
        return counted("rollout_router_releases_total", reason=reason)

    router, worker = await site.start()
    before = {reason: ended(reason) for reason in ("session_ended", "session_lost")}
    await site.made(router)
    worker._set_gauges()
    assert counted("rollout_router_sessions_held") == 1

    site.app.script = close
    await browser().ask(router)
    await worker.ownership.wait_released()
    assert ended("session_ended") == before["session_ended"] + 1

    await site.made(router)
    await router.stop_worker()
    assert ended("session_lost") == before["session_lost"] + 1


async def test_r3_a_leaver_takes_no_session_that_only_a_client_names(rig: Rig) -> None:
    site = Site(rig)
    router, worker = await site.start()
    worker.ownership.leave()

    assert code(await browser("offered").ask(router)) == (503, "draining")
    assert site.app.calls == []
    assert worker.ownership.is_clear


@pytest.mark.parametrize("rotates", [False, True])
async def test_r3_a_session_that_an_answer_names_at_a_leaver_is_lost_when_its_calls_have_ended(
    rig: Rig, site: Site, *, rotates: bool
) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    if rotates:
        await site.made(router)
    answering, named, finish = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def naming(call: AppCall) -> None:
        await answering.wait()
        headers = [(b"set-cookie", b"sid=new")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        named.set()
        await finish.wait()
        await call.send({"type": "http.response.body", "body": b"welcome"})

    site.app.script = naming
    client = browser("abc" if rotates else "")
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        for _ in range(1 + rotates):
            await site.app.arrived()
        worker.leave()
        answering.set()
        await named.wait()
        site.app.script = answer()
        later = await browser("new").ask(other)
        assert later.value(b"rollout-worker") == worker.id.encode()
        assert rig.claim("session.new").state == "owned"
        finish.set()

    assert (client.status, client.content) == (200, b"welcome")
    assert client.value(b"set-cookie") == b"sid=new"
    await worker.ownership.wait_released()
    for session in ["new", "abc"][: 1 + rotates]:
        after = await browser(session).ask(other)
        assert code(after) == GONE
        assert b"the worker that owned it left" in after.content
    assert worker.ownership.is_clear


async def test_r3_sessions_are_bounded_in_the_store_however_many_lives_a_worker_has(
    rig: Rig, site: Site
) -> None:
    settings = replace(COOKIE, number_max=2, remembered_max=3)
    said = []
    for life in range(4):
        router, worker = await site.start(sessions=settings)
        for number in range(2):
            site.app.script = setting(f"s{life}{number}")
            said.append(code(await browser("").ask(router)))
        await router.stop_worker()

    assert said == [(200, None)] * 3 + [(502, "session_refused")] * 5
    assert {claim.rollout_id for claim in rig.store.survey() if isinstance(claim, Claim)} == {
        f"session.s{number}" for number in ("00", "01", "10")
    }
    router, worker = await site.start(sessions=settings)
    assert code(await browser("s00").ask(router)) == GONE, "old ones are not forgotten"
    offered = await browser("offered").ask(router)
    assert (code(offered), offered.value(b"retry-after")) == ((503, "overloaded"), b"1")

    tombstone = rig.claim("session.s00")
    assert rig.store.forget(tombstone)
    await worker.count_sessions()
    assert (await browser("").ask(router)).status == 200, "it works again where one is gone"


async def test_r3_the_sessions_of_a_store_are_counted_again_and_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, worker = await Site(rig).start(sweep_s=0.001)
    counted, times = asyncio.Event(), iter(range(3))

    async def count() -> None:
        if next(times, None) is None:
            counted.set()

    monkeypatch.setattr(worker, "count_sessions", count)

    await counted.wait()


@pytest.mark.parametrize("why", ["gate", "bound", "store", "left"])
async def test_r3_who_is_told_that_the_call_ran_is_not_told_to_send_it_again(
    rig: Rig, site: Site, why: str
) -> None:
    router, worker = await site.start(sessions=replace(COOKIE, number_max=1))
    site.app.script = setting("new")
    match why:
        case "gate":
            worker.admission.close_own(by=CLOSED.by, why=CLOSED.why)
        case "bound":
            await site.made(router)
            site.app.script = setting("new")
        case "store":
            rig.pause_claims(worker).fail("take", FULL)
        case "left":
            worker.closed = True

    client = await browser("").ask(router)

    assert code(client) == (502, "session_refused")
    assert b"the call ran" in client.content
    assert b"send again" not in client.content


async def test_r3_a_session_that_its_living_owner_does_not_hold_is_410(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    other, _ = await site.start()
    taken = rig.store.take(NAME, worker.life.owner, kind="session")
    assert isinstance(taken, Grant)

    for entrance in (router, other):
        client = await browser().ask(entrance)
        assert code(client) == GONE
    assert rig.claim(NAME) == taken.claim
    assert site.app.calls == []


async def test_r3_a_session_that_was_forced_away_is_410_and_makes_room(
    rig: Rig, site: Site
) -> None:
    router, _ = await site.start(sessions=replace(COOKIE, number_max=1))
    other, _ = await site.start()
    await site.made(router)
    rig.force(NAME)

    for entrance in (router, other):
        client = await browser().ask(entrance)
        assert code(client) == GONE
        assert b"the test said so" in client.content
    site.app.script = setting("second")
    assert (await browser("").ask(router)).status == 200


@pytest.mark.parametrize("tombstone_s", [0.0, 3600.0])
async def test_r3_a_sweeper_forgets_a_tombstone_after_its_time_and_not_before(
    rig: Rig, site: Site, tombstone_s: float
) -> None:
    router, worker = await site.start(sessions=replace(COOKIE, tombstone_s=tombstone_s))
    await site.made(router)
    rig.force(NAME)
    worker._sweeping._pass_due_at = 0.0  # as after ten minutes

    swept = await asyncio.to_thread(worker._sweeping.look)

    assert swept is not None
    assert [claim.rollout_id for claim in swept.forgotten] == [NAME] * (tombstone_s == 0)
    assert ((await browser().ask(router)).status == 410) is bool(tombstone_s)


async def test_r3_after_its_time_a_tombstone_gives_way(rig: Rig, site: Site) -> None:
    router, worker = await site.start()
    other, replacement = await site.start(sessions=replace(COOKIE, tombstone_s=0))
    await site.made(router)
    await rig.kill(worker)
    site.app.script = setting()

    client = await browser().ask(other)

    assert client.status == 200
    assert rig.claim(NAME).owner.nonce == replacement.id
    assert rig.claim(NAME).state == "owned"


async def test_r3_history_bounds_take_the_bases_of_a_session_and_not_the_session(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start(history=Bounds(rollouts_max=0))
    claim = await site.made(router)

    for _ in range(2):
        client = await browser(keep=True).ask(router)
        assert client.mark == b"kept=" + hashlib.sha256(b"{}").hexdigest().encode()
        assert client.epoch == claim.claim_epoch
        assert worker.history.statistics().rollouts == 0
    assert rig.claim(NAME) == claim
    await router.stop_worker()
    assert rig.claim(NAME).state == "lost"


async def test_h5_a_session_and_a_rollout_of_one_id_share_nothing(rig: Rig, site: Site) -> None:
    router, _ = await site.start()
    await site.made(router)

    rollout = await Client(path="/sessions/abc/x").ask(router)
    named_alike = await Client(path=f"/sessions/{NAME}/x").ask(router)
    session = await browser().ask(router)

    assert rollout.epoch == rig.claim("abc").claim_epoch
    assert session.epoch == rig.claim(NAME).claim_epoch
    assert named_alike.epoch is None  # passed on untouched, as every id outside the pattern is
    assert [rig.claim(name).kind for name in ("abc", NAME)] == ["rollout", "session"]


async def test_r3_without_session_settings_a_claimed_session_is_no_rollout(
    rig: Rig,
) -> None:
    site = Site(rig)
    router, _ = await site.start()
    await site.made(router)
    plain, _ = await site.start(sessions=None)

    client = await Client(path=f"/sessions/{NAME}/x").ask(plain)

    assert client.status == 400
    assert b'"rollout_id_invalid"' in client.content


async def test_r6_a_closed_gate_claims_no_session(rig: Rig, site: Site) -> None:
    router, worker = await site.start()
    await site.made(router)
    worker.admission.close_own(by=CLOSED.by, why=CLOSED.why)
    site.app.script = setting("second")

    assert code(await browser("").ask(router)) == (502, "session_refused")
    assert code(await browser("offered").ask(router)) == (503, "admission_closed")
    assert set(rig.files_of(worker)) == {NAME}


async def test_r6_a_gate_that_closes_while_a_session_is_claimed_lets_none_of_it_out(
    rig: Rig, site: Site
) -> None:
    """Whoever closed it was told that nothing is in hand: the call that makes it has no claim."""
    router, worker = await site.start()
    pause = rig.pause_claims(worker).pause("take")
    client = browser("")

    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await pause.reached.wait()
        worker.admission.close_own(by=CLOSED.by, why=CLOSED.why)
        pause.go()
    await worker.ownership.wait_settled(NAME)

    assert client.status == 502
    assert b'"session_refused"' in client.content
    assert b"the call ran" in client.content
    assert client.value(b"set-cookie") is None
    assert rig.store.read(NAME) is None
    assert worker.ownership.is_clear


async def test_r6_behind_a_closed_gate_a_call_in_flight_may_still_name_its_own_session(
    rig: Rig, site: Site
) -> None:
    router, worker = await site.start()
    claim = await site.made(router)

    async def renewing(call: AppCall) -> None:
        worker.admission.close_own(by=CLOSED.by, why=CLOSED.why)
        await setting()(call)

    site.app.script = renewing
    client = await browser().ask(router)

    assert (client.status, client.value(b"set-cookie")) == (200, b"sid=abc; Path=/")
    assert rig.claim(NAME) == claim


async def test_r7_without_routing_an_answer_with_a_session_passes_untouched(
    rig: Rig, site: Site
) -> None:
    router, _ = await site.start(history_delta=False)

    made, known = await browser("").ask(router), await browser().ask(router)

    for client in (made, known):
        assert client.status == 200
        assert client.epoch is None
    assert list(rig.store.survey()) == []


async def test_r7_an_answer_that_names_no_session_passes_untouched(rig: Rig, site: Site) -> None:
    router, _ = await site.start()
    site.app.script = answer(b"as it is", headers=[(b"rollout-x", b"1"), (b"set-cookie", b"a=b")])
    client = Client(path="/x", headers=[(b"rollout-y", b"2")])

    await client.ask(router)

    assert client.sent[0]["headers"] == [(b"rollout-x", b"1"), (b"set-cookie", b"a=b")]
    assert site.app.calls[0].scope is client.scope
    assert list(rig.store.survey()) == []


async def test_r3_where_no_worker_runs_an_answer_that_makes_a_session_is_replaced(
    rig: Rig,
) -> None:
    app = Application(setting())
    router = Router(app, rig.settings(sessions=COOKIE))

    client = await browser("").ask(router)

    assert client.status == 502
    assert b'"session_refused"' in client.content


async def test_r3_what_an_application_raises_stays_its_own(rig: Rig) -> None:
    site = Site(rig)

    async def failing(_: AppCall) -> None:
        raise LookupError("mine")

    router, _ = await site.start()
    site.app.script = failing

    with pytest.raises(LookupError, match="mine"):
        await browser("").ask(router)


async def test_c6_a_caller_that_went_away_leaves_no_session_behind(rig: Rig, site: Site) -> None:
    router, worker = await site.start()
    pause = rig.pause_claims(worker).pause("take")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(browser("offered").ask(router))
        await pause.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
        pause.go()
    for _ in range(3):  # the acquisition, its callbacks, the release
        await worker.ownership.wait_settled("session.offered")
        await asyncio.sleep(0)

    assert rig.store.read("session.offered") is None
    assert worker.ownership.is_clear


async def test_c7_an_acquisition_that_failed_costs_no_place(rig: Rig, site: Site) -> None:
    router, worker = await site.start(sessions=replace(COOKIE, number_max=1))
    store = rig.pause_claims(worker)
    owner = rig.owner(None)
    assert isinstance(rig.store.take("session.theirs", owner.life.owner, kind="session"), Grant)

    for _ in range(2):
        store.fail("take", FULL)
        assert (await browser("offered").ask(router)).status == 503
    moved = await worker.ownership.acquire("session.theirs", kind="session")
    assert not isinstance(moved, Held)
    assert (await site.made(router)).owner.nonce == worker.id


def test_r3_sessions_are_off_by_default(rig: Rig) -> None:
    assert Settings(state_dir=rig.state_dir, run_dir=rig.run_dir).sessions is None
