# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/wire.md, put to a real router: it answers as the page says (H1, H4, D2)."""

from http import HTTPStatus

from support.routing import Application, Client, Rig, answer
from support.wire_page import Written, message

from rollout_router.routing import Router
from rollout_router.transport.sandbox.wire import sha256_hex

WORKER = b"rollout-worker"


async def asked(router: Router, request: Written, *, path: str | None = None) -> Client:
    headers = [(name.lower().encode(), value.encode()) for name, value in request.headers]
    path = path or request.start.split()[1]
    return await Client(request.body, path=path, headers=headers).ask(router)


def written(client: Client) -> Written:
    """The answer as the page writes one."""
    start = f"HTTP/1.1 {client.status} {HTTPStatus(client.status).phrase}"
    headers = [(name.decode(), value.decode()) for name, value in client.sent[0]["headers"]]
    return Written(start, headers, client.content)


def model() -> Application:
    """It answers as that of the page."""
    _, headers, body = message("first-answer")
    content = [(name.encode(), value.encode()) for name, value in headers[:2]]
    return Application(answer(body, headers=content))


def worker_of_the_page(name: str) -> str:
    return dict(message(name).headers)[WORKER.decode()]


def on_the_page(name: str, *, worker_id: str) -> Written:
    """The page's answer, as the worker of this test says it."""
    start, headers, body = message(name)
    theirs = worker_of_the_page(name)
    return Written(start, [(k, v.replace(theirs, worker_id)) for k, v in headers], body)


async def test_h1_the_conversation_of_the_page_with_a_real_router(rig: Rig) -> None:
    app = model()
    (router, owner) = await rig.start(app)
    for name in ("first", "second"):
        client = await asked(router, message(name))
        assert written(client) == on_the_page(f"{name}-answer", worker_id=owner.id)
    await rig.kill(owner)
    (router, heir) = await rig.start(app)

    for name in ("third", "packed"):
        client = await asked(router, message(name))
        assert written(client) == on_the_page(f"{name}-answer", worker_id=heir.id)

    kept = [dict(message(f"{name}-answer").headers) for name in ("first", "second", "packed")]
    assert [f"kept={sha256_hex(call.body)}" for call in app.calls] == [
        headers["rollout-history"] for headers in kept
    ]
    assert worker_of_the_page("first-answer") == worker_of_the_page("second-answer")
    assert worker_of_the_page("third-answer") == worker_of_the_page("packed-answer")
    assert worker_of_the_page("first-answer") != worker_of_the_page("third-answer")


async def test_d2_what_the_page_says_is_refused_is_refused_in_its_words(rig: Rig) -> None:
    app = model()
    router, worker = await rig.start(app)
    await asked(router, message("first"))
    start, headers, body = message("second")
    shorter = dict(headers) | {"Content-Length": str(len(body) - 1)}
    cut = Written(start, list(shorter.items()), body[:-1])

    malformed = await asked(router, cut)
    unsupported = await asked(router, message("second"), path="/v1/chat/completions")
    deltas_off, _ = await rig.start(app, history_delta=False)
    off = written(await asked(deltas_off, message("second")))

    assert written(malformed) == on_the_page("malformed-answer", worker_id=worker.id)
    assert written(unsupported) == message("unsupported-answer")
    named = off.body.replace(b'"rollout_id": "r1"', b'"rollout_id": null')
    assert off._replace(body=named) == message("unsupported-answer")
    assert named != off.body
    assert worker_of_the_page("malformed-answer") == worker_of_the_page("first-answer")
    assert len(app.calls) == 1
