# SPDX-License-Identifier: Apache-2.0
"""A private folder for one run of a server that has no place of its own for claims and sockets.

Every process of the run holds a shared lock on the folder; a folder that nobody holds is of a run
that is over, and the next run removes it. systemd-tmpfiles passes locked directories
by. Other cleaners do not, so the store is right to warn below /var/tmp.
"""

import atexit
import fcntl
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["join_run", "leave_run", "make_run"]

PLACES: Final = (Path("/run"), Path("/var/tmp"))  # noqa: S108 - a private folder, locked while used
"""The first that lets us write. Not below $XDG_RUNTIME_DIR, which goes when its user logs out."""

PREFIX: Final = "rollout-router-run."
NAME_LENGTH_MAX: Final = 40  # of the service: a socket's path, 107 bytes, has to hold it

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_logger = logging.getLogger(__name__)
_held: Final[dict[Path, int]] = {}  # the descriptors whose locks this process holds, by folder


def make_run(service: str) -> Path:
    """Make the folder of a new run, held by this process, and remove those of runs that are over.

    Raises:
        OSError: no place for it; nothing is left behind.
    """
    place = next((place for place in PLACES if os.access(place, os.W_OK | os.X_OK)), None)
    if place is None:
        raise OSError(
            f"none of {', '.join(map(str, PLACES))} can be written to: give state_dir and run_dir"
        )
    for old in place.glob(f"{PREFIX}*"):
        _remove_if_over(old)
    name = re.sub(r"[^A-Za-z0-9_-]", "-", service)[:NAME_LENGTH_MAX]
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}.", dir=place))
        try:
            join_run(folder)
        except FileNotFoundError:  # another run took it for one that is over
            continue
        atexit.register(leave_run, folder)
        return folder


def join_run(folder: Path) -> None:
    """Hold the folder of a run, for as long as this process lives or until :func:`leave_run`.

    Raises:
        FileNotFoundError: it is not there; the run is over.
    """
    if folder not in _held:
        descriptor = os.open(folder, _DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            folder.stat()  # it may have been removed while this waited
        except OSError:
            os.close(descriptor)
            raise
        _held[folder] = descriptor


def leave_run(folder: Path) -> None:
    """Let go of the folder of a run, and remove it where no process is left in it."""
    if (descriptor := _held.pop(folder, None)) is not None:
        os.close(descriptor)
        _remove_if_over(folder)


def _remove_if_over(folder: Path) -> None:
    """Remove *folder* where it is ours and no process holds it."""
    try:
        descriptor = os.open(folder, _DIRECTORY)
    except OSError:  # gone, another user's, or no folder
        return
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except BlockingIOError:
        return
    except OSError as error:  # of a run that is over: nothing of this one
        _logger.warning("%s is left behind: %s", folder, error)
    finally:
        os.close(descriptor)
