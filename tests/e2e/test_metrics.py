# SPDX-License-Identifier: Apache-2.0
"""The sums over all workers agree with what clients saw, through any mix of kills."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.control import Control
from support.gateway import (
    COMMAND,
    PATIENCE_S,
    Gateway,
    client_at,
    kill_and_wait,
    wait_until,
)
from support.metrics import Sample, samples
from support.small_disk import fill, mounted

from rollout_router.metrics_files import FOLDER

CUT = "cut"
BODY = b'{"model": "m", "input": "hello"}'
JSON = {"content-type": "application/json"}
WORKERS = 3
ROLLOUTS = 6


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    with mounted(folder / "small", "size=4m") as disk:
        yield disk


@pytest.fixture
def started(serve: Callable[..., Gateway]) -> Callable[..., Gateway]:
    """Start a gateway with an admin address that answers."""

    def start(**options: Any) -> Gateway:
        gateway = serve("--admin-port", "0", workers=WORKERS, **options)
        wait_until(lambda: "admin" in gateway.ready, "the admin address answers")
        return gateway

    return start


def scraped(gateway: Gateway) -> dict[Sample, float]:
    with client_at(gateway.ready["admin"]) as client:
        return samples(client.get("/metrics").raise_for_status().content)


def outcomes(found: dict[Sample, float]) -> Counter[str]:
    """Requests of the public port that ended, by outcome."""
    ended: Counter[str] = Counter()
    for (name, *labels), value in found.items():
        of = dict(label for label in labels if isinstance(label, tuple))
        if name == "rollout_router_requests_total" and of["port"] == "public":
            ended[of["outcome"]] += int(value)
    return +ended


def total(found: dict[Sample, float], name: str, **labels: str) -> int:
    return int(found.get((f"rollout_router_{name}", *sorted(labels.items())), 0))


def asked(gateway: Gateway, rollout_id: str, body: bytes) -> str:
    """What one client got: the class of the status, or a cut."""
    try:
        return f"{gateway.post(rollout_id, body).status_code // 100}xx"
    except httpx.TransportError:
        return CUT


def ids(gateway: Gateway) -> set[str]:
    return {worker["id"] for worker in gateway.ready["workers"]}


def replaced(gateway: Gateway, gone: set[str]) -> bool:
    return not gone & ids(gateway)


def agree(gateway: Gateway, got: Counter[str]) -> None:
    """Nothing is in hand: every call is in the counts, and those that were cut lack an outcome."""
    found = scraped(gateway)
    ended = outcomes(found)
    by_class = Counter({name: got[name] for name in got if name != CUT})
    refused = got["5xx"] - ended.pop("5xx", 0)  # told to clients as a status, counted by its code
    codes = Counter({code: ended.pop(code) for code in [*ended] if not code.endswith("xx")})
    assert codes.total() == refused, (found, got)
    assert ended == by_class - Counter({"5xx": got["5xx"]})
    received = total(found, "requests_received_total", port="public")
    assert received - outcomes(found).total() == got[CUT]
    assert total(found, "requests_in_flight") == 0


@contextmanager
def ended(over: threading.Event) -> Iterator[None]:
    """Whatever happens within, who waits for it goes on."""
    try:
        yield
    finally:
        over.set()


def test_sums_agree_with_what_clients_saw_through_kills_with_calls_in_hand(
    started: Callable[..., Gateway], control: Control
) -> None:
    gateway = started(control=control.path)
    names = [f"r{number}" for number in range(ROLLOUTS)]
    got: Counter[str] = Counter()
    seen: list[dict[Sample, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.append(scraped(gateway))

    with ThreadPoolExecutor(2 * ROLLOUTS + 1) as threads, ended(over):
        watching = threads.submit(watch)
        for round_ in range(3):
            got.update(threads.map(lambda name: asked(gateway, name, b"first"), names))
            for name in names:
                control.hold(name)
            sent = [
                threads.submit(asked, gateway, name, b"held")  # wherever the kernel gives it
                for name in names
                for _ in range(2)
            ]
            calls = [control.next_call(name) for name in names for _ in range(2)]
            killed = gateway.claims()[names[round_]]["worker_id"]
            gateway.kill_worker(killed)
            for name in names:
                control.unhold(name)
            for call in calls:
                with suppress(ConnectionError):  # its owner is gone, or who forwarded it is
                    call.answer()
            got.update(one.result() for one in sent)
            for call in calls:
                call.close()
            wait_until(partial(replaced, gateway, {killed}), "it was replaced")
            wait_until(lambda: total(scraped(gateway), "requests_in_flight") == 0, "all is over")
            agree(gateway, got)
        over.set()
        watching.result()
        assert seen

    assert got[CUT] + got["5xx"] > 0
    assert total(scraped(gateway), "takeovers_total", reason="life_lock_free") > 0
    for before, after in pairwise(seen):  # also while a worker dies, and is added to the ended
        fell = {
            sample: (value, after.get(sample))
            for sample, value in before.items()
            if str(sample[0]).endswith(("_total", "_count", "_bucket"))
            and after.get(sample, 0.0) < value
        }
        assert not fell


@pytest.mark.long
def test_sums_agree_after_a_kill_of_all_workers_at_once(started: Callable[..., Gateway]) -> None:
    gateway = started()
    got: Counter[str] = Counter()
    for _ in range(3):
        got.update(asked(gateway, f"r{number}", b"{}") for number in range(ROLLOUTS))
        before = ids(gateway)
        for worker_id in before:
            gateway.kill_worker(worker_id)
        wait_until(partial(replaced, gateway, before), "all are replaced")
        agree(gateway, got)


def served_on(gateway: Gateway) -> None:
    """Every worker was killed once, and each new one answers."""
    before = ids(gateway)
    for worker_id in before:
        gateway.kill_worker(worker_id)
    wait_until(partial(replaced, gateway, before), "all are replaced")
    assert asked(gateway, "after", BODY) == "2xx"


def test_c7_where_there_is_no_room_for_counts_the_service_goes_on(
    started: Callable[..., Gateway], small_disk: Path
) -> None:
    counts = small_disk / "counts"
    counts.mkdir()
    gateway = started(environment={FOLDER: str(counts), "TMPDIR": str(gateway_folder(small_disk))})
    assert asked(gateway, "r", BODY) == "2xx"
    fill(small_disk)

    served_on(gateway)
    assert gateway.process.poll() is None
    assert gateway.stop() == 0


def gateway_folder(small_disk: Path) -> Path:
    """Where there is room for other temporary files."""
    folder = small_disk.parent / "elsewhere"
    folder.mkdir()
    return folder


@pytest.mark.long
def test_c7_a_folder_of_counts_that_was_removed_is_made_anew(
    started: Callable[..., Gateway], folder: Path
) -> None:
    counts = folder / "counts"
    counts.mkdir()
    gateway = started(environment={FOLDER: str(counts)})
    assert asked(gateway, "r", BODY) == "2xx"
    shutil.rmtree(counts)
    with client_at(gateway.ready["admin"]) as client:
        answer = client.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "metrics_unavailable")

    served_on(gateway)
    assert total(scraped(gateway), "requests_total", port="public", outcome="2xx") == 1


@contextmanager
def ended_with(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens within, it is not waited for in vain."""
    try:
        yield
    finally:
        process.kill()


def test_a_log_that_nobody_reads_stops_neither_workers_nor_the_supervisor(folder: Path) -> None:
    ready = folder / "ready.json"
    command = [COMMAND, "serve", "--port", "0", "--workers", "1", "--ready-file", str(ready)]
    command += ["--state-dir", str(folder / "state"), "--run-dir", str(folder / "run")]
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(command, stderr=write) as process, ended_with(process):
        os.close(write)
        wait_until(ready.exists, "it is ready")
        url = json.loads(ready.read_text())["url"]
        with client_at(url) as client:
            for number in range(40):  # each is a line of the log
                answer = client.post(
                    f"/sessions/r{number}/v1/responses", content=BODY, headers=JSON
                )
                assert answer.status_code == 200
        (worker,) = json.loads(ready.read_text())["workers"]
        kill_and_wait(worker["pid"])
        wait_until(lambda: worker["id"] not in ready.read_text(), "it was replaced")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    os.close(read)
