# SPDX-License-Identifier: Apache-2.0
"""The life of one worker: its identity, lock, socket, claims and memory, from start to leaving.

A worker is one started application: one lifespan in one process. Its order of life is: life lock,
then bind and listen, then claims; on the way out: finish what is in flight, give each rollout back
as its last call ends, close the private socket when no forwarder is left or the deadline comes,
drop the life lock (C3: whoever finds the lock held knows that this worker lives).
"""

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from rollout_router.asgi import App
from rollout_router.claims import (
    ClaimsError,
    ClaimUnreadable,
    FileClaimStore,
    LifeLock,
    Owner,
    OwnerIdentity,
    StoreRefused,
    new_nonce,
)
from rollout_router.history import History
from rollout_router.metrics import (
    ADMISSION_CLOSED,
    BASE_BYTES,
    BASES,
    CLAIMS,
    IN_FLIGHT,
    SESSIONS,
    SOCKET_REBINDS,
)
from rollout_router.routing.admission import Admission
from rollout_router.routing.guard import Stop
from rollout_router.routing.observed import Observed
from rollout_router.routing.ownership import Ownership
from rollout_router.routing.placing import Placing
from rollout_router.routing.private import PrivateServer
from rollout_router.routing.run_dir import private_directory, private_socket_path
from rollout_router.routing.session_bounds import SessionBounds
from rollout_router.routing.sessions import PREFIX, SessionNames
from rollout_router.routing.settings import TOMBSTONE_S, Settings
from rollout_router.routing.steps import Stepping
from rollout_router.routing.sweeping import Sweeping
from rollout_router.routing.tasks import Tasks
from rollout_router.transport.hop import HopClient

__all__ = ["Worker"]

HOUSEKEEPING_S: Final = 0.25
"""How often idle entries are looked for, failed releases tried again, the gate read, and the own
socket and owner file looked at, the own load said."""

IDENTITIES_MAX: Final = 1024
"""Peers whose owner files are remembered; each is read again when there were more."""

LIFE_WATCH_S: Final = 1.0
"""How often a forwarder that waits for an answer asks the owner's life lock."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A call that waits for an answer of *owner*."""

    owner: Owner
    rollout_id: str
    on_death: Callable[[], None]


