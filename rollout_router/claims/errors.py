# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with claims, and what is true afterwards (laws C3, C5, C7).

    Exception
    └── ClaimsError
        ├── StoreRefused      the directory is not a store that we may use: a start-up error
        ├── StoreUnavailable  a disk, a lock or a descriptor was not to be had: nothing moved
        ├── ClaimUnreadable   one record cannot be understood: it fails closed, alone
        ├── ForceRefused      an operator named another epoch than the one that stands
        └── AdmissionHeld     somebody else closed the gate

None of them is ever a reason to move a claim. Every message says what to do.
"""

import errno as errno_names
from typing import Final

__all__ = [
    "AdmissionHeld",
    "ClaimUnreadable",
    "ClaimsError",
    "ForceRefused",
    "StoreRefused",
    "StoreUnavailable",
    "code_of",
    "errno_name",
]

_REMEDIES: Final = {
    "ENOENT": "a part of the store is missing: run `rollout-router claims verify --repair`",
    "ENOSPC": "free space on its file system; nothing was lost",
    "EDQUOT": "raise the quota or free space; nothing was lost",
    "EMFILE": "raise the limit on open files (ulimit -n) of this process",
    "ENFILE": "the host has no file descriptors left: raise fs.file-max",
    "EACCES": "give the directory back to the user that runs the workers (chown -R, chmod 700)",
    "EPERM": "give the directory back to the user that runs the workers (chown -R, chmod 700)",
    "EROFS": "mount the file system of the state directory for writing",
    "ETIMEDOUT": "a process holds this lock too long, perhaps stopped: /proc/locks names it",
    "EBADMSG": "stop nothing; run `rollout-router claims verify --repair`",
    "ESTALE": "stop all workers of this store, run `rollout-router claims verify --repair`, start",
    "EOVERFLOW": "its epochs are used up: start a new store in another directory",
}

_OF_THE_PROCESS: Final = frozenset({errno_names.EMFILE, errno_names.ENFILE, errno_names.ENOMEM})
"""Errors that say nothing of the store; every other is of the file or directory that gave it."""

_CODES: Final = {errno_names.ENOENT: "missing", errno_names.ENOTDIR: "not_a_directory"}


def errno_name(error: "OSError | StoreUnavailable") -> str:
    """The symbolic name of the error number, ``"EIO"`` where the error carries none."""
    return errno_names.errorcode.get(error.errno or 0, "EIO")


class ClaimsError(Exception):
    """The root of this room's errors."""


class StoreRefused(ClaimsError):  # noqa: N818 - says what became of the attempt
    """The directory is not a store that this process may use. Nothing was changed in it."""


class StoreUnavailable(ClaimsError):  # noqa: N818 - a state of the world, not of this program
    """The store could not do what was asked (C7). The claim that stood still stands.

    One exception to "still stands": when the error came after the rename of a grant, the claim is
    in the caller's own name and is taken again, higher, by the next ``take``.

    Args:
        what: what was tried, on which file.
        errno: the error number; ``ETIMEDOUT`` for a lock, ``EBADMSG`` for a damaged epoch file,
            ``ESTALE`` where files of the store were replaced, ``EOVERFLOW`` for spent epochs.
    """

    def __init__(self, what: str, errno: int | None) -> None:
        self.what = what
        self.errno = errno
        name = errno_names.errorcode.get(errno or 0, "an unnamed error")
        remedy = _REMEDIES.get(name, "look at the file system of the state directory")
        super().__init__(f"claim store unavailable: {what}: {name}; {remedy}")


class ClaimUnreadable(ClaimsError):  # noqa: N818 - names the state of the record
    """A record cannot be understood (C5). It is neither free nor owned: its rollout fails closed.

    Args:
        path: the file.
        code: ``empty``, ``too_large``, ``not_a_file``, ``checksum``, ``not_json``, ``version``,
            ``newer_format``, ``field``, ``wrong_name``, or the error number of a file that cannot
            be read while the others can (``EACCES``, ``EPERM``, ``EIO``).
    """

    def __init__(self, path: str, code: str) -> None:
        self.path = path
        self.code = code
        remedy = (
            "A newer version wrote it: run that version"
            if code == "newer_format"
            else "Restore it, or free the rollout with `rollout-router claims force`"
        )
        super().__init__(
            f"{path} is unreadable ({code}); other rollouts are not affected. {remedy}"
        )


class ForceRefused(ClaimsError):  # noqa: N818 - what happened to the operator's command
    """An operator's ``force`` did not name what stands. Nothing was changed."""


class AdmissionHeld(ClaimsError):  # noqa: N818 - what stands in the way
    """Somebody else closed the gate. It was not changed.

    Args:
        by: who.
        why: as they said it.
    """

    def __init__(self, by: str, why: str) -> None:
        self.by = by
        self.why = why
        super().__init__(
            f"admission was closed by {by}: {why}; wait until they open it, or see"
            " `rollout-router admission status`"
        )


def code_of(error: OSError | StoreUnavailable) -> str:
    """The code of a part of the store that gave *error*.

    Raises:
        StoreUnavailable: the error is of this process.
    """
    if error.errno in _OF_THE_PROCESS:
        raise StoreUnavailable("reading the store", error.errno) from error
    return _CODES.get(error.errno or 0) or errno_name(error)
