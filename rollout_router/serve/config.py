# SPDX-License-Identifier: Apache-2.0
"""What ``serve`` can be told: one model; flags, variables, keys of a file and docs follow from it.

A value is frozen and can be pickled: the supervisor hands it to its workers. Made in code it reads
nothing from outside; :mod:`rollout_router.serve.sources` reads flags, environment and file.
"""

import re
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import model_validator

from rollout_router.history import Bounds
from rollout_router.logs import Format
from rollout_router.routing import SessionSettings, Settings
from rollout_router.routing.key_file import read_secret
from rollout_router.routing.limits import Limits
from rollout_router.routing.settings import Placement
from rollout_router.serve.fields import (
    CookieName,
    Directory,
    ExistingFile,
    GivenSettings,
    HeaderName,
    NewFile,
    Seconds,
    ServiceName,
    Text,
    UpstreamUrl,
    setting,
)
from rollout_router.serve.places import default_run_dir, default_state_dir

__all__ = ["WORKERS_MAX", "LogLevel", "ServeConfig"]

WORKERS_MAX: Final = 256
"""Worker processes of one service; each is a process with a Python of its own."""

LogLevel = Literal["debug", "info", "warning", "error"]

_PORT_MAX: Final = 65_535
_CREDENTIALS: Final = re.compile(r"^([^/]*//)?.*@", re.DOTALL)
_HISTORY: Final = Bounds()
_LIMITS: Final = Limits()


