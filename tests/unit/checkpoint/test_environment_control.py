# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.receiving import Answered, Notebook, asking, creates, named

from rollout_router.checkpoint import environment_control
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.environment_control import CONTROL_PATH, document_of, read_document
from rollout_router.checkpoint.environments import Environments
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.receiver import Receiver

E1 = CONTROL_PATH + "e1"


class Server:
    def __init__(self, path: Path, *, restart_only: bool) -> None:
        self.book = Notebook()
        self.environments = Environments(path)
        state = None if restart_only else self.book
        self.app = Receiver(self.book, self.environments, state=state, creates=creates)

    async def ask(self, path: str, headers: Any = None, body: bytes = b"", **more: Any) -> Answered:
        return await asking(self.app, path, headers, body=body, **more)

    async def get(self) -> Answered:
        return await self.ask(E1, method="GET")

    async def put(self, body: bytes, query: bytes = b"") -> Answered:
        return await self.ask(E1, body=body, query=query, method="PUT")

    async def delete(self, made: str = "") -> int:
        query = made and f"import={made}"
        return (await self.ask(E1, method="DELETE", query=query.encode())).status

    async def steps(self, *sequences: int) -> None:
        """Make e1 or go on with it, at claim epoch 3."""
        for sequence in sequences:
            path = "/make" if sequence == 1 else "/step"
            answer = await self.ask(path, named(sequence, epoch=3), str(sequence).encode())
            assert answer.status == 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(name: str = "one", *, restart_only: bool = False) -> Server:
        servers.append(Server(tmp_path / name, restart_only=restart_only))
        return servers[-1]

    yield start
    for one in servers:
        one.environments.close()


