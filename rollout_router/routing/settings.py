# SPDX-License-Identifier: Apache-2.0
"""What an application may set when it installs the router. Read by the composition root alone."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from rollout_router.claims.record import Kind
from rollout_router.history import Bounds
from rollout_router.routing.limits import Limits

__all__ = ["TOMBSTONE_S", "Placement", "SessionSettings", "Settings"]

Placement = Literal["arrival", "balanced"]

TOMBSTONE_S: Final = 24 * 3600.0
"""How long a session that was lost is answered 410, unless the settings say otherwise."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How stateful sessions are named, and how many one worker may own (R3).

    The application makes the id of a session and names it in its answer; either by a cookie or by
    a header, which the client sends back.

    Raises:
        ValueError: a value makes no sense; the message names it.
    """

    cookie: str | None = None
    """The cookie that carries the id."""

    header: str | None = None
    """The header that carries the id, in answers and in requests."""

    stable_id: Callable[[str], str] | None = None
    """Makes the id of what the cookie or header says, where that changes within one session, as a
    signed cookie does. Pure; raises ValueError where the text names no session."""

    number_max: int = 65_536
    """So many sessions a worker owns at most; then new ones are refused, old ones not forgotten.
    65,536 claim files are 256 in each of the 256 stripes, and 256 MiB in blocks of 4 KiB."""

    remembered_max: int = 262_144
    """So many sessions a store has at most, those that stand and those that were lost; then new
    ones are refused. Each worker counts every ``sweep_s``, and knows between only what it took
    itself. Four times ``number_max``: 1,024 files a stripe, 1 GiB; to count them takes 0.3 s."""

    tombstone_s: float = TOMBSTONE_S
    """How long a session that was lost is answered 410."""

    def __post_init__(self) -> None:
        if (self.cookie is None) == (self.header is None):
            raise ValueError("sessions are named either by a cookie or by a header: give one")
        for name in ("cookie", "header"):
            value = getattr(self, name)
            if value is not None and not _TOKEN.fullmatch(value):
                raise ValueError(f"the session {name} {value!r} is no name of a {name}")
        for name in ("number_max", "remembered_max"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.tombstone_s < 0:
            raise ValueError(f"tombstone_s must not be negative, got {self.tombstone_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one installed router; the same in every worker of a service.

    Raises:
        ValueError: a value makes no sense; the message names it.
    """

    state_dir: Path
    """The claim store. One directory a service, on a local file system, mode 0700."""

    run_dir: Path
    """Where the private sockets lie: short (a socket path has at most 107 bytes), mode 0700."""

    service: str = "model"
    """The name of the service; a store refuses a worker of another one."""

    history_delta: bool = False
    """Keep bases and rebuild frames. Off by default: it changes what a gym holds in memory (R7)."""

    route_always: bool = False
    """Route identified requests although deltas are off, for applications with state (R7)."""

    history: Bounds = field(default_factory=Bounds)
    """The bounds of what one worker remembers."""

    placement: Placement = "arrival"
    """Who gets a new rollout: the worker where it first arrives, or the one with the fewest calls
    in hand. The latter is for clients whose connections stay with one worker."""

    rollout_header: str = "X-Session-ID"
    """The header that names a rollout where the path does not."""

    sessions: SessionSettings | None = None
    """Own stateful sessions too, where identified requests are routed; None: there are none."""

    refuse_invalid_ids: bool = False
    """True: an id outside the pattern is 400. False: such a request is passed on untouched, unless
    there are rollout keys."""

    rollout_keys: bytes | None = field(default=None, repr=False)
    """The secret of the rollout keys; None switches the check off. With it, an id outside the
    pattern is 400 too: what it would open cannot be known."""

    allow_network_fs: bool = False
    """Accept a store on a network file system: every worker on one host and one mount."""

    drain_s_max: float = 30.0
    """How long a leaving worker serves what is in flight and what still arrives at it."""

    on_lost: Callable[[], None] | None = None
    """Called once, on the event loop, where the owner file of this worker was removed: it lets
    nothing more in and gives its rollouts back, and this must end its process. None sends SIGTERM
    to the process itself, which servers take as the wish to shut down."""

    sweep_s: float = 5.0
    """How often a worker looks for dead ones whose files it can clear; a look costs some 10
    microseconds for each worker of the store."""

    server_timing: bool = False
    """Say in the header ``Server-Timing`` what the stages of a routed call took, where the
    application answered it.
    Off by default: whoever may call would learn it."""

    owner_timeout_s: float | None = None
    """How long a forwarder waits for the head of an answer; None waits as long as it takes,
    because a slow model is the normal case and a call that timed out may have run."""

    calls_max: int = 4096
    """So many calls a worker has in hand from clients, and as many from other workers; more are 503
    ``overloaded``. Each needs up to three descriptors and the memory of its body."""

    body_bytes_max: int = 64 * 1024**2
    """The longest request body of a rollout, rebuilt or sent in full; beyond it 413."""

    limits: Limits | None = None
    """What one connection may cost: of the public port of ``serve``, and of the private sockets.
    None, as where the router is installed: the public port is another server's, with limits of its
    own, and the private sockets let through what that one let in."""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.rollout_header):
            raise ValueError(f"rollout_header is no header name: {self.rollout_header!r}")
        if not self.service:
            raise ValueError("service must have a name")
        if self.placement not in get_args(Placement):
            raise ValueError(f"placement is arrival or balanced, got {self.placement!r}")
        if self.rollout_keys == b"":
            raise ValueError("rollout_keys must not be empty: anybody could mint a key")
        if (
            self.sessions is not None
            and self.sessions.header is not None
            and self.sessions.header.lower() == self.rollout_header.lower()
        ):
            raise ValueError(
                f"the header {self.rollout_header} names rollouts: name another one for sessions,"
                " or another one as rollout_header"
            )
        if not (self.drain_s_max >= 0 and math.isfinite(self.drain_s_max)):
            raise ValueError(f"drain_s_max must be finite and not negative, got {self.drain_s_max}")
        if not (self.sweep_s > 0 and math.isfinite(self.sweep_s)):
            raise ValueError(f"sweep_s must be positive and finite, got {self.sweep_s}")
        for name in ("owner_timeout_s", "calls_max", "body_bytes_max"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive and finite, got {value}")

    def header_of(self, kind: Kind) -> bytes:
        """The header that may name a rollout or a session, in lower case."""
        session = self.sessions.header if self.sessions is not None else None
        name = session if kind == "session" and session is not None else self.rollout_header
        return name.lower().encode("latin-1")

    @property
    def routes(self) -> bool:
        """True where identified requests are routed at all (R7)."""
        return self.history_delta or self.route_always