class ServeConfig(GivenSettings):
    """The settings of one service.

    Raises:
        pydantic.ValidationError: a value makes no sense. An error without a place concerns several
            settings, and has their names in braces.
    """

    upstream: UpstreamUrl | None = setting(
        "Serve this OpenAI-compatible server.",
        "Excludes an application; without both the embedded scripted model is served. Credentials"
        " in it are sent as Basic authorization, and shown nowhere.",
        default=None,
        form="URL",
        group="Service",
        repr=False,
    )
    app: Text | None = setting(
        "Serve this ASGI application.",
        "It is imported in each worker, and once before one starts, to see that it can be.",
        default=None,
        form="MODULE:ATTR",
        group="Service",
    )
    service: ServiceName = setting(
        "Name of the service that the store belongs to.",
        "A store refuses workers of another service. 1 to 100 of A-Z a-z 0-9 . _ -",
        default="model",
        form="TEXT",
        group="Service",
    )
    host: Text = setting(
        "Address of the public port.",
        "There is no TLS, and whoever reaches the port may call: so only this machine does, unless"
        " another address is named.",
        default="127.0.0.1",
        form="TEXT",
        group="Service",
    )
    port: int = setting(
        "Public port; 0 picks one.",
        "All workers share it. The ready file says which one was picked.",
        default=8000,
        form="INTEGER",
        group="Service",
        ge=0,
        le=_PORT_MAX,
    )
    workers: int = setting(
        "Worker processes.",
        "Each uses one core. Two, so that the death of one ends no service.",
        default=2,
        form="INTEGER",
        group="Service",
        ge=1,
        le=WORKERS_MAX,
    )
    ready_file: NewFile | None = setting(
        "Written when every worker answers.",
        "JSON with URL, pids and sockets, by rename; removed at start and at the end. Its directory"
        " must be there.",
        default=None,
        form="FILE",
        group="Service",
    )
    state_dir: Directory = setting(
        "The claim store of one service.",
        "A directory of mode 0700 on a local file system; the first start makes it. Not in /tmp,"
        " which cleaners sweep.",
        default=default_state_dir,
        form="DIRECTORY",
        group="Places",
        said="$XDG_STATE_HOME/rollout-router/model, or below ~/.local/state",
    )
    run_dir: Directory = setting(
        "Where private sockets lie.",
        "Of mode 0700 and short: the path of a socket has at most 107 bytes, 26 of them its name.",
        default=default_run_dir,
        form="DIRECTORY",
        group="Places",
        said="$XDG_RUNTIME_DIR/rollout-router; without it /run/rollout-router of root, or"
        " /tmp/rollout-router-UID",
    )
    capture_dir: Directory | None = setting(
        "Record every call of a rollout here.",
        "One file a rollout, one line a call. The folder is bound to one store. Without it nothing"
        " is recorded.",
        default=None,
        form="DIRECTORY",
        group="Places",
    )
    allow_network_fs: bool = setting(
        "Accept a store on a network file system.",
        "Only where all workers are on one host and use one mount. Off, because locks of two hosts"
        " may not order what they read.",
        default=False,
        form="BOOLEAN",
        group="Places",
    )
    history_delta: bool = setting(
        "Keep bases, rebuild deltas.",
        "What this service is for; a client must ask for deltas in any case. Off, nothing is"
        " routed, unless that is asked for.",
        default=True,
        form="BOOLEAN",
        group="History",
    )
    route_always: bool = setting(
        "Route rollouts although deltas are off.",
        "For applications that keep state of their own.",
        default=False,
        form="BOOLEAN",
        group="History",
    )
    history_rollouts: int = setting(
        "Rollouts kept, a worker.",
        "Beyond it the least recently used is forgotten, and its claim is given back. As many as a"
        " worker has calls in hand.",
        default=_HISTORY.rollouts_max,
        form="INTEGER",
        group="History",
        unit="rollouts",
        ge=0,
    )
    history_bytes: int = setting(
        "Bytes kept, a worker.",
        "Bases of one conversation share their bytes: what is held is counted. 2 GiB are 4,096"
        " rollouts of 500 KB.",
        default=_HISTORY.bytes_max,
        form="INTEGER",
        group="History",
        unit="bytes",
        ge=0,
    )
    history_idle_seconds: Seconds = setting(
        "A rollout without a call for so long is forgotten.",
        "Its next call sends its body in full once. An hour, because tools of an agent may run that"
        " long between two calls.",
        default=_HISTORY.idle_s_max,
        form="SECONDS",
        group="History",
        gt=0,
    )
    rollout_header: HeaderName = setting(
        "Header that names a rollout.",
        "Where the path does not.",
        default="X-Session-ID",
        form="NAME",
        group="Rollouts and sessions",
    )
    session_cookie: CookieName | None = setting(
        "Cookie that names a session of the application.",
        "A session stays with the worker that made it. Excludes a header.",
        default=None,
        form="NAME",
        group="Rollouts and sessions",
    )
    session_header: HeaderName | None = setting(
        "Header that names one; not with a cookie.",
        "Another one than the header of rollouts.",
        default=None,
        form="NAME",
        group="Rollouts and sessions",
    )
    rollout_keys: ExistingFile | None = setting(
        "File with the secret of the rollout keys: each call must carry its rollout's key.",
        "Of mode 0600 or 0640, with at least 16 bytes. Without it whoever reaches the port can name"
        " any rollout.",
        default=None,
        form="FILE",
        group="Rollouts and sessions",
    )
    placement: Placement = setting(
        "Who gets a new rollout: the worker where it first arrives, or the least busy one.",
        "Balanced is for clients whose connections stay with one worker; it costs a hop.",
        default="arrival",
        form="CHOICE",
        group="Rollouts and sessions",
    )
    hand_over: bool = setting(
        "Hand a client's connection over to the worker that its requests are forwarded to.",
        "Off, because such a connection ends when that worker is killed.",
        default=False,
        form="BOOLEAN",
        group="Rollouts and sessions",
    )
    drain_seconds: Seconds = setting(
        "How long a leaving worker finishes what it has in hand.",
        "Then calls are 502 `owner_lost_in_flight`, or cut. Service managers often wait longer than"
        " this before they kill.",
        default=30.0,
        form="SECONDS",
        group="Waits and bounds",
        ge=0,
    )
    keep_alive_grace_seconds: Seconds = setting(
        "How long a leaving worker leaves idle connections open; longer than clients use them.",
        "Within the drain. The OpenAI SDK drops a connection that was idle for 5 s, the shim one of"
        " 4 s.",
        default=6.0,
        form="SECONDS",
        group="Waits and bounds",
        ge=0,
    )
    owner_timeout_seconds: Seconds | None = setting(
        "How long a forwarded call waits for its owner; if not given, as long as it takes.",
        "Then 504 `owner_timeout`. None, because a slow model is the normal case and the call may"
        " have run.",
        default=None,
        form="SECONDS",
        group="Waits and bounds",
        gt=0,
    )
    sweep_seconds: Seconds = setting(
        "How often a worker looks for what dead ones left.",
        "A look costs some 10 microseconds for each worker of the store.",
        default=5.0,
        form="SECONDS",
        group="Waits and bounds",
        gt=0,
    )
    connections_max: int | None = setting(
        "Connections of a worker; unless given, a quarter of its descriptors, at most 16,384.",
        "Beyond it 503 `overloaded`. A quarter, because a call needs another connection for its"
        " upstream or its hop.",
        default=None,
        form="INTEGER",
        group="Waits and bounds",
        unit="connections",
        ge=1,
    )
    answer_stall_seconds: Seconds = setting(
        "A client that takes nothing of its answer for so long is cut off.",
        "Long, because a sandbox that is stopped for minutes is a normal case.",
        default=_LIMITS.answer_stall_s_max,
        form="SECONDS",
        group="Waits and bounds",
        gt=0,
    )
    admin_host: Text = setting(
        "Address of the admin port.",
        "Whoever reaches it can read which rollouts there are: so only this machine does.",
        default="127.0.0.1",
        form="TEXT",
        group="Seeing it",
    )
    admin_port: int | None = setting(
        "Admin port: metrics, health, API and live page; 0 picks one.",
        "If not given, there is no admin address, and nothing is written for metrics.",
        default=None,
        form="INTEGER",
        group="Seeing it",
        ge=0,
        le=_PORT_MAX,
    )
    log_format: Format = setting(
        "How lines of the log are written.",
        "Auto is for people on a terminal, JSON elsewhere.",
        default="auto",
        form="CHOICE",
        group="Seeing it",
    )
    log_level: LogLevel = setting(
        "Least level of a line of the log.",
        "Info has a line for each decision that matters, and none for a call that went well.",
        default="info",
        form="CHOICE",
        group="Seeing it",
    )
    server_timing: bool = setting(
        "Tell in Server-Timing what the stages of a call took.",
        "Off, because whoever may call would learn it.",
        default=False,
        form="BOOLEAN",
        group="Seeing it",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.upstream is not None and self.app is not None:
            raise ValueError("{upstream} and {app} exclude each other")
        if self.session_cookie is not None and self.session_header is not None:
            raise ValueError("{session_cookie} and {session_header} exclude each other")
        if (self.session_header or "").lower() == self.rollout_header.lower():
            raise ValueError(
                "{session_header} and {rollout_header} name one header: give each its own"
            )
        session = "session_cookie" if self.session_cookie is not None else "session_header"
        if getattr(self, session) is not None and not (self.history_delta or self.route_always):
            raise ValueError(
                f"{{{session}}} has no effect with --no-history-delta: nothing is routed then; give"
                " --route-always too"
            )
        return self

    def shown(self) -> dict[str, Any]:
        """Every setting as JSON has it, without credentials."""
        values = {name: str(told) if isinstance(told, Path) else told for name, told in self}
        if self.upstream is not None:
            values["upstream"] = _CREDENTIALS.sub(r"\1…@", self.upstream)
        return values

    def settings(self) -> Settings:
        """The router's part of it.

        Raises:
            ValueError: a value makes no sense.
            OSError, SecretRefused: the file of rollout keys cannot or may not be read.
        """
        sessions = None
        if self.session_cookie is not None or self.session_header is not None:
            sessions = SessionSettings(cookie=self.session_cookie, header=self.session_header)
        return Settings(
            state_dir=self.state_dir,
            run_dir=self.run_dir,
            service=self.service,
            history_delta=self.history_delta,
            route_always=self.route_always,
            history=Bounds(
                rollouts_max=self.history_rollouts,
                bytes_max=self.history_bytes,
                idle_s_max=self.history_idle_seconds,
            ),
            placement=self.placement,
            server_timing=self.server_timing,
            rollout_header=self.rollout_header,
            sessions=sessions,
            refuse_invalid_ids=True,
            rollout_keys=None if self.rollout_keys is None else read_secret(self.rollout_keys),
            allow_network_fs=self.allow_network_fs,
            drain_s_max=self.drain_seconds,
            owner_timeout_s=self.owner_timeout_seconds,
            sweep_s=self.sweep_seconds,
            limits=Limits(
                connections_max=self.connections_max, answer_stall_s_max=self.answer_stall_seconds
            ),
        )
