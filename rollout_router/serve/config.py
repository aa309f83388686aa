# SPDX-License-Identifier: Apache-2.0
"""What ``serve`` was told: one value, handed from the supervisor to its workers."""

from dataclasses import dataclass
from pathlib import Path

from rollout_router.history import Bounds
from rollout_router.logs import Format
from rollout_router.routing import SessionSettings, Settings
from rollout_router.routing.key_file import read_secret
from rollout_router.routing.limits import Limits
from rollout_router.routing.settings import Placement

__all__ = ["ServeConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The settings of one service; see ``rollout-router serve --help`` for their meaning."""

    state_dir: str
    run_dir: str
    service: str
    capture_dir: str | None
    upstream: str | None  # at most one of upstream and app; neither: the scripted model
    app: str | None
    history_delta: bool
    route_always: bool
    history_rollouts: int
    history_bytes: int
    history_idle_s: float
    rollout_header: str
    session_cookie: str | None  # at most one of the two; neither: no sessions
    session_header: str | None
    rollout_keys_file: str | None
    placement: Placement
    server_timing: bool
    allow_network_fs: bool
    drain_s: float
    keep_alive_grace_s: float  # within drain_s
    owner_timeout_s: float | None  # None: as long as it takes
    sweep_s: float
    connections_max: int | None  # None: what the descriptors allow
    answer_stall_s: float
    hand_over: bool
    admin_host: str
    admin_port: int | None  # None: there is no admin address; 0 picks a port
    log_format: Format = "auto"
    log_level: str = "info"

    def settings(self) -> Settings:
        """The router's part of it.

        Raises:
            ValueError: a value makes no sense.
            OSError, SecretRefused: the file of rollout keys cannot or may not be read.
        """
        keys = None
        if self.rollout_keys_file is not None:
            keys = read_secret(Path(self.rollout_keys_file))
        sessions = None
        if self.session_cookie is not None or self.session_header is not None:
            sessions = SessionSettings(cookie=self.session_cookie, header=self.session_header)
        return Settings(
            state_dir=Path(self.state_dir),
            run_dir=Path(self.run_dir),
            service=self.service,
            history_delta=self.history_delta,
            route_always=self.route_always,
            history=Bounds(
                rollouts_max=self.history_rollouts,
                bytes_max=self.history_bytes,
                idle_s_max=self.history_idle_s,
            ),
            placement=self.placement,
            server_timing=self.server_timing,
            rollout_header=self.rollout_header,
            sessions=sessions,
            refuse_invalid_ids=True,
            rollout_keys=keys,
            allow_network_fs=self.allow_network_fs,
            drain_s_max=self.drain_s,
            owner_timeout_s=self.owner_timeout_s,
            sweep_s=self.sweep_s,
            limits=Limits(
                connections_max=self.connections_max, answer_stall_s_max=self.answer_stall_s
            ),
        )
