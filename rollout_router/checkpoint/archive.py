# SPDX-License-Identifier: Apache-2.0
"""The files of published checkpoints: bytes and names, without a database and without HTTP.

    <directory>/<instance>/<checkpoint id>/
        records-<sha256>.jsonl    one canonical JSON document a line
        manifest.json             last: created once, by a hard link, and never replaced

A manifest is there wholly and for good, with its records on the disk before it, or it is not there.
One publisher at a time holds ``.lock`` in the folder of a checkpoint, and the kernel drops the lock
with its process: what a publisher that died has left, temporary names and records that no manifest
names, goes with the next.

Synchronous: a program with an event loop calls it in a thread.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.folders import (
    created,
    disk,
    locked,
    missing,
    open_regular,
    opened,
    sync_upwards,
)
from rollout_router.checkpoint.manifest import MANIFEST_BYTES_MAX, Heading, Manifest
from rollout_router.checkpoint.wire import IDENTIFIER

__all__ = ["Archive", "Listed", "is_published", "list_archives", "publish", "read_archive"]

_MANIFEST: Final = "manifest.json"
_NEW_RECORDS: Final = ".records"
_NEW_MANIFEST: Final = ".manifest"
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A published checkpoint, all of it verified when it was read."""

    path: Path
    manifest: Manifest

    def records(self) -> Iterator[bytes]:
        """Each record, without its newline, one at a time; all are verified before the first.

        Raises:
            CheckpointRefusal: ``manifest_damaged``, ``archive_unavailable``.
        """
        manifest, directory = self.manifest, self.path.parent.parent
        with (
            opened(directory, manifest.instance, manifest.checkpoint_id) as folder,
            _records(folder, self.path, manifest) as file,
            disk(self.path),
        ):
            for line in file:
                yield line[:-1]


