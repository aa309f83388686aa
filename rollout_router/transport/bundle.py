# SPDX-License-Identifier: Apache-2.0
"""The sandbox side as one file, which any Python from 3.8 on runs: ``python3 -I -S FILE --help``.

The file is a zip archive behind a ``#!`` line. It is self-contained (nothing of it is looked up
outside) and reproducible: the same sources give the same bytes.
"""

import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from rollout_router.transport import sandbox

__all__ = ["build"]

_SHEBANG: Final = b"#!/usr/bin/env python3\n"
_TIMESTAMP: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can write
_FILE_MODE: Final = 0o644
_PROGRAM_MODE: Final = 0o755
_UNIX: Final = 3
_MAIN: Final = b"""import sys

from rollout_router.transport.sandbox.shim import main

sys.exit(main())
"""


def build(path: Path) -> None:
    """Write the program to *path*, executable, by rename: a reader sees all of it or the old one.

    Raises:
        OSError: the folder is missing or cannot be written, or *path* is a folder; the message says
            which, and *path* is as it was.
    """
    archive = _archive()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(archive)
        temporary.chmod(_PROGRAM_MODE)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _archive() -> bytes:
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_files().items()):
            info = zipfile.ZipInfo(name, _TIMESTAMP)
            info.create_system = _UNIX
            info.external_attr = _FILE_MODE << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def _files() -> dict[str, bytes]:
    """The packages around the sandbox side are empty: what they hold on a server stays there."""
    files = {
        "__main__.py": _MAIN,
        "rollout_router/__init__.py": b"",
        "rollout_router/transport/__init__.py": b"",
    }
    for module in Path(sandbox.__path__[0]).glob("*.py"):
        files[f"rollout_router/transport/sandbox/{module.name}"] = module.read_bytes()
    return files
