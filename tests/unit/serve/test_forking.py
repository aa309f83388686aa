# SPDX-License-Identifier: Apache-2.0
"""What workers are forked from, and how they go on from there."""

import gc
import subprocess
import sys
from typing import Any

import pytest

from rollout_router.serve.supervisor import _work

PROGRAM = """
import gc
from multiprocessing import get_context
from rollout_router.serve.forking import start_preloading
start_preloading(app=None, upstream=None, capture_dir=None)
with get_context("forkserver").Pool(1) as pool:
    print(pool.apply(gc.isenabled))
    print(*pool.apply(eval, ("list(__import__('sys').modules)",)))
"""


def test_what_workers_are_forked_from_has_all_imported_and_collected_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True)

    collects, imported = done.stdout.decode().splitlines()
    modules = imported.split()
    first = modules.index("rollout_router.serve.uncollected")

    assert collects == "False"
    assert {"click", "fastapi", "uvicorn", "rollout_router.serve.worker"} <= set(modules[first:])


def test_a_worker_collects_again_but_not_what_it_was_forked_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, bool]] = []

    def main(*_: object) -> int:
        seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
        return 7

    monkeypatch.setattr("rollout_router.serve.worker.main", main)
    unused: Any = None
    gc.disable()
    try:
        with pytest.raises(SystemExit, match="7"):
            _work(unused, unused, unused)
    finally:
        gc.enable()
        gc.unfreeze()

    assert seen == [(True, True)]
