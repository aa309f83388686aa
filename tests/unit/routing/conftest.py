# SPDX-License-Identifier: Apache-2.0
"""Tests that are coroutines run on a loop of their own, bounded, and must leave no task behind."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from support.routing import PATIENCE_S, Rig


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
