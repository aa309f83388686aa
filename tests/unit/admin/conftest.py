# SPDX-License-Identifier: Apache-2.0
"""An admin address over a real store with workers that only tell."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.told import Teller

from rollout_router.admin.access import Access
from rollout_router.admin.address import AdminAddress
from rollout_router.admin.app import create_app
from rollout_router.admin.views import Service
from rollout_router.claims import FileClaimStore

TOKEN = "t0ken"  # noqa: S105 - of a test


class Rig:
    """Tests change :attr:`store`, have workers tell, and ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FileClaimStore.open(folder / "state", service="model")
        self.tellers: list[Teller] = []
        self.address = AdminAddress(
            store=FileClaimStore.inspect(folder / "state"),
            allow_network_fs=False,
            service=Service(name="model", store_id=self.store.store_id, url="http://localhost:1"),
            access=Access(host="127.0.0.1", token=TOKEN),
            scrape=lambda: b"# TYPE x counter\n",
        )
        self.app = create_app(self.address)

    def worker(self) -> Teller:
        self.tellers.append(Teller(self.store, self.folder))
        return self.tellers[-1]

    def close(self) -> None:
        for teller in self.tellers:
            with suppress(OSError):
                teller.die()

    async def ask(
        self, method: str, path: str, *, token: str | None = None, **options: Any
    ) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            given = {**headers, **options.pop("headers", {})}
            return await client.request(method, path, headers=given, **options)

    def asked(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self.ask(method, path, **options))

    def change(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.asked("POST", path, token=TOKEN, json=body)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Callable[[Callable[[], bool]], Awaitable[None]]]:
        """Watches meanwhile; gives what waits until something is known."""
        changed = asyncio.Event()
        watching = self.address.watching
        watching._on_change = changed.set

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(30):
                while not condition():
                    changed.clear()
                    await changed.wait()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(watching.run())
            yield until
            task.cancel()


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    yield rig
    rig.close()


@pytest.fixture(scope="session")
def make_rig() -> Callable[[Path], Rig]:
    """Makes one in an empty folder; the caller closes it."""
    return Rig
