# SPDX-License-Identifier: Apache-2.0
"""``serve`` as a service: its flags, files, errors, signals and replacements."""

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.control import Control
from support.conversations import FRAME_HEADERS, body_of, conversation, digest, frame
from support.gateway import COMMAND, Gateway, invoked, kill_and_wait, wait_dead

from rollout_router.claims import FileClaimStore

BODY = body_of(conversation(2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_cleanly(
    serve: Callable[..., Gateway], number: signal.Signals
) -> None:
    gateway = serve()
    gateway.post("r", BODY)
    gateway.process.send_signal(number)
    assert gateway.wait_exit() == 0
    assert not gateway.ready_file.exists()
    assert not list((gateway.folder / "run").iterdir())
    assert not [p for p in gateway.state_dir.glob("claims/*/*") if p.is_file()]
    assert not list((gateway.state_dir / "owners").iterdir())


def test_a_call_in_flight_is_finished_before_the_service_ends(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(gateway.post, "r", BODY)
        call = control.next_call("r")
        gateway.process.send_signal(signal.SIGTERM)
        call.answer('{"finished": true}')
        assert waiting.result().json() == {"finished": True}
    assert gateway.wait_exit() == 0
    assert gateway.records("r")[0]["outcome"] == "completed"


def test_a_call_that_outlasts_the_drain_gets_a_coded_answer(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve("--drain-seconds", "0", control=control.path)
    control.hold("r")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        # Some of the connections are forwarded, so that both sides of a hop are seen.
        waiting = [threads.submit(gateway.post, "r", BODY) for _ in range(8)]
        for _ in waiting:
            control.next_call("r")
        gateway.process.send_signal(signal.SIGTERM)
        answers = [done.result() for done in waiting]
    assert {(a.status_code, a.json()["error"]["code"]) for a in answers} == {
        (502, "owner_lost_in_flight")
    }
    assert gateway.wait_exit() == 0
    assert "Traceback" not in "".join(gateway.log)
    assert {record["outcome"] for record in gateway.records("r")} == {"cancelled"}


def test_the_ready_file_names_every_worker(shared: Gateway) -> None:
    ready = shared.ready
    assert ready["pid"] == shared.process.pid
    assert len(ready["workers"]) == 2
    for worker in ready["workers"]:
        assert shared.pid_of(worker["id"]) == worker["pid"]
        status = Path(worker["socket"]).stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
    assert stat.S_IMODE((shared.folder / "run").stat().st_mode) == 0o700


def test_nothing_of_a_service_is_open_to_other_users(shared: Gateway) -> None:
    shared.post("open", BODY)
    for root in (shared.state_dir, shared.folder / "run", shared.capture_dir):
        for path in (root, *root.rglob("*")):
            status = path.lstat()
            mode = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
            assert (stat.S_IMODE(status.st_mode), status.st_uid) == (mode, os.geteuid()), path


PYTHON = shutil.which("python3", path=os.defpath)  # not ours, which others may not be let near
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.mark.skipif(
    os.geteuid() != 0 or None in (shutil.which("setpriv"), PYTHON),
    reason="becoming another user needs root, setpriv and a python3 of the system",
)
def test_another_user_cannot_connect_to_a_worker(shared: Gateway) -> None:
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    run, private = shared.folder / "run", shared.ready["workers"][0]["socket"]

    def connects(*prefix: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*prefix, str(PYTHON), "-c", CONNECT, private],
            check=False,
            capture_output=True,
            text=True,
        )

    assert connects().returncode == 0, "the owner can, so that the others' refusal means something"
    shared.folder.chmod(0o755)  # else the test's own directory keeps them out
    try:
        by_directory = connects(*as_nobody)
        run.chmod(0o755)
        by_socket = connects(*as_nobody)
    finally:
        run.chmod(0o700)
        shared.folder.chmod(0o700)
    for refused in (by_directory, by_socket):
        assert "PermissionError" in refused.stderr


def test_a_killed_worker_is_replaced(gateway: Gateway) -> None:
    victim = gateway.ready["workers"][0]
    gateway.kill_worker(victim["id"])
    gateway.wait_replaced()
    assert gateway.post("r", BODY).status_code == 200
    living = [w for w in gateway.json("workers", "list")["workers"] if w["verdict"] == "alive"]
    assert len(living) == 2
    assert victim["id"] not in {worker["id"] for worker in living}


def test_c3_a_stopped_owner_keeps_its_rollout_and_is_not_killed(shared: Gateway) -> None:
    owner = shared.post("stopped", BODY).headers["rollout-worker"]
    pid = shared.pid_of(owner)
    os.kill(pid, signal.SIGSTOP)
    try:
        claim = shared.claims()["stopped"]
        assert (claim["worker_id"], claim["verdict"]) == (owner, "alive")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert shared.post("stopped", BODY).headers["rollout-worker"] == owner
    assert not [line for line in shared.log if "starting another" in line]


def test_workers_that_lose_their_supervisor_drain(gateway: Gateway) -> None:
    gateway.post("r", BODY)
    watches = [os.pidfd_open(worker["pid"]) for worker in gateway.ready["workers"]]
    gateway.process.kill()
    for watch in watches:
        wait_dead(watch)
    assert gateway.claims() == {}


def test_a_taken_port_is_a_clear_error(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _serve(folder, "--port", str(port))
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_others_can_open_is_refused(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state").chmod(0o777)
    done = _serve(folder)
    assert done.returncode == 4
    assert str(folder / "state") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_of_another_service_is_refused(serve: Callable[..., Gateway]) -> None:
    first = serve()
    done = _serve(first.folder, "--service", "agent", "--run-dir", str(first.folder / "run2"))
    assert done.returncode == 4
    assert "model" in done.stderr


def test_a_directory_that_is_a_file_is_a_clear_error(folder: Path) -> None:
    (folder / "state").write_text("")
    done = _serve(folder)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--upstream", "ftp://127.0.0.1/v1"),
        ("--upstream", "nowhere"),
        ("--upstream", "http://[::1"),
        ("--ready-file", "/does/not/exist/ready"),
        ("--rollout-header", "X Y"),
        ("--app", "no.such.module:app"),
        ("--app", "json:nothing"),
        ("--app", "json"),
        ("--upstream", "http://127.0.0.1:1", "--app", "json:loads"),
        ("--workers", "0"),
        ("--rollout-keys", "/does/not/exist"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # a service puts its own folder there
    done = invoked(*_serving(folder), *arguments)
    assert done.exit_code == 2
    assert arguments[0].lstrip("-").replace("-", "_") in done.stderr.replace("-", "_")


def test_an_upstream_that_is_not_there_is_a_clear_answer(serve: Callable[..., Gateway]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = serve("--upstream", f"http://127.0.0.1:{port}/v1")
    answer = gateway.post("r", BODY)
    assert answer.status_code == 502
    assert str(port) in answer.json()["error"]["message"]
    assert gateway.records("r")[0]["outcome"] == "failed"


def test_an_upstream_sees_the_request_as_the_harness_wrote_it(
    serve: Callable[..., Gateway],
) -> None:
    model = serve("--no-history-delta", "--keep-alive-grace-seconds", "0")
    gateway = serve("--upstream", f"{model.url}/v1")
    gateway.post("r", BODY)
    target = body_of(conversation(3))
    answer = gateway.post("r", frame(BODY, target), keep=False, headers=FRAME_HEADERS)
    assert answer.status_code == 200
    assert answer.headers["scripted-request-sha256"] == digest(target)


def test_every_flag_has_an_environment_twin(folder: Path) -> None:
    environment = {
        "ROLLOUT_ROUTER_STATE_DIR": str(folder / "state"),
        "ROLLOUT_ROUTER_RUN_DIR": str(folder / "run"),
        "ROLLOUT_ROUTER_UPSTREAM": "gopher://x",
    }
    done = subprocess.run(
        [COMMAND, "serve"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 2
    assert "gopher" in done.stderr


def test_a_file_says_what_no_flag_and_no_variable_says(
    serve: Callable[..., Gateway], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "service.toml").write_text(
        'service = "from-file"\nrollout_header = "X-From-File"\nworkers = 7\nport = 1\n'
        'session_cookie = "c"\nanswer_stall_seconds = 5\n'
    )
    monkeypatch.setenv("ROLLOUT_ROUTER_ROLLOUT_HEADER", "X-From-Environment")
    monkeypatch.setenv("ROLLOUT_ROUTER_CONFIG", str(folder / "service.toml"))

    gateway = serve(workers=1)

    named = {"X-From-Environment": "r1", "X-From-File": "r2"}
    with gateway.client() as client:
        client.post("/v1/responses", content=BODY, headers=named)
    assert list(gateway.claims()) == ["r1"]
    assert FileClaimStore.inspect(gateway.state_dir).service == "from-file"
    assert len(gateway.ready["workers"]) == 1


def test_claims_show_gives_the_evidence(shared: Gateway) -> None:
    answer = shared.post("shown", BODY)
    shown = shared.json("claims", "show", "shown")
    assert shown["claim"]["worker_id"] == answer.headers["rollout-worker"]
    assert shown["claim"]["verdict"] == "alive"
    assert shown["evidence"]["owner"]["pid"] == shared.pid_of(answer.headers["rollout-worker"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("claims", "show", "nobody"), 1), (("claims", "show", "%"), 2)],
    ids=["no-claim", "no-id"],
)
def test_claims_show_without_a_claim(
    shared: Gateway, arguments: tuple[str, ...], code: int
) -> None:
    done = invoked(*arguments, "--state-dir", str(shared.state_dir))
    assert done.exit_code == code
    assert done.stderr


def test_a_listing_without_a_store_is_refused_and_makes_none(folder: Path) -> None:
    done = invoked("claims", "list", "--json", "--state-dir", str(folder / "none"))
    assert done.exit_code == 4
    assert not (folder / "none").exists()


def test_c5_an_unreadable_claim_is_named_and_fails_closed_alone(gateway: Gateway) -> None:
    gateway.post("broken", BODY)
    owner = gateway.claims()["broken"]["worker_id"]
    gateway.kill_worker(owner)
    path = next(gateway.state_dir.glob("claims/*/*broken*"))
    path.write_bytes(path.read_bytes()[:100])
    done = subprocess.run(
        [COMMAND, "claims", "list", "--json", "--state-dir", str(gateway.state_dir)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert [Path(bad["path"]).name for bad in json.loads(done.stdout)["unreadable"]] == [path.name]
    answer = gateway.post("broken", BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "claim_store_unavailable"
    assert gateway.post("whole", BODY).status_code == 200


def _serving(folder: Path) -> tuple[str, ...]:
    places = ("--state-dir", str(folder / "state"), "--run-dir", str(folder / "run"))
    return ("serve", "--port", "0", *places)


def _serve(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A ``serve`` that is expected to end by itself."""
    return subprocess.run(
        [COMMAND, *_serving(folder), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_c7_the_service_outlives_its_ready_file_and_the_reader_of_its_log(
    serve: Callable[..., Gateway], folder: Path
) -> None:
    place = folder / "ready"
    place.mkdir()
    unswept = ("--sweep-seconds", "3600")  # so that what the dead one left is still listed
    gateway = serve("--ready-file", str(place / "second"), *unswept)  # the last such flag wins
    gateway.ready_file = place / "second"
    workers = gateway.ready["workers"]
    (place / "second").unlink()
    place.rmdir()
    gateway.kill_worker(workers[0]["id"])
    gateway.wait_line("cannot be written")
    assert gateway.process.poll() is None
    assert len(gateway.json("workers", "list")["workers"]) == 3


def test_a_worker_without_a_supervisor_ends_though_a_thread_of_its_application_does_not(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--app", "support.app:stuck", "--drain-seconds", "0.1", workers=1)
    ended = os.pidfd_open(gateway.ready["workers"][0]["pid"])
    with gateway.connect() as client:
        client.sendall(b"POST /sessions/r/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        gateway.wait_line("stuck")

        kill_and_wait(gateway.process.pid)

        wait_dead(ended)


def test_c3_workers_outlive_the_process_that_they_were_forked_from(gateway: Gateway) -> None:
    owner = gateway.post("r", BODY).headers["rollout-worker"]
    first, second = (worker["pid"] for worker in gateway.ready["workers"])
    (parent,) = {psutil.Process(pid).ppid() for pid in (first, second)} - {gateway.process.pid}
    kill_and_wait(parent)

    assert gateway.post("r", BODY).headers["rollout-worker"] == owner
    kill_and_wait(first)
    gateway.wait_line("starting another")
    gateway.wait_replaced()
    assert {gateway.post("r", BODY).status_code for _ in range(4)} == {200}
    assert psutil.pid_exists(second)


def test_c3_a_worker_whose_owner_file_was_removed_leaves_and_is_replaced(gateway: Gateway) -> None:
    owner = gateway.post("r", BODY).headers["rollout-worker"]
    watch = os.pidfd_open(gateway.pid_of(owner))
    (gateway.state_dir / "owners" / owner).unlink()

    wait_dead(watch)
    gateway.wait_replaced()

    again = gateway.post("r", BODY)
    assert again.status_code == 200
    assert again.headers["rollout-worker"] != owner
    assert {row["verdict"] for row in gateway.claims().values()} == {"alive"}
    assert "let" in next(line for line in gateway.log if "owner file of worker" in line)


def test_c3_a_service_without_its_owner_files_heals(gateway: Gateway) -> None:
    gateway.post("r", BODY)
    watches = [os.pidfd_open(worker["pid"]) for worker in gateway.ready["workers"]]
    shutil.rmtree(gateway.state_dir / "owners")

    for watch in watches:
        wait_dead(watch)
        gateway.wait_replaced()

    assert gateway.post("r", BODY).status_code == 200
    assert {row["verdict"] for row in gateway.claims().values()} == {"alive"}
