# SPDX-License-Identifier: Apache-2.0
"""The sandbox side as one file, which any Python from 3.8 on runs: ``python3 -I -S FILE --help``.

The file is a program behind a ``#!`` line: it holds the sources of its modules as text, and the
importer for them (sources.py). No archive, because running one costs an interpreter more than its
own start. It is self-contained (nothing of it is looked up outside) and reproducible: the same
sources give the same bytes.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from rollout_router.transport import sandbox

__all__ = ["build"]

_PROGRAM_MODE: Final = 0o755
_SHEBANG: Final = "#!/usr/bin/env python3\n"
_MAIN: Final = """
import sys

if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # the folder of this file: what lies beside it is no part of it
sys.meta_path.insert(0, Sources(__file__, TEXTS))
from rollout_router.transport.sandbox.start import main

sys.exit(main())
"""


def build(path: Path) -> None:
    """Write the program to *path*, executable, by rename: a reader sees all of it or the old one.

    Raises:
        OSError: the folder is missing or cannot be written, or *path* is a folder; the message says
            which, and *path* is as it was.
    """
    program = _program()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(program)
        temporary.chmod(_PROGRAM_MODE)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _program() -> bytes:
    texts = _texts()
    lines = [f"    {name!r}: {text!a},\n" for name, text in sorted(texts.items())]
    parts = [texts[f"{sandbox.__name__}.sources"], "\nTEXTS = {\n", *lines, "}\n"]
    return "".join([_SHEBANG, *parts, _MAIN]).encode("ascii")


def _texts() -> dict[str, str]:
    """The packages around the sandbox side are empty: what they hold on a server stays there."""
    above = sandbox.__name__.split(".")[:-1]
    texts = {".".join(above[:depth]): "" for depth in range(1, len(above) + 1)}
    for module in Path(sandbox.__path__[0]).glob("*.py"):
        name = (
            sandbox.__name__ if module.stem == "__init__" else f"{sandbox.__name__}.{module.stem}"
        )
        texts[name] = module.read_text(encoding="utf-8")
    return texts
