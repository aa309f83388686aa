# SPDX-License-Identifier: Apache-2.0
"""What an admin process is told: one value, handed to it by whoever starts it."""

from dataclasses import dataclass, field

from rollout_router.logs import Format

__all__ = ["AdminConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """What an admin process is told.

    Attributes:
        state_dir: the store.
        host: the name or address that it was told to listen on.
        url: where it is reached on this machine.
        token: what changes need.
        public_url: of the service; None where others started the workers.
        metrics_dir: where workers keep their metrics; None: they are not collected.
        log_format: of its log.
        log_level: from which level on.
        allow_network_fs: whether a store on a network file system may be changed.
    """

    state_dir: str
    host: str
    url: str
    token: str = field(repr=False)
    public_url: str | None = None
    metrics_dir: str | None = None
    log_format: Format = "auto"
    log_level: str = "info"
    allow_network_fs: bool = False
