# SPDX-License-Identifier: Apache-2.0
"""What a machine and a configuration lack before a run. Changes nothing.

Each check is a function of the settings that says what it found and what to do about it.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from typing import Final

from rollout_router.doctor.checked import Checked, Status, fail
from rollout_router.doctor.machine import (
    clocks,
    descriptors,
    event_loop,
    metrics_folder,
    packages,
    python,
)
from rollout_router.doctor.network import admin_port, public_port, upstream
from rollout_router.doctor.places import (
    capture_access,
    capture_file_system,
    locks,
    run_access,
    socket_path,
    space,
    state_access,
    state_file_system,
)
from rollout_router.doctor.service import application, rollout_keys, store
from rollout_router.serve.config import ServeConfig

__all__ = ["CHECKS", "Checked", "Status", "examine"]

CHECKS: Final[Mapping[str, Callable[[ServeConfig], Checked]]] = {
    "python": python,
    "packages": packages,
    "event_loop": event_loop,
    "clocks": clocks,
    "descriptors": descriptors,
    "state_file_system": state_file_system,
    "state_access": state_access,
    "space": space,
    "locks": locks,
    "store": store,
    "run_access": run_access,
    "socket_path": socket_path,
    "capture_file_system": capture_file_system,
    "capture_access": capture_access,
    "public_port": public_port,
    "admin_port": admin_port,
    "metrics_folder": metrics_folder,
    "rollout_keys": rollout_keys,
    "upstream": upstream,
    "application": application,
}
"""Every check by its name, which is stable, in the order in which they are done."""


def examine(config: ServeConfig) -> Iterator[tuple[str, Checked]]:
    """Do every check; the name of each and what it found, as it is done."""
    for name, check in CHECKS.items():
        try:
            yield name, check(config)
        except OSError as error:  # of the system, about something that a check has no words for
            yield name, fail(f"the system would not let us look: {error}", "see what that names")
        except PackageNotFoundError as error:
            yield name, fail(f"{error}", "install the product, instead of naming its folder")
