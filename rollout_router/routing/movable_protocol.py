# SPDX-License-Identifier: Apache-2.0
"""A public connection that may be handed over to the worker that it hops to (R1, R2, R4).

It moves between two requests alone: the answer before is with the kernel, and nothing of the next
one was read. Its new worker serves it as one that it accepted itself, within the same limits.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rollout_router.routing.begun import BegunHop
from rollout_router.routing.hand_over import HandOver, Row
from rollout_router.routing.limits import Limits
from rollout_router.routing.public_protocol import Begins, PublicProtocol, public_protocol
from rollout_router.routing.worker import Worker

__all__ = ["Movable", "MovableProtocol", "movable_protocol"]


class MovableProtocol(PublicProtocol):
    """Counts the hops in a row, and offers the connection to their owner when they are enough."""

    hand_over: ClassVar[HandOver | None] = None  # of its server's own subclass, while it serves

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row = Row()
        self._latest: BegunHop | None = None

    def _run_held(self) -> None:
        if self._held is not None:
            self.row.clear()
        super()._run_held()

    def _wait(self, begun: BegunHop, cycle: RequestResponseCycle | None = None) -> None:
        if begun is not self._begun:  # or it is only waited for anew
            self._latest = begun
            self.row.hop(begun.target.owner.nonce, begun.rollout_id)
        super()._wait(begun, cycle)

    def on_response_complete(self) -> None:
        """The connection may move, but not before what was written is with the kernel."""
        super().on_response_complete()
        if self.row.due:
            self.loop.call_soon(self._move)

    def _move(self) -> None:
        """Hand the connection over, if nothing is on its way; else after the next answer."""
        if self.hand_over is None or not (self.row.due and self._is_between()):
            return
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return
        latest = self._latest
        if latest is None or not latest.stands():
            self.row.clear()  # that owner sent the request away, or lost its rollout since
            return
        self.row.tried()
        descriptor = self._counted.get_extra_info("socket").fileno()
        if self.hand_over.give(descriptor, latest.target.socket, self.row.tries):
            self.transport.abort()  # closes this descriptor, and says nothing to the client


def movable_protocol(
    on_lost: Callable[[], None], limits: Limits, router: Begins
) -> type[MovableProtocol]:
    """The same as :func:`public_protocol`, of connections that move."""
    return type("Protocol", (MovableProtocol, public_protocol(on_lost, limits, router)), {})


class Movable:
    """The moving of one public port's connections, while its worker serves.

    Args:
        kind: the port's protocol, from :func:`movable_protocol`.
        server: serves the port. What is handed over is among its connections as any other.
    """

    def __init__(self, worker: Worker, kind: type[MovableProtocol], server: uvicorn.Server) -> None:
        """Bind and begin. Raises StoreRefused as :class:`HandOver` does."""
        self._tasks = worker.tasks
        self._kind = kind
        self._server = server
        self._accepting: set[asyncio.Task[None]] = set()
        self._hand_over = HandOver(worker.socket_path, self._taken)
        self._hand_over.start()
        kind.hand_over = self._hand_over

    async def stop(self) -> None:
        """Move nothing more. What was handed over until now is among the server's connections."""
        self._kind.hand_over = None
        self._hand_over.stop()
        if self._accepting:
            await asyncio.wait(self._accepting)

    def _taken(self, connection: socket.socket, tries: int) -> None:
        task = self._tasks.spawn(self._accept(connection, tries), name="taking a connection over")
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _accept(self, connection: socket.socket, tries: int) -> None:
        loop = asyncio.get_running_loop()

        def connected() -> MovableProtocol:  # as uvicorn makes it where it accepts
            protocol = self._kind(
                config=self._server.config,
                server_state=self._server.server_state,
                app_state=self._server.lifespan.state,
                _loop=loop,
            )
            protocol.row = Row(tries)
            return protocol

        try:
            await loop.connect_accepted_socket(connected, connection)
        except BaseException:
            connection.close()
            raise