class Worker:
    """One running worker. Made by :meth:`start`, ended by :meth:`stop`."""

    def __init__(self, settings: Settings, store: FileClaimStore, life: LifeLock) -> None:
        self.settings = settings
        self.store = store
        self.life = life
        self.id = life.owner.nonce
        self.pid = os.getpid()
        self.closed = False  # True past the drain's deadline: nothing is served any more
        self.lost = False  # True once the owner file is gone
        # Two counts: two workers that forward to each other must not refuse each other's hops.
        self.in_hand: Counter[bool] = Counter()  # calls, by whether they came over a hop
        self.observed = Observed(self.id)
        self.tasks = Tasks()
        self.hops = HopClient()
        self.history = History(settings.history, clock=time.monotonic, on_calls=self.publish_load)
        self.admission = Admission(settings.state_dir)
        sessions = settings.sessions
        self.sessions = None if sessions is None else SessionNames(sessions)
        self._session_bounds = (
            SessionBounds()
            if sessions is None
            else SessionBounds(
                number_max=sessions.number_max, remembered_max=sessions.remembered_max
            )
        )
        self.ownership = Ownership(
            store,
            life.owner,
            history=self.history,
            tasks=self.tasks,
            session_bounds=self._session_bounds,
            observed=self.observed,
        )
        self.stepping = Stepping(self.history, self.admission, self.ownership.changed)
        self.placing = (
            Placing(self.socket_path.with_suffix(".load"), store_id=store.store_id)
            if settings.placement == "balanced"
            else None
        )
        tombstone_s = TOMBSTONE_S if sessions is None else sessions.tombstone_s
        self._sweeping = Sweeping(store, tombstone_age_max=timedelta(seconds=tombstone_s))
        self._server: PrivateServer | None = None
        self._rebinding: asyncio.Task[None] | None = None
        self._rebind_failed = False
        self._deadline: float | None = None
        self._identities: dict[str, OwnerIdentity] = {}
        self._waiting: set[_Waiting] = set()
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings, private_app: App) -> "Worker":
        """Open the store, take the life lock, listen.

        Raises:
            StoreRefused: the store or the run directory cannot be used; nothing is left behind.
        """
        nonce = new_nonce()
        run_dir = settings.run_dir.absolute()  # other workers read it from the owner file

        def prepare() -> tuple[FileClaimStore, LifeLock, Path]:
            private_directory(run_dir)
            socket_path = private_socket_path(run_dir, nonce)
            store = FileClaimStore.open(
                settings.state_dir,
                service=settings.service,
                allow_network_fs=settings.allow_network_fs,
            )
            life = LifeLock.acquire(store, nonce=nonce, socket=str(socket_path))
            return store, life, socket_path

        store, life, socket_path = await asyncio.to_thread(prepare)
        with ExitStack() as undo:
            undo.callback(life.close, remove=True)
            worker = cls(settings, store, life)
            worker._server = PrivateServer(socket_path, private_app, limits=settings.limits)
            undo.callback(worker._server.close)
            undo.callback(worker.ownership.close)
            await worker.count_sessions()  # before the first call: others filled the store
            await worker._server.start()
            undo.pop_all()
        worker.publish_load()
        worker.tasks.spawn(worker._keep_house(worker._server), name="housekeeping")
        worker.tasks.spawn(worker._sweep(), name="sweeping")
        if worker.sessions is not None:
            worker.tasks.spawn(worker._keep_count(), name="counting sessions")
        _logger.info("worker %s serves %s at %s", worker.id, settings.service, socket_path)
        return worker

    @property
    def socket_path(self) -> Path:
        """Where the private socket lies."""
        return Path(self.life.identity.socket)

    def leave(self) -> float:
        """Begin to give everything back. The deadline of the drain, in the loop's time."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self.settings.drain_s_max
            self.ownership.leave()
            self.publish_load()
            self.observed.draining()
        return self._deadline

    def publish_load(self, *, anew: bool = False) -> None:
        """Say how busy this worker is, where new rollouts are placed by it; a leaver takes none."""
        if self.placing is None:
            return
        if self.ownership.leaving:
            self.placing.withdraw()
        else:
            calls, rollouts = len(self.history.calls), len(self.ownership.grants)
            self.placing.publish(calls=calls, rollouts=rollouts, anew=anew)

    async def stop(self) -> None:
        """Leave: bounded by the drain's deadline, after which what still runs is cancelled."""
        deadline = self.leave()
        server = self._server
        if server is None:
            raise RuntimeError("a worker that never started cannot stop")
        # What still arrives is forwarded, but no idle connection may keep another from leaving.
        retired, self.hops = self.hops, HopClient(idle_s=0)
        await retired.close()
        try:
            async with asyncio.timeout_at(deadline):
                await self.ownership.wait_released()
                await server.wait_no_forwarder()
        except TimeoutError:
            _logger.warning(
                "worker %s leaves with %d rollouts unfinished after %s s",
                self.id,
                len(self.ownership.grants),
                self.settings.drain_s_max,
            )
        self.closed = True
        self._sweeping.stop()
        await server.stop()
        await self.tasks.cancel()
        await self.hops.close()
        self.ownership.close()
        # With claims left the owner file must stay: it is how others prove that we are dead.
        self.life.close(remove=self.ownership.is_clear)

    def known_identity(self, nonce: str) -> OwnerIdentity | None:
        """Who that worker is, where it was asked before."""
        return self._identities.get(nonce)

    async def identity_of(self, nonce: str) -> OwnerIdentity | None:
        """Who that worker is; None where its file is missing or unreadable (unknown)."""
        if nonce not in self._identities:
            try:
                found = await self.ownership.in_thread(lambda: self.store.owner(nonce))
            except ClaimUnreadable:
                return None
            if found is None:
                return None
            if len(self._identities) >= IDENTITIES_MAX:
                self._identities.clear()
            self._identities[nonce] = found
        return self._identities[nonce]

    def watch_life(self, owner: Owner, rollout_id: str, on_death: Callable[[], None]) -> Stop:
        """Call *on_death* once *owner* is proven dead (its life lock is free), until it is stopped.

        One task asks for all calls that wait, and once for all that wait for the same owner.
        A sweeper may have found the proof first, and cleared what it was found by.
        """
        waiting = _Waiting(owner, rollout_id, on_death)
        self._waiting.add(waiting)
        if self._watching is None or self._watching.done():
            self._watching = self.tasks.spawn(self._watch_lives(), name="watching lives")
        return partial(self._waiting.discard, waiting)

    async def _watch_lives(self) -> None:
        """Ask while somebody waits; whoever comes first begins anew."""
        await asyncio.sleep(LIFE_WATCH_S)
        while self._waiting:
            asked = list(self._waiting)
            try:
                dead = await self.ownership.in_thread(partial(self._dead, asked))
            except RuntimeError:  # no thread can be started now; all calls depend on this task
                _logger.warning("no owner's life can be asked now", exc_info=True)
                dead = []
            for waiting in self._waiting.intersection(dead):
                waiting.on_death()
            await asyncio.sleep(LIFE_WATCH_S)

    def _dead(self, asked: list["_Waiting"]) -> list["_Waiting"]:
        """Those whose owner is dead. Runs in a thread."""
        owners = {waiting.owner for waiting in asked}
        dead = {owner for owner in owners if self.store.proof_of_death(owner) is not None}
        gone = {owner for owner in owners - dead if not self._has_file(owner)}
        return [
            waiting
            for waiting in asked
            if waiting.owner in dead
            or (waiting.owner in gone and self._cleared(waiting.owner, waiting.rollout_id))
        ]

    def _has_file(self, owner: Owner) -> bool:
        try:
            return self.store.owner(owner.nonce) is not None
        except ClaimsError:  # it cannot be told
            return True

    def _cleared(self, owner: Owner, rollout_id: str) -> bool:
        """Whether the claim of *owner*, who has no file, is gone: it goes first."""
        try:
            claim = self.store.read(rollout_id)
        except ClaimsError:  # it cannot be told
            return False
        return claim is None or claim.owner != owner

    async def _keep_house(self, server: PrivateServer) -> None:
        def look() -> tuple[bool, bool]:
            self.admission.refresh()
            return self.life.intact(), server.is_reachable()

        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + HOUSEKEEPING_S
            await asyncio.sleep(HOUSEKEEPING_S)
            self.observed.lagged(loop.time() - due_s)
            self._set_gauges()
            intact, reachable = await self.ownership.in_thread(look)
            if not intact and not self.lost:
                self._lose()
            if not reachable and (self._rebinding is None or self._rebinding.done()):
                self._rebinding = self.tasks.spawn(self._rebind(server), name="binding anew")
            self.ownership.release_overdue()
            self.publish_load(anew=True)
            if self.ownership.leaving:
                self.ownership.leave()

    def _set_gauges(self) -> None:
        held = self.history.statistics()
        IN_FLIGHT.set(self.in_hand[False])
        BASES.set(held.bases)
        BASE_BYTES.set(held.bytes)
        CLAIMS.set(len(self.ownership.grants))
        SESSIONS.set(self.ownership.sessions)
        ADMISSION_CLOSED.set(not self.admission.gate.open)

    def _lose(self) -> None:
        """Leave: without the owner file nobody could prove the death of this worker (C3)."""
        self.lost = True
        _logger.critical(
            "the owner file of worker %s is gone from %s/owners: it lets nothing more in, gives its"
            " rollouts back and ends",
            self.id,
            self.store.state_dir,
        )
        self.admission.close_own(by=f"worker {self.id}", why="its owner file is gone; it leaves")
        self.leave()
        (self.settings.on_lost or _ask_to_end)()

    async def _rebind(self, server: PrivateServer) -> None:
        try:
            bound = await server.rebind(self.ownership.in_thread)
        except StoreRefused as error:
            if not self._rebind_failed:  # it is tried again, often
                _logger.error("worker %s cannot be reached: %s", self.id, error)  # noqa: TRY400 - the message says all
            self._rebind_failed = True
            return
        self._rebind_failed = False
        if bound:
            SOCKET_REBINDS.inc()
            _logger.warning("worker %s: its socket file was gone, it listens again", self.id)

    async def count_sessions(self) -> None:
        """Learn how many sessions the store has, owned and lost, from the names of their files."""
        if self.sessions is not None:
            own = self.ownership.sessions
            count = partial(self.store.count_files, prefix=PREFIX)
            files = await self.ownership.in_thread(count)
            self._session_bounds.counted(files, own=own)

    async def _keep_count(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_s)
            await self.count_sessions()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.settings.sweep_s)
            if self.closed:  # so is the sweeper's thread
                return
            sweep = self._sweeping.look_and_log
            swept = await loop.run_in_executor(self._sweeping.thread, sweep)
            if swept is not None:
                self.observed.swept(swept)


def _ask_to_end() -> None:
    """What a server takes as the wish to shut down; its supervisor then starts another worker."""
    signal.raise_signal(signal.SIGTERM)
