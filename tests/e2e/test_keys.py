# SPDX-License-Identifier: Apache-2.0
"""Rollout keys of a real service: made by command, asked for by every worker, told to nobody."""

import concurrent.futures
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from support.control import Control
from support.conversations import FRAME_HEADERS, body_of, conversation, frame
from support.gateway import COMMAND, Gateway, kill_and_wait

from rollout_router.claims import FileClaimStore
from rollout_router.routing import mint_key

BODY = body_of(conversation(2))
LONGER = body_of(conversation(3))


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, *map(str, arguments)], check=True, capture_output=True, text=True
    )


def places_to_look(gateway: Gateway, *printed: str) -> Iterator[tuple[str, str]]:
    """Everything that a service writes or shows."""
    yield "log", "".join(gateway.log)
    yield "ready file", gateway.ready_file.read_text()
    for number, text in enumerate(printed):
        yield f"printed {number}", text
    for root in (gateway.state_dir, gateway.capture_dir, gateway.folder / "run"):
        for path in root.rglob("*"):
            yield f"{path} (name)", path.name
            if path.is_file():
                yield str(path), path.read_bytes().decode("latin-1")
    pids = [gateway.process.pid, *(worker["pid"] for worker in gateway.ready["workers"])]
    for pid in pids:
        for name in ("cmdline", "environ"):
            yield f"{name} of {pid}", Path(f"/proc/{pid}/{name}").read_bytes().decode("latin-1")


def test_h5_keys_made_by_command_open_their_rollout_alone_and_are_never_told(
    serve: Callable[..., Gateway], control: Control, folder: Path
) -> None:
    secret = folder / "secret"
    command("keys", "new", secret)
    minted = command("keys", "mint", "a", "b", "--rollout-keys", secret, "--json").stdout
    keys = {one["rollout_id"]: one["key"] for one in json.loads(minted)["keys"]}
    assert keys == {name: mint_key(secret.read_bytes().strip(), name) for name in ("a", "b")}
    gateway = serve("--rollout-keys", str(secret), control=control.path)

    def ask(
        rollout: str, key: str, *, plain: bool = False, body: bytes = BODY
    ) -> tuple[int, str | None]:
        headers = {"x-api-key": key} if plain else {"authorization": f"Bearer {key}"}
        kind = {} if body is BODY else FRAME_HEADERS
        answer = gateway.post(rollout, body, keep=body is BODY, headers={**headers, **kind})
        said.append(answer.text + str(answer.headers))
        return answer.status_code, answer.headers.get("rollout-history")

    said: list[str] = []
    for plain in (True, False) * 2:  # over connections of their own: some of them are forwarded
        assert ask("a", keys["a"], plain=plain)[0] == 200
        assert ask("b", keys["a"], plain=plain) == (401, "none")
    assert ask("b", keys["b"])[0] == 200

    delta = frame(BODY, LONGER)
    assert ask("b", keys["a"], body=delta) == (401, "none")
    assert ask("a", keys["a"], body=delta)[0] == 200
    assert ask("a", keys["a"], body=frame(LONGER + b" ", LONGER)) == (409, "resync")
    assert ask("a", keys["a"], body=b"malformed")[0] == 400
    for path in ("%62", "a%2F..%2Fb"):
        assert ask(path, keys["a"]) == (400, None)
    assert [text for text in said if '"rollout_token_invalid"' in text]

    control.hold("a")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        crashing = threads.submit(ask, "a", keys["a"])
        control.next_call("a").fail()
        assert crashing.result()[0] == 500
    gateway.wait_line("Traceback")
    control.unhold("a")
    claim = FileClaimStore.inspect(gateway.state_dir).read("a")
    assert claim is not None
    kill_and_wait(next(w["pid"] for w in gateway.ready["workers"] if w["id"] == claim.owner.nonce))
    gateway.wait_replaced()
    assert ask("a", keys["a"])[0] == 200

    shown = [command("claims", "show", "a", "--state-dir", gateway.state_dir).stdout, *said]
    places = list(places_to_look(gateway, *shown))
    assert str(secret) in dict(places)[f"cmdline of {gateway.process.pid}"]
    told = [
        place
        for place, text in places
        for hidden in (*keys.values(), secret.read_text().strip())
        if hidden in text
    ]
    assert told == []
    for call in control.calls:
        assert not {"authorization", "x-api-key"} & call.headers.keys()
        assert call.rollout_id in {"a", "b"}
