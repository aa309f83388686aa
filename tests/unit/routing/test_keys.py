# SPDX-License-Identifier: Apache-2.0
"""Rollout keys: what opens a rollout, and that the key of one opens no other."""

import hashlib
import hmac
from typing import Any

import pytest
from support.routing import Application, Client, Rig

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.routing import Router, SessionSettings, mint_key
from rollout_router.routing.keys import key_matches
from rollout_router.transport.sandbox.frame import encode_frame

SECRET = b"secret"
KEY = mint_key(SECRET, "r1").encode()
KEEP = (b"rollout-history", b"keep")
FRAME = (b"content-type", b"application/vnd.rollout-delta")
FIRST, SECOND = b"a" * 2000, b"a" * 2000 + b"b"
Headers = list[tuple[bytes, bytes]]


def bearer(rollout_id: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + mint_key(SECRET, rollout_id).encode()


def plain(rollout_id: str) -> tuple[bytes, bytes]:
    return b"X-Api-Key", mint_key(SECRET, rollout_id).encode()


def test_a_key_is_the_hmac_of_its_rollout() -> None:
    assert KEY.decode() == hmac.new(SECRET, b"r1", hashlib.sha256).hexdigest()


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(key: bytes, expected: bytes) -> bool:
        assert expected == KEY
        compared.append(key)
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)

    assert not key_matches(SECRET, "r1", [(b"authorization", b"Bearer a"), (b"x-api-key", KEY)])
    assert compared == [b"a", KEY], "by nothing else"


@pytest.mark.parametrize("name", ["", "a b", "%61", ".a", "a" * 201, "é", "a\n"])
def test_no_key_is_made_for_an_id_that_no_rollout_has(name: str) -> None:
    with pytest.raises(ValueError, match="no rollout id"):
        mint_key(SECRET, name)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer " + KEY)],
        [(b"Authorization", b"bearer " + KEY)],
        [(b"authorization", b"BEARER   " + KEY)],
        [(b"x-api-key", KEY)],  # as clients of the Messages dialect send it
        [(b"X-API-Key", b" " + KEY)],
        [(b"authorization", b"Bearer of-somebody-else"), (b"x-api-key", KEY)],
        [(b"x-api-key", b"of-somebody-else"), bearer("r2"), bearer("r1")],
    ],
)
def test_its_own_key_opens_a_rollout(headers: Headers) -> None:
    assert key_matches(SECRET, "r1", headers)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        mint_key(SECRET, "r2").encode(),
        mint_key(b"other", "r1").encode(),
        KEY[:-1],
        KEY + b"a",
        KEY.upper(),
    ],
)
def test_no_other_key_opens_a_rollout(value: bytes) -> None:
    for header in [(b"authorization", b"Bearer " + value), (b"x-api-key", value)]:
        assert not key_matches(SECRET, "r1", [header])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer")],
        [(b"authorization", KEY)],
        [(b"authorization", b"Basic " + KEY)],
        [(b"x-api-key", b"Bearer " + KEY)],
        [(b"cookie", KEY)],
    ],
)
def test_a_key_in_another_form_opens_nothing(headers: Headers) -> None:
    assert not key_matches(SECRET, "r1", headers)


# At the router: the sandbox of r1 holds one key, and r2 is somebody else's.


def delta(base: bytes, target: bytes, *, path: str, headers: Headers) -> Client:
    digest = hashlib.sha256(base).hexdigest()
    frame = encode_frame(digest, target, base, content_type=None, deflate=False)
    assert frame is not None
    return Client(frame, path=path, headers=[FRAME, *headers])


async def rollout_of_another(rig: Rig, app: Application, **changes: Any) -> Router:
    """A service in which r2 has a base, FIRST."""
    router, _ = await rig.start(app, rollout_keys=SECRET, **changes)
    owner = Client(FIRST, path="/sessions/r2/x", headers=[KEEP, bearer("r2")])
    assert (await owner.ask(router)).status == 200
    app.calls.clear()
    return router


TRICKS: dict[str, tuple[int, str, Headers]] = {
    "path": (401, "/sessions/r2/x", [bearer("r1")]),
    "path-of-a-gym": (401, "/ng-rollout/r2/x", [bearer("r1")]),
    "header": (401, "/x", [bearer("r1"), (b"x-session-id", b"r2")]),
    "path-beats-the-header": (401, "/sessions/r2/x", [bearer("r1"), (b"x-session-id", b"r1")]),
    "two-headers": (400, "/x", [bearer("r1"), (b"x-session-id", b"r1"), (b"X-Session-ID", b"r2")]),
    "both-keys-are-ours": (401, "/sessions/r2/x", [bearer("r1"), plain("r1")]),
    "no-key": (401, "/sessions/r2/x", []),
    "encoded-id": (400, "/sessions/%72%32/x", [bearer("r1")]),
    "encoded-prefix": (400, "/%73essions/r2/x", [bearer("r1")]),
    "encoded-slash": (400, "/sessions%2Fr2/x", [bearer("r1")]),
    "encoded-prefix-and-own-header": (
        400,
        "/ng%2Drollout/r2/x",
        [bearer("r1"), (b"x-session-id", b"r1")],
    ),
    "id-and-more": (400, "/sessions/r2;a/x", [bearer("r1")]),
    "frame": (401, "/sessions/r2/x", [bearer("r1"), FRAME]),
    "as-a-hop": (
        401,
        "/sessions/r2/x",
        [bearer("r1"), (b"rollout-hop", b"1"), (b"rollout-expect-epoch", b"1")],
    ),
    "upgrade": (401, "/sessions/r2/x", [bearer("r1"), (b"upgrade", b"websocket")]),
    "name-of-a-session": (400, "/sessions/session.r2/x", [bearer("session.r2")]),
}


