# SPDX-License-Identifier: Apache-2.0
"""The directory of the private sockets (R1)."""

import os
import stat
from pathlib import Path

import pytest

from rollout_router.claims import SOCKET_PATH_BYTES_MAX, StoreRefused
from rollout_router.routing.run_dir import private_directory, private_socket_path


def test_a_run_directory_is_made_for_its_user_alone(folder: Path) -> None:
    private_directory(folder / "a" / "run")

    assert stat.S_IMODE((folder / "a" / "run").stat().st_mode) == 0o700
    private_directory(folder / "a" / "run")


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_run_directory_that_is_open_to_others_is_refused_with_the_remedy(
    folder: Path, mode: int
) -> None:
    (folder / "run").mkdir()
    (folder / "run").chmod(mode)

    with pytest.raises(StoreRefused, match="chmod 700"):
        private_directory(folder / "run")


def test_a_run_directory_that_is_a_link_or_a_file_is_refused(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "real")
    (folder / "file").touch()

    for name in ("link", "file", "file/below"):
        with pytest.raises(StoreRefused):
            private_directory(folder / name)


def test_a_socket_path_that_does_not_fit_is_refused_with_the_remedy() -> None:
    longest = Path("/" + "d" * (SOCKET_PATH_BYTES_MAX - len("//n.sock")))
    assert len(os.fsencode(private_socket_path(longest, "n"))) == SOCKET_PATH_BYTES_MAX

    with pytest.raises(StoreRefused, match="shorter run directory"):
        private_socket_path(longest / "d", "n")


def test_the_length_of_a_socket_path_is_counted_in_bytes() -> None:
    with pytest.raises(StoreRefused, match="107 bytes"):
        private_socket_path(Path("/" + "\xe9" * 60), "n")
