# SPDX-License-Identifier: Apache-2.0
"""``rollout-router keys``: a secret, and keys made with it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollout_router.cli.main import main
from rollout_router.routing import mint_key, read_secret


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, ["keys", *map(str, arguments)], env=environment)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    done = run("new", path)
    assert (done.exit_code, done.stdout) == (0, "")
    assert read_secret(path).decode() not in done.output
    return path


def test_keys_are_printed_in_the_order_of_the_ids(secret: Path) -> None:
    done = run("mint", "r2", "r1", "--rollout-keys", secret)

    keys = [mint_key(read_secret(secret), name) for name in ("r2", "r1")]
    assert (done.exit_code, done.stdout.split()) == (0, keys)


def test_a_document_names_each_rollout(secret: Path) -> None:
    done = run("mint", "r1", "--json", ROLLOUT_ROUTER_ROLLOUT_KEYS=str(secret))

    key = mint_key(read_secret(secret), "r1")
    assert json.loads(done.stdout) == {
        "schema": 1,
        "keys": [{"rollout_id": "r1", "key": key}],
    }


@pytest.mark.parametrize("name", ["a b", "%61", ".a", "a" * 201, ""])
def test_an_id_that_no_rollout_has_is_wrong_usage_and_nothing_is_printed(
    secret: Path, name: str
) -> None:
    done = run("mint", "r1", name, "--rollout-keys", secret)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "no rollout id" in done.stderr


def test_a_secret_is_not_overwritten(secret: Path) -> None:
    before = secret.read_bytes()
    done = run("new", secret)

    assert done.exit_code == 4
    assert "is there already" in done.stderr
    assert secret.read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda path: path.chmod(0o644), 4, "chmod 600"),
        (lambda path: path.write_bytes(b"short"), 2, "5 bytes of secret"),
        (
            lambda path: path.unlink(),
            2,
            "secret cannot be read: No such file or directory; name a file",
        ),
    ],
    ids=["open-to-others", "short", "missing"],
)
def test_a_secret_that_cannot_be_used_says_why(
    secret: Path, spoil: object, code: int, said: str
) -> None:
    assert callable(spoil)
    spoil(secret)
    done = run("mint", "r1", "--rollout-keys", secret)

    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("content", "mode", "code", "said"),
    [(b"a" * 32, 0o644, 4, "chmod 600"), (b"a" * 15, 0o600, 2, "15 bytes of secret")],
)
def test_serve_refuses_what_mint_refuses_and_starts_nothing(
    tmp_path: Path, *, content: bytes, mode: int, code: int, said: str
) -> None:
    secret, state = tmp_path / "secret", tmp_path / "state"
    secret.write_bytes(content)
    secret.chmod(mode)

    places = ("--state-dir", state, "--run-dir", tmp_path / "run", "--rollout-keys", secret)
    done = CliRunner().invoke(main, ["serve", "--port", "0", *map(str, places)])

    assert done.exit_code == code
    assert said in done.stderr
    assert not state.exists()


def test_a_secret_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    assert run("new", tmp_path / "none" / "secret").exit_code == 1


@pytest.mark.parametrize("arguments", [(), ("r1",)])
def test_ids_and_a_secret_are_needed(arguments: tuple[str, ...]) -> None:
    assert run("mint", *arguments).exit_code == 2
