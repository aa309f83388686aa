# SPDX-License-Identifier: Apache-2.0
"""The file that holds the secret of the rollout keys: whoever reads it can make every key."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

__all__ = ["SECRET_BYTES_MIN", "SecretRefused", "new_secret", "read_secret"]

SECRET_BYTES_MIN: Final = 16
"""128 bits: below that a secret can be guessed from one key."""

_NEW_BYTES: Final = 32
_OPEN_TO_OTHERS: Final = 0o027  # the group may read: so containers are given their secrets


class SecretRefused(Exception):  # noqa: N818 - named by what happened
    """The file may not be used as it is, or not be made; the message says why and what to do."""


def read_secret(path: Path) -> bytes:
    """The secret in *path*, without white space around it.

    Raises:
        OSError: it cannot be read.
        SecretRefused: it is no plain file, or users beside its owner and group can read it.
        ValueError: it is shorter than :data:`SECRET_BYTES_MIN`.
    """
    try:  # O_NONBLOCK: a pipe is refused below, and must not be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(
            f"{path} cannot be read: {error.strerror}; name a file that this user can read:"
            " `rollout-router keys new` makes one"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise SecretRefused(f"{path} is no plain file, and every worker reads it")
        if mode & _OPEN_TO_OTHERS:
            raise SecretRefused(
                f"{path} holds the secret of all rollout keys, and other users can read or change"
                f" it (mode {stat.S_IMODE(mode):04o}): chmod 600 it, and if they may have read it,"
                " make another one with `rollout-router keys new`"
            )
        secret = file.read().strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(
            f"{path} holds {len(secret)} bytes of secret; at least {SECRET_BYTES_MIN} are needed:"
            " `rollout-router keys new` makes a file"
        )
    return secret


def new_secret(path: Path) -> None:
    """Write a new secret of 256 bits, in hex, to *path*, which only we can read.

    Raises:
        OSError: it cannot be written; nothing is left behind.
        SecretRefused: something stands there, and is as it was.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise SecretRefused(
            f"{path} is there already, and is left as it is: keys that were made with it would be"
            " worth nothing. Name another file"
        ) from error
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_NEW_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
