# SPDX-License-Identifier: Apache-2.0
"""Tests that are coroutines run on a loop of their own, bounded, and must leave no task behind."""

import asyncio
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.routing import PATIENCE_S, Rig

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a private directory in it


@pytest.fixture
def folder(folder: Path) -> Iterator[Path]:
    """In memory where there is some: a store is made of 512 files, and each would be synced."""
    if not MEMORY.is_dir():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rr-", dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture
def rig(folder: Path) -> Rig:
    return Rig(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    async def bounded() -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await pyfuncitem.obj(**arguments)
        finally:
            if isinstance(rig := arguments.get("rig"), Rig):
                await rig.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(bounded())
    return True