class _Content(NamedTuple):
    heading: Heading
    records: Iterable[bytes]
    completed: Callable[[Heading], Heading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One checkpoint of a listing: its manifest, or the code that says why there is none."""

    checkpoint_id: str
    manifest: Manifest | None
    code: str | None = None
    message: str = ""


def publish(
    directory: Path,
    heading: Heading,
    records: Iterable[bytes],
    *,
    permit: Callable[[Callable[[], None]], None],
    completed: Callable[[Heading], Heading] = lambda heading: heading,
) -> Manifest:
    """Write one checkpoint; again with the same content is the same.

    Args:
        directory: of all checkpoints; it and its parents are made where they are missing.
        heading: what the manifest says besides its records.
        records: each one canonical JSON document; taken once, one at a time.
        permit: called when all but the manifest's name is on the disk, with what gives it the name;
            also for one that has its name already. Unless it calls that, no name is given.
        completed: asked once all records were taken: *heading* with what these show.

    Returns:
        The manifest, which survives power loss from now on.

    Raises:
        CheckpointRefusal: ``checkpoint_busy``: another publisher of this checkpoint is at it.
            ``checkpoint_conflict``: another content has the name. ``manifest_damaged``,
            ``unknown_schema``: what has the name cannot be read. It is as it was.
            ``archive_unavailable``: the disk is full or failed, or a folder is not this user's
            alone. The manifest has no name, unless it was the very last sync that failed: a retry
            tells.
        ValueError: a record is not one line of ASCII, or the manifest is too long; no name either.
    """
    with opened(directory, heading.instance, heading.checkpoint_id, make=True) as folder:
        path = Path(os.path.realpath(directory)) / heading.instance / heading.checkpoint_id
        with locked(folder, path):
            try:
                return _publish(folder, path, _Content(heading, records, completed), permit)
            finally:
                _clear(folder)


def read_archive(directory: Path, *, instance: str, run: str, checkpoint_id: str) -> Archive:
    """Verify one checkpoint wholly: its manifest, and digest, size and count of its records.

    Raises:
        CheckpointRefusal: ``manifest_missing``, ``manifest_damaged``, ``unknown_schema``,
            ``manifest_of_another``: it names another instance, run or id;
            ``archive_unavailable``.
        ValueError: an id has another form.
    """
    archive = _verified(directory, instance, checkpoint_id)
    if archive.manifest.run != run:
        raise _of_another(archive.path, f"run {archive.manifest.run}, not of {run}")
    return archive


def is_published(directory: Path, heading: Heading) -> bool:
    """Whether a manifest of this identity has its name, which survives power loss from now on.

    Of the records nothing is looked at: they were on the disk before. What cannot be read is not
    ours, as far as anybody can tell, and nothing is ever published in its place.

    Raises:
        CheckpointRefusal: ``archive_unavailable``: nobody can tell.
    """
    path = directory / heading.instance / heading.checkpoint_id
    try:
        with opened(directory, heading.instance, heading.checkpoint_id) as folder:
            found = _manifest_in(folder, path)
            if found is None or found.heading().identity != heading.identity:
                return False
            with disk(path):
                sync_upwards(folder)
            return True
    except CheckpointRefusal as refusal:
        if refusal.code == "archive_unavailable":
            raise
        return False


def list_archives(directory: Path, instance: str) -> list[Listed]:
    """Every checkpoint of an instance, by id, each verified wholly; what is no id is passed by.

    Raises:
        CheckpointRefusal: ``archive_unavailable``.
        ValueError: the instance's id has another form.
    """
    try:
        with opened(directory, instance) as folder, disk(directory / instance):
            names = sorted(filter(IDENTIFIER.fullmatch, os.listdir(folder)))  # noqa: PTH208 - by descriptor
    except CheckpointRefusal as refusal:
        if refusal.code == "manifest_missing":
            return []
        raise
    listed = []
    for name in names:
        try:
            manifest = _verified(directory, instance, name).manifest
        except CheckpointRefusal as refusal:
            code, message = refusal.code, refusal.message
            listed.append(Listed(checkpoint_id=name, manifest=None, code=code, message=message))
        else:
            listed.append(Listed(checkpoint_id=name, manifest=manifest))
    return listed


def _publish(
    folder: int,
    path: Path,
    content: _Content,
    permit: Callable[[Callable[[], None]], None],
) -> Manifest:
    """The steps of :func:`publish`, by the holder of the lock."""
    _clear(folder)
    present = _manifest_in(folder, path)
    if present is not None and present.heading().identity != content.heading.identity:
        raise _conflict(path)
    with disk(path):
        manifest = _write_records(folder, content)
        if present not in (None, manifest):
            raise _conflict(path)
        os.rename(_NEW_RECORDS, _records_name(manifest), src_dir_fd=folder, dst_dir_fd=folder)
        with created(folder, _NEW_MANIFEST) as file:
            file.write(manifest.to_bytes())
        sync_upwards(folder)

    def name_it() -> None:
        with disk(path):
            with suppress(FileExistsError):  # compared below
                os.link(_NEW_MANIFEST, _MANIFEST, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        if _manifest_in(folder, path) != manifest:
            raise _conflict(path)

    permit(name_it)
    return manifest


def _write_records(folder: int, content: _Content) -> Manifest:
    digest, size, count = hashlib.sha256(), 0, 0
    with created(folder, _NEW_RECORDS) as file:
        for record in content.records:
            if not record or b"\n" in record or not record.isascii():
                raise ValueError(f"record {count + 1} is not one line of ASCII")
            line = record + b"\n"
            digest.update(line)
            size, count = size + len(line), count + 1
            file.write(line)
    return Manifest.of(
        content.completed(content.heading),
        records_sha256=digest.hexdigest(),
        records_bytes=size,
        records_count=count,
    )


def _verified(directory: Path, instance: str, checkpoint_id: str) -> Archive:
    path = directory / instance / checkpoint_id
    with opened(directory, instance, checkpoint_id) as folder:
        manifest = _manifest_in(folder, path)
        if manifest is None:
            raise missing(path)
        if (manifest.instance, manifest.checkpoint_id) != (instance, checkpoint_id):
            raise _of_another(path, f"{manifest.instance}/{manifest.checkpoint_id}")
        with _records(folder, path, manifest):
            pass
    return Archive(path=path, manifest=manifest)


@contextmanager
def _records(folder: int, path: Path, manifest: Manifest) -> Iterator[BinaryIO]:
    """The file of the records, at its beginning, after all of it was verified."""
    name, digest, size, count = _records_name(manifest), hashlib.sha256(), 0, 0
    with disk(path):
        try:
            file = os.fdopen(open_regular(folder, name), "rb")
        except FileNotFoundError as error:
            raise _damaged(path, f"{name} is missing") from error
    with file:
        with disk(path):
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                size, count = size + len(block), count + block.count(b"\n")
            file.seek(0)
        found = (digest.hexdigest(), size, count)
        if found != (manifest.records_sha256, manifest.records_bytes, manifest.records_count):
            raise _damaged(path, f"{name} is not what was written")
        yield file


def _manifest_in(folder: int, path: Path) -> Manifest | None:
    with disk(path):
        try:
            opened = open_regular(folder, _MANIFEST)
        except FileNotFoundError:
            return None
        with os.fdopen(opened, "rb") as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
    try:
        return Manifest.from_bytes(raw)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _records_name(manifest: Manifest) -> str:
    return f"records-{manifest.records_sha256}.jsonl"


def _clear(folder: int) -> None:
    """Remove what an attempt leaves; where the disk fails the next one does."""
    with suppress(OSError):
        names = os.listdir(folder)
        for name in names:
            unnamed = name.startswith("records-") and _MANIFEST not in names
            if unnamed or name in (_NEW_RECORDS, _NEW_MANIFEST):
                os.unlink(name, dir_fd=folder)


def _damaged(path: Path, why: str) -> CheckpointRefusal:
    return CheckpointRefusal(
        "manifest_damaged", f"the checkpoint at {path} is damaged: {why}; use another"
    )


def _of_another(path: Path, whose: str) -> CheckpointRefusal:
    return CheckpointRefusal("manifest_of_another", f"the checkpoint at {path} is of {whose}")


def _conflict(path: Path) -> CheckpointRefusal:
    return CheckpointRefusal(
        "checkpoint_conflict", f"{path} holds another checkpoint: publish under another id"
    )
