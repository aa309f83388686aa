# SPDX-License-Identifier: Apache-2.0
"""The folder in which the processes of one service count together, and what becomes of it.

``prometheus_client`` in its multi-process mode keeps a file of each kind for each process that ever
counted, in shared memory: a process that is killed leaves its counts. So that files and the time to
read them do not grow with every worker that was replaced, an ended process is *folded*: its counts
are added to those of all that ended before, and its files go. Who folds and who reads exclude each
other, so that no count is read twice or not at all.

The folder belongs to one supervisor, which holds a lock on it; what one that was killed left is
cleared by the next.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = [
    "FOLDER",
    "ROOM_BYTES_MIN",
    "SHARED_MEMORY",
    "clear_abandoned",
    "count_together",
    "fold",
    "make_folder",
    "reserve",
    "scrape",
]

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder, of ``prometheus_client``; read at its import."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folder in it is made anew, and private
ROOM_BYTES_MIN: Final = 64 * 1024**2
"""With less there a folder is made elsewhere: the files of sixty processes."""

_PREFIX: Final = "rollout-router-metrics-"
_LOCK: Final = "lock"
_ENDED: Final = "ended"  # in place of a pid
_ADDED: Final = ("counter", "histogram")  # kinds of file whose values add up
_LIVE: Final = ("gauge_livesum", "gauge_livemax")  # and of gauges, which go with their process
_FILE_BYTES: Final = 256 * 1024  # several times what all names and labels take


def count_together() -> None:
    """Have this process, and all that it starts, count in one folder.

    Call it before ``prometheus_client`` is imported. The folder that the environment names is used
    as it is; else one is made, and removed when this process ends.

    Raises:
        OSError: there is no room for one.
    """
    if FOLDER not in os.environ:
        folder, held = make_folder()
        os.environ[FOLDER] = str(folder)
        atexit.register(_end, folder, held)
    reserve()


def reserve() -> None:
    """Make this process's files, with all the room that they will need. Before its first count.

    They are written through memory: without blocks of their own a full file system would not be an
    error then, but the end of the process (SIGBUS). Where there is no room this process counts in a
    folder of its own, elsewhere, and its counts are missing in the sums; a folder that was removed
    is made anew. Without a folder in the environment nothing is done.

    Raises:
        OSError: there is no room anywhere.
    """
    if FOLDER not in os.environ:
        return
    try:
        _reserve(Path(os.environ[FOLDER]), str(os.getpid()), (*_ADDED, *_LIVE))
    except OSError:
        folder, _ = make_folder(Path(tempfile.gettempdir()))  # held until this process ends
        os.environ[FOLDER] = str(folder)
        _reserve(folder, str(os.getpid()), (*_ADDED, *_LIVE))


def _reserve(folder: Path, whose: str, kinds: Iterable[str]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    for kind in kinds:
        descriptor = os.open(
            folder / f"{kind}_{whose}.db", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            os.posix_fallocate(descriptor, 0, _FILE_BYTES)
        finally:
            os.close(descriptor)


def _has_room(parent: Path) -> bool:
    try:
        found = os.statvfs(parent)
    except OSError:
        return False
    return os.access(parent, os.W_OK) and found.f_bavail * found.f_frsize >= ROOM_BYTES_MIN


def _end(folder: Path, held: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what stays is the next service's to clear
    os.close(held)


def make_folder(parent: Path | None = None) -> tuple[Path, int]:
    """Make an empty private folder, clear those of supervisors that are gone, and own it.

    Args:
        parent: where; None: in shared memory, or where temporary files lie.

    Returns:
        The folder, and the descriptor whose lock says that it is in use: keep it open.

    Raises:
        OSError: there is no room for one.
    """
    if parent is None:
        parent = SHARED_MEMORY if _has_room(SHARED_MEMORY) else Path(tempfile.gettempdir())
    clear_abandoned(parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another service cleared it before it was held
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        if folder.exists():
            return folder, held
        os.close(held)


def clear_abandoned(parent: Path) -> None:
    """Remove the folders of this user in *parent* that no process holds."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another's, or just removed
            if folder.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def fold(folder: Path, pid: int) -> None:
    """Add the counts of an ended process to those of all that ended before, and remove its files.

    Blocks for milliseconds, and as long as somebody reads: call it in a thread.

    Args:
        folder: of the service.
        pid: of a process that has ended, and was waited for.

    Raises:
        OSError: there is no room; the files stay, and are read as they are.
    """
    from prometheus_client.mmap_dict import MmapedDict  # noqa: PLC0415 - slow, and not in a start

    with _alone(folder):
        _reserve(folder, _ENDED, _ADDED)  # before anything is added: all of it, or nothing
        for kind in _ADDED:
            for ended in _begun(folder.glob(f"{kind}_{pid}.db")):
                sums = MmapedDict(str(folder / f"{kind}_{_ENDED}.db"))
                for key, value, _, _ in MmapedDict.read_all_values_from_file(str(ended)):
                    before, _ = sums.read_value(key)
                    sums.write_value(key, before + value, 0.0)
                sums.close()
        for file in folder.glob(f"*_{pid}.db"):
            file.unlink()


def scrape(folder: Path) -> bytes:
    """All metrics of the service, summed over its processes, in Prometheus' text format.

    Blocks for milliseconds: call it in a thread.

    Raises:
        OSError: the folder cannot be read.
    """
    from prometheus_client import generate_latest  # noqa: PLC0415 - as above
    from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415 - as above

    class Summed:
        def collect(self) -> "Iterable[Metric]":
            files = [str(file) for file in _begun(folder.glob("*.db"))]
            metrics: Iterable[Metric] = MultiProcessCollector.merge(files, accumulate=True)
            return metrics

    with _alone(folder):
        return generate_latest(Summed())


def _begun(files: Iterable[Path]) -> Iterator[Path]:
    """Without those whose process was killed between making and filling them."""
    return (file for file in files if file.stat().st_size)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
