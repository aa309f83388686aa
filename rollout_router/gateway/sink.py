# SPDX-License-Identifier: Apache-2.0
"""Where records go, and the fence in front of them (F1, C7). Synchronous; call it in threads.

    <directory>/<rollout_id>.jsonl            one record a line
    <directory>/.fence/STORE                  the one store whose epochs count here
    <directory>/.fence/<rollout_id>.epoch     the highest claim epoch seen; its flock is the lock of
                                              that rollout's sink

Check and append are one step under that lock, so a worker that lost its claim cannot slip a record
in after its successor raised the sink. An epoch file is created once, rewritten in place and never
renamed or removed: two processes always lock the same inode. It reaches the disk before
:meth:`CaptureSink.raise_to` returns. Records are written, not synchronised: they outlive the
process, and power loss may take the last of them.

A crash or a full disk can leave the head of a line. Such a tail is cut off before the next record:
its call's last byte never left (F2), and every line of the file stays a record.
"""

import fcntl
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["CaptureSink", "EpochFenced", "SinkRefused", "SinkUnavailable", "check_bound"]

LOCK_TIMEOUT_S: Final = 5.0
_LOCK_POLL_S: Final = 0.005
_BLOCK_BYTES: Final = 1 << 16
_ROLLOUT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_EPOCH_BYTES: Final = 32  # "1 <20 digits> <8 hex digits>\n"


class SinkRefused(Exception):  # noqa: N818 - a refusal, told to an operator at start-up
    """The folder belongs to another store, or its fence is gone. Nothing was changed."""


class SinkUnavailable(Exception):  # noqa: N818 - the world failed, and the name says what is not
    """Disk, permission or lock: no record was written, and none is left in part."""


class EpochFenced(Exception):  # noqa: N818 - the fence did its work
    """The sink has seen a higher claim epoch of this rollout. Nothing was written."""

    def __init__(self, rollout_id: str, *, claim_epoch: int, highest: int) -> None:
        super().__init__(
            f"rollout {rollout_id}: claim epoch {claim_epoch} is behind {highest}, which another "
            "owner brought"
        )
        self.rollout_id = rollout_id
        self.claim_epoch = claim_epoch
        self.highest = highest


def check_bound(directory: Path, *, store_id: str | None) -> bool:
    """Whether a capture folder is bound to a store already. Changes nothing.

    Args:
        directory: there, or not yet.
        store_id: which it has to be; None: any, or one that is still to be made.

    Raises:
        SinkRefused: it is bound to another one, or holds records or epochs without a store: they
            have lost their fence.
        OSError: it cannot be read.
    """
    named = directory / ".fence" / "STORE"
    try:
        found = json.loads(named.read_bytes())["store_id"]
    except FileNotFoundError:
        if any(named.parent.glob("*.epoch")) or any(directory.glob("*.jsonl")):
            raise SinkRefused(
                f"the capture folder {directory} holds records, but not the name of their claim"
                f" store in {named}. {_WAY_OUT}"
            ) from None
        return False
    except (ValueError, TypeError, KeyError) as error:
        raise SinkRefused(f"{named} is unreadable. {_WAY_OUT}") from error
    if store_id is not None and found != store_id:
        raise SinkRefused(
            f"the capture folder {directory} belongs to claim store {found}, and this service uses"
            f" {store_id}: their claim epochs cannot be compared. {_WAY_OUT}"
        )
    return True