@pytest.mark.parametrize("deltas", [True, False])
async def test_h5_the_key_of_one_rollout_reaches_no_other(rig: Rig, *, deltas: bool) -> None:
    app = Application()
    sessions = SessionSettings(cookie="sid")
    router = await rollout_of_another(rig, app, history_delta=deltas, sessions=sessions)
    before = list(rig.store.survey())
    answers = {
        trick: await Client(path=path, headers=headers).ask(router)
        for trick, (_, path, headers) in TRICKS.items()
        if deltas or trick != "name-of-a-session"  # where nothing is routed there are no sessions
    }

    assert {trick: answer.status for trick, answer in answers.items()} == {
        trick: TRICKS[trick][0] for trick in answers
    }
    assert app.calls == []
    assert list(rig.store.survey()) == before
    for answer in answers.values():
        assert answer.value(b"rollout-worker") is None, "not even who owns it is said"
        assert not [hidden for hidden in (KEY, SECRET) if hidden in answer.content]


async def test_h5_a_base_of_another_rollout_is_a_resync_under_the_own_key(rig: Rig) -> None:
    app = Application()
    router = await rollout_of_another(rig, app)

    own = await delta(FIRST, SECOND, path="/sessions/r1/x", headers=[bearer("r1")]).ask(router)
    theirs = await delta(FIRST, SECOND, path="/sessions/r2/x", headers=[bearer("r1")]).ask(router)

    assert (own.status, own.mark) == (409, b"resync")
    assert (theirs.status, theirs.mark) == (401, b"none")
    assert app.calls == []


async def test_h5_a_header_that_names_another_rollout_than_the_path_decides_nothing(
    rig: Rig,
) -> None:
    app = Application()
    router = await rollout_of_another(rig, app)
    before = rig.claim("r2")
    named = (b"x-session-id", b"r2")

    client = await Client(FIRST, headers=[KEEP, bearer("r1"), named]).ask(router)

    assert (client.status, client.epoch) == (200, rig.claim("r1").claim_epoch)
    assert app.calls[0].routed is not None
    assert app.calls[0].routed.rollout_id == "r1"
    assert rig.claim("r2") == before


async def test_h5_a_session_of_the_same_id_is_no_way_into_a_rollout(rig: Rig) -> None:
    app = Application()
    router = await rollout_of_another(rig, app, sessions=SessionSettings(cookie="sid"))

    client = await delta(FIRST, SECOND, path="/x", headers=[(b"cookie", b"sid=r2")]).ask(router)

    assert (client.status, client.mark) == (409, b"resync")
    assert app.calls == []


@pytest.mark.parametrize("key", [bearer, plain])
@pytest.mark.parametrize("deltas", [True, False])
async def test_a_key_is_taken_off_before_the_application_sees_the_request(
    rig: Rig, *, deltas: bool, key: Any
) -> None:
    app = Application()
    router, _ = await rig.start(app, rollout_keys=SECRET, history_delta=deltas)
    other, _ = await rig.start(app, rollout_keys=SECRET, history_delta=deltas)

    for entrance in (router, other):  # the second time over the hop
        headers = [key("r1"), (b"X-API-KEY", b"a"), (b"Authorization", b"b"), (b"x-own", b"c")]
        assert (await Client(headers=headers).ask(entrance)).status == 200

    for call in app.calls:
        assert (b"x-own", b"c") in call.headers
        assert not {name.lower() for name, _ in call.headers} & {b"authorization", b"x-api-key"}


async def test_r7_without_keys_these_headers_are_the_applications(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)

    await Client(headers=[bearer("r1"), plain("r1")]).ask(router)

    assert app.calls[0].headers == [bearer("r1"), plain("r1")]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (b"/sessions/r2/x", [bearer("r1")], 401),
        (b"/sessions/%72%32/x", [bearer("r1")], 400),
        (b"/sessions/r1/x", [bearer("r1"), (b"x-own", b"c")], None),
        (b"/chat", [], None),
    ],
)
async def test_a_websocket_needs_the_key_of_its_rollout_too(
    rig: Rig, path: bytes, headers: Headers, status: int | None
) -> None:
    got: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        _ = receive, send
        got.append(scope)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    router = Router(app, rig.settings(rollout_keys=SECRET, history_delta=False))
    extensions: dict[str, Any] = {"websocket.http.response": {}}
    scope = {"type": "websocket", "raw_path": path, "headers": headers, "extensions": extensions}
    await router(scope, receive, send)

    assert [message.get("status") for message in sent[:1]] == [status] * bool(status)
    assert [one["headers"] for one in got] == [headers[1:]] * (not status)


def test_the_secret_is_not_shown_with_the_settings(rig: Rig) -> None:
    assert "secret" not in repr(rig.settings(rollout_keys=SECRET))