def test_a_document_says_what_is_recorded(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = server()
        await one.steps(1, 2)
        answer = await one.get()
        document = json.loads(answer.body)
        said = document.pop("sha256")
        assert (answer.status, said) == (200, digest(canonical(document)))
        request_digest = document["last"].pop("request_digest")
        assert request_digest == digest(canonical(["POST", "/step", "", digest(b"2")]))
        assert document == {
            "schema": 1,
            "environment_id": "e1",
            "rollout_id": "r1",
            "store_id": "store",
            "claim_epoch": 3,
            "revision": 2,
            "last": {
                "sequence": 2,
                "reply": {
                    "status": 200,
                    "headers": [
                        ["Y29udGVudC10eXBl", "YXBwbGljYXRpb24vanNvbg=="],
                        ["eC10d28=", "MQ=="],
                        ["eC10d28=", "6Q=="],
                        ["Y29udGVudC1sZW5ndGg=", "MTA="],
                    ],
                    "body": "WyIxIiwgIjIiXQ==",
                },
            },
            "state": "WyIxIiwgIjIiXQ==",
            "restart_only": False,
        }

    asyncio.run(run())


def test_an_operation_in_flight_is_not_in_a_document(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = server()
        await one.steps(1, 2)
        before = await one.get()
        async with asyncio.TaskGroup() as group:
            group.create_task(one.ask("/wait", named(3, epoch=3), b"3"))
            await one.book.working.wait()
            assert await one.get() == before
            one.book.go_on.set()
        assert json.loads((await one.get()).body)["revision"] == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("query", "refused", "taken"),
    [(b"", 2, 3), (b"store_id=store", 2, 3), (b"store_id=new", 3, 1)],
    ids=["its own store", "the same store", "another store"],
)
def test_f1_an_environment_goes_on_elsewhere_under_its_own_id(
    server: Callable[..., Server], *, query: bytes, refused: int, taken: int
) -> None:
    store = "new" if b"new" in query else "store"

    async def run() -> None:
        one, two = server(), server("two")
        await one.steps(1, 2)
        document = (await one.get()).body
        assert [(await two.put(document, query)).status for _ in range(2)] == [201, 204]
        stale = named(2, epoch=refused, store="store")
        assert (await two.ask("/step", stale, b"2")).code == "stale_attempt"
        repeat = await two.ask("/step", named(2, epoch=taken, store=store), b"2")
        assert repeat == await one.ask("/step", named(2, epoch=3), b"2")
        after = await two.ask("/step", named(3, epoch=taken, store=store), b"3")
        assert (after.body, after.revision) == (b'["1", "2", "3"]', 3)
        assert (await two.put(document, query)).code == "restore_conflict"
        again = await two.ask("/step", named(3, epoch=taken, store=store), b"3")
        assert again == after

    asyncio.run(run())


def test_the_same_document_for_another_store_is_a_conflict(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = server()
        await one.steps(1)
        document = (await one.get()).body
        assert (await one.put(document)).status == 204  # it is there
        assert (await one.put(document, b"store_id=new")).code == "restore_conflict"

    asyncio.run(run())


def changed(document: dict[str, Any], *path: str, to: Any) -> bytes:
    """The document with one field another, and a digest that fits."""
    del document["sha256"]
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    return canonical({**document, "sha256": digest(canonical(document))}).encode()


DAMAGES = {
    "schema": (("schema",), 2),
    "a schema of true": (("schema",), True),
    "an unknown field": (("more",), 1),
    "an unknown field within": (("last", "reply", "more"), 1),
    "another environment": (("environment_id",), "e2"),
    "no id": (("rollout_id",), "../r1"),
    "an epoch of text": (("claim_epoch",), "3"),
    "an epoch beyond 63 bits": (("claim_epoch",), 1 << 63),
    "no revision": (("revision",), 0),
    "a last of null": (("last",), None),
    "a digest of another form": (("last", "request_digest"), "x"),
    "a failed reply": (("last", "reply", "status"), 500),
    "headers that are no pairs": (("last", "reply", "headers"), [["a"]]),
    "headers that are no base64": (("last", "reply", "headers"), [["a", "b"]]),
    "a body that is no base64": (("last", "reply", "body"), "é"),
    "a state that is no base64": (("state",), "!!!!"),
    "no state": (("state",), None),
    "a state of a restart-only one": (("restart_only",), True),
}


@pytest.mark.parametrize(("path", "to"), DAMAGES.values(), ids=DAMAGES)
def test_a_document_with_another_form_is_refused(
    server: Callable[..., Server], path: tuple[str, ...], to: Any
) -> None:
    async def run() -> None:
        one, two = server(), server("two")
        await one.steps(1)
        body = changed(json.loads((await one.get()).body), *path, to=to)
        answer = await two.put(body)
        assert (answer.status, answer.code) == (422, "manifest_damaged")
        assert await two.environments.look("e1") is None

    asyncio.run(run())


def test_every_cut_and_every_flipped_byte_of_a_document_is_noticed(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one = server()
        await one.steps(1)
        whole = (await one.get()).body
        read = read_document(whole, environment_id="e1")
        assert document_of(read).encode() == whole
        for place in range(len(whole)):
            flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
            for damaged in (whole[:place], flipped):
                with pytest.raises(CheckpointRefusal) as refused:
                    read_document(damaged, environment_id="e1")
                assert refused.value.code == "manifest_damaged"

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"[" * 100_000, b"[]", b"null", b"\xff", b"NaN"])
def test_what_is_no_document_is_refused(server: Callable[..., Server], body: bytes) -> None:
    assert asyncio.run(server().put(body)).code == "manifest_damaged"


def test_a_document_beyond_the_bound_is_refused(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_control, "DOCUMENT_BYTES_MAX", 3)
    assert asyncio.run(server().put(b"four")).code == "body_too_large"


def test_a_restart_only_environment_says_so_and_cannot_go_on_elsewhere(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one, two = server(restart_only=True), server("two")
        await one.steps(1)
        answer = await one.get()
        document = json.loads(answer.body)
        assert (document["restart_only"], document["state"]) == (True, None)
        assert (await two.put(answer.body)).status == 201
        assert (await two.ask("/step", named(2, epoch=3), b"2")).code == "environment_lost"

    asyncio.run(run())


def test_a_lost_environment_has_no_document(server: Callable[..., Server]) -> None:
    async def run() -> None:
        one = server(restart_only=True)
        await one.steps(1)
        await one.ask("/fail", named(2, epoch=3), b"2")
        assert (await one.get()).code == "environment_lost"

    asyncio.run(run())


def test_f1_a_removed_environment_is_never_made_again_by_a_late_operation(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one = server()
        await one.steps(1, 2)
        assert [await one.delete(), await one.delete()] == [204, 204]
        assert one.book.pages == {}
        assert (await one.get()).code == "environment_unknown"
        for process in (one, server()):
            for path, sequence, body, epoch, code in (
                ("/make", 1, b"1", 3, "stale_operation"),
                ("/make", 1, b"1", 2, "stale_attempt"),
                ("/make", 2, b"1", 3, "stale_operation"),
                ("/step", 2, b"2", 3, "stale_operation"),
                ("/step", 3, b"3", 3, "environment_unknown"),
            ):
                answer = await process.ask(path, named(sequence, epoch=epoch), body)
                assert answer.code == code
        assert (await one.ask("/make", named(3, epoch=3), b"a")).body == b'["a"]'
        assert (await one.ask("/make", named(1, epoch=3), b"1")).code == "stale_operation"

    asyncio.run(run())


def test_f1_an_import_does_not_lower_the_fence_of_what_was_removed(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one = server()
        await one.steps(1)
        document = (await one.get()).body
        await one.ask("/step", named(2, epoch=7), b"2")
        await one.delete()
        await one.put(document)
        assert (await one.ask("/step", named(2, epoch=6), b"x")).code == "stale_attempt"
        assert (await one.ask("/step", named(2, epoch=7), b"x")).body == b'["1", "x"]'

    asyncio.run(run())


@pytest.mark.parametrize("used", [None, "a step", "a repeat by a later owner", "another one"])
def test_an_import_is_taken_back_as_if_it_never_had_been_unless_it_was_used(
    server: Callable[..., Server], used: str | None
) -> None:
    async def run() -> None:
        one, two = server(), server("two")
        await one.steps(1)
        document = (await one.get()).body
        await one.steps(2)
        await one.delete()
        made = json.loads((await one.put(document)).body)["import"]
        match used:
            case "a step":
                await one.steps(2)
            case "a repeat by a later owner":
                assert (await one.ask("/make", named(1, epoch=4), b"1")).status == 200
            case "another one":
                await one.delete()
                await one.put(document)
        assert await two.delete(made) == 204  # nothing is there
        assert await one.delete(made) == (409 if used else 204)
        if used is None:
            assert (await one.get()).code == "environment_unknown"
            late = await one.ask("/make", named(2, epoch=3), b"2")
            assert late.code == "stale_operation"  # of the one that was removed before
        else:
            assert (await one.get()).status == 200

    asyncio.run(run())


def test_an_operation_of_a_removed_environment_is_not_recorded_in_its_successor(
    server: Callable[..., Server],
) -> None:
    async def run() -> None:
        one, two = server(), server()  # two processes over one file
        await one.steps(1)
        document = (await one.get()).body
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(one.ask("/wait", named(2, epoch=3), b"2"))
            await one.book.working.wait()
            assert [await two.delete(), (await two.put(document)).status] == [204, 201]
            one.book.go_on.set()
        assert slow.result().code == "environment_unavailable"
        assert (await two.get()).body == document

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", E1, b""),
        ("GET", CONTROL_PATH, b""),
        ("GET", CONTROL_PATH + "a/b", b""),
        ("PUT", E1, b"store_id="),
        ("PUT", E1, b"store_id=a&store_id=b"),
        ("PUT", E1, b"storeid=a"),
        ("DELETE", E1, b"store_id=a"),
        ("DELETE", E1, b"import="),
    ],
)
def test_what_control_does_not_know_is_refused(
    server: Callable[..., Server], method: str, path: str, query: bytes
) -> None:
    answer = asyncio.run(server().ask(path, method=method, query=query, body=b"{}"))
    assert (answer.status, answer.code) == (400, "bad_request")
