# SPDX-License-Identifier: Apache-2.0
"""The file of the secret: made once, read only where nobody else can read it."""

import os
import stat
from pathlib import Path

import pytest

from rollout_router.routing import new_secret, read_secret
from rollout_router.routing.key_file import SecretRefused

SECRET = b"0123456789abcdef"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def written(path: Path, content: bytes, mode: int) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_new_secret_is_private_long_and_never_the_same(path: Path) -> None:
    before = os.umask(0)
    try:
        new_secret(path)
    finally:
        os.umask(before)
    new_secret(path.with_name("second"))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(read_secret(path).decode())) == 32
    assert read_secret(path) != read_secret(path.with_name("second"))


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_stands_there_is_never_overwritten(path: Path, what: str) -> None:
    target = written(path.with_name("target"), b"dear", 0o600)
    if what == "link":
        path.symlink_to(target)
    else:
        target.rename(path)

    with pytest.raises(SecretRefused, match="is there already"):
        new_secret(path)
    assert path.read_bytes() == b"dear"


def test_a_secret_that_cannot_be_written_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space"):
        new_secret(path)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o700])
def test_a_secret_is_read_without_the_space_around_it(path: Path, mode: int) -> None:
    assert read_secret(written(path, b" " + SECRET + b"\r\n", mode)) == SECRET


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666])
def test_a_secret_that_others_can_read_or_change_is_refused(path: Path, mode: int) -> None:
    with pytest.raises(SecretRefused, match="chmod 600") as refused:
        read_secret(written(path, SECRET, mode))
    assert SECRET.decode() not in str(refused.value)


def test_a_secret_that_is_too_short_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="15 bytes of secret") as refused:
        read_secret(written(path, SECRET[:-1] + b"\n", 0o600))
    assert SECRET[:-1].decode() not in str(refused.value)


def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path, 0o600)

    with pytest.raises(SecretRefused, match="no plain file"):
        read_secret(path)