class CaptureSink:
    """The capture files of one folder, shared by all workers of one store.

    Args:
        directory: made with mode 0700 where it does not exist.
        store_id: the store whose claim epochs fence this folder; bound at the first use.
        lock_timeout_s: how long a call waits for another process to leave a rollout's sink, unless
            it brings a deadline of its own.

    Raises:
        SinkRefused: the folder is bound to another store, or holds records without a fence.
        SinkUnavailable: the folder cannot be made, read or written.
    """

    def __init__(
        self, directory: Path, *, store_id: str, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.directory = directory
        self.store_id = store_id
        self.lock_timeout_s = lock_timeout_s
        self._fence = directory / ".fence"
        try:
            self._bind()
        except OSError as error:
            raise SinkUnavailable(
                f"the capture folder {directory} cannot be used: {error}; check its owner, its "
                "mode and the space on its disk"
            ) from error

    def raise_to(
        self, rollout_id: str, claim_epoch: int, *, deadline_s: float | None = None
    ) -> None:
        """Refuse every epoch below *claim_epoch* from now on, also after a restart.

        Args:
            rollout_id: whose sink.
            claim_epoch: of the caller's claim.
            deadline_s: until when to wait for the lock, in monotonic seconds. It is tried once
                also when that has passed.

        Raises:
            EpochFenced: a higher one was seen already.
            SinkUnavailable: it is not certain that the fence is on disk; dispatch nothing.
        """
        with self._locked(rollout_id, deadline_s) as epoch_file:
            self._advance(epoch_file, rollout_id, claim_epoch, synchronise=True)

    def append(
        self,
        rollout_id: str,
        claim_epoch: int | None,
        record: bytes,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Write one record, unless a higher epoch was seen: one step under the sink's lock.

        Args:
            rollout_id: names the file.
            claim_epoch: None for an unrouted call, which no fence concerns.
            record: one line without its end.
            deadline_s: as for :meth:`raise_to`.

        Raises:
            EpochFenced: nothing was written.
            SinkUnavailable: nothing was written, or its torn head goes with the next record.
            ValueError: *record* holds a line end.
        """
        if b"\n" in record:
            raise ValueError("a record is one line")
        with self._locked(rollout_id, deadline_s) as epoch_file:
            if claim_epoch is not None:
                self._advance(epoch_file, rollout_id, claim_epoch, synchronise=False)
            _append_line(self.directory / f"{rollout_id}.jsonl", record + b"\n")

    def highest(self, rollout_id: str) -> int:
        """The highest claim epoch seen of *rollout_id*; 0 where none was."""
        with self._locked(rollout_id) as epoch_file:
            return self._read(epoch_file, rollout_id)

    def _advance(
        self, epoch_file: int, rollout_id: str, claim_epoch: int, *, synchronise: bool
    ) -> None:
        highest = self._read(epoch_file, rollout_id)
        if claim_epoch < highest:
            raise EpochFenced(rollout_id, claim_epoch=claim_epoch, highest=highest)
        if claim_epoch > highest:
            written = os.pwrite(epoch_file, _epoch_line(rollout_id, claim_epoch), 0)
            if written != _EPOCH_BYTES:
                if highest == 0:
                    os.ftruncate(epoch_file, 0)
                raise OSError(f"only {written} of {_EPOCH_BYTES} bytes of the fence were written")
            synchronise = True
        if synchronise:  # also for an equal epoch: who wrote it may have died before its fsync
            os.fsync(epoch_file)
            _synchronise_directory(self._fence)

    def _read(self, epoch_file: int, rollout_id: str) -> int:
        line = os.pread(epoch_file, _EPOCH_BYTES + 1, 0)
        if not line:
            return 0  # made a moment ago, or by an unrouted call
        fields = line.split()
        if len(fields) == 3 and fields[1].isdigit():  # noqa: PLR2004 - version, epoch, checksum
            epoch = int(fields[1])
            if line == _epoch_line(rollout_id, epoch):
                return epoch
        raise SinkUnavailable(
            f"rollout {rollout_id}: its fence {self._fence / rollout_id}.epoch is damaged, so no "
            "record of it is taken; move the capture folder away and use a new one"
        )

    @contextmanager
    def _locked(self, rollout_id: str, deadline_s: float | None = None) -> Iterator[int]:
        if _ROLLOUT_ID.fullmatch(rollout_id) is None:
            raise ValueError(f"not a rollout id: {rollout_id!r}")
        try:
            epoch_file = os.open(self._fence / f"{rollout_id}.epoch", _OPEN_FLAGS, 0o600)
            try:
                _lock(epoch_file, self._deadline_s() if deadline_s is None else deadline_s)
                yield epoch_file
            finally:
                os.close(epoch_file)
        except OSError as error:
            raise SinkUnavailable(
                f"rollout {rollout_id}: the capture folder {self.directory} took no record: "
                f"{error}; it works again when the cause is gone"
            ) from error

    def _deadline_s(self) -> float:
        return time.monotonic() + self.lock_timeout_s

    def _bind(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fence.mkdir(mode=0o700, exist_ok=True)
        fence = os.open(self._fence, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(fence, self._deadline_s())
            if not check_bound(self.directory, store_id=self.store_id):
                self._found()
        finally:
            os.close(fence)

    def _found(self) -> None:
        """Bind an empty folder."""
        new = self._fence / "STORE.new"
        file = os.open(new, _OPEN_FLAGS | os.O_TRUNC, 0o600)
        try:
            _write_all(file, json.dumps({"v": 1, "store_id": self.store_id}).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        new.replace(self._fence / "STORE")
        _synchronise_directory(self._fence)


_WAY_OUT: Final = "Choose a new capture folder, or move or remove this one, .fence included."


def _lock(file: int, deadline_s: float) -> None:
    """Wait for an exclusive flock until *deadline_s*; closing *file* gives it back."""
    pause = threading.Event()  # never set: a wait with a bound
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TimeoutError("another process held its lock for too long") from None
            pause.wait(_LOCK_POLL_S)
        else:
            return


def _epoch_line(rollout_id: str, claim_epoch: int) -> bytes:
    checksum = zlib.crc32(f"{rollout_id} {claim_epoch}".encode())
    return f"1 {claim_epoch:020d} {checksum:08x}\n".encode()


def _append_line(path: Path, line: bytes) -> None:
    file = os.open(path, _OPEN_FLAGS | os.O_APPEND, 0o600)
    try:
        size = os.fstat(file).st_size
        end = _end_of_lines(file, size)
        if end < size:
            os.ftruncate(file, end)
        try:
            _write_all(file, line)
        except OSError:
            with suppress(OSError):  # the next append cuts the torn line off
                os.ftruncate(file, end)
            raise
    finally:
        os.close(file)


def _end_of_lines(file: int, size: int) -> int:
    """Where the last whole line ends; at *size* unless a write was torn."""
    end = size
    while end > 0:
        start = max(0, end - (1 if end == size else _BLOCK_BYTES))
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _synchronise_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
