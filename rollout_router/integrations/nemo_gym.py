# SPDX-License-Identifier: Apache-2.0
"""NeMo Gym 0.7: one call in ``setup_webserver()`` makes a model server one, whatever its workers.

All that the router needs is read from the gym server itself: its name, its configuration, whether
this process is one of its workers. Gym is never imported here. ``docs/nemo-gym.md`` says what
Gym's own supervisor does not allow.

R7  Gym's flag ``history_delta_enabled`` decides, and it is off by default: then nothing is claimed,
    forwarded, kept or rebuilt.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rollout_router.asgi import App
from rollout_router.integrations.run_folder import join_run, make_run
from rollout_router.routing import Settings, install
from rollout_router.routing.installation import check_installable

__all__ = ["FLAG", "deltas_enabled", "route_rollouts"]

FLAG: Final = "history_delta_enabled"
"""In a server's own block, in the block of an agent, or at the top of the configuration."""

RUN: Final = "ROLLOUT_ROUTER_GYM_RUN"
"""The variable in which a gym server hands the folder of its run to its workers."""

WORKER: Final = "IS_NEMO_GYM_FASTAPI_WORKER"
"""Gym's own mark of a worker. Source: nemo_gym 0.7.0, server_utils.py."""


def route_rollouts(server: Any, app: Any, **settings: Any) -> App:
    """Put the router around what the ``setup_webserver()`` of a gym server has built.

    Claims and sockets lie in a private folder that each run makes anew and removes, so that a
    rollout id that a later run uses again finds nothing of an earlier one.

    Args:
        server: the gym server, ``self`` in ``setup_webserver()``.
        app: its FastAPI application, not started yet; changed in place and returned.
        settings: fields of :class:`Settings` that shall be other than what is derived:
            ``state_dir`` and ``run_dir`` to keep claims elsewhere, ``route_always=True`` to route
            without deltas.

    Raises:
        ValueError: the flag is neither true nor false, a setting makes no sense, or the router is
            installed already; nothing is changed.
        RuntimeError: *app* has started; nothing is changed.
        OSError: no folder could be made for this run.
    """
    service = server.config.name
    deltas = deltas_enabled(server.server_client.global_config_dict, service)
    within = {"state_dir": "state", "run_dir": "run"}  # what is not given lies in the run's folder
    unplaced = {name: Path(part) for name, part in within.items() if name not in settings}
    derived: dict[str, Any] = {"service": service, "history_delta": deltas, **unplaced}
    checked = Settings(**(derived | settings))
    check_installable(app)
    if unplaced:  # a folder is made only where nothing is left to refuse
        folder = _folder(service)
        placed: dict[str, Any] = {name: folder / part for name, part in unplaced.items()}
        checked = replace(checked, **placed)
    return install(app, checked)


def _folder(service: str) -> Path:
    """The folder of this run: made by the process that Gym started, found by its workers."""
    if os.environ.get(WORKER) != "1":
        folder = make_run(service)
        os.environ[RUN] = str(folder)
        return folder
    if RUN not in os.environ:
        raise ValueError(
            f"the process that started this worker of {service} did not call route_rollouts:"
            " call it in setup_webserver() under no condition"
        )
    folder = Path(os.environ[RUN])
    join_run(folder)
    return folder


def deltas_enabled(config: Mapping[str, Any], service: str) -> bool:
    """Whether the deltas of the server named *service* are on, in Gym's resolved configuration.

    Its own block decides where it says anything. Else they are on where the top of the
    configuration says so, or the block of an agent that uses this server.

    Raises:
        ValueError: a value is neither true nor false; the message says where it stands.
    """
    own = [said for block in _blocks(config.get(service)) for said in _flags(block, service)]
    if own:
        return own[0]
    agents = (
        said
        for name, entry in config.items()
        if isinstance(entry, Mapping) and "responses_api_agents" in entry
        for block in _blocks(entry)
        if _uses(block, service)
        for said in _flags(block, str(name))
    )
    return any([*_flags(config, "the configuration"), *agents])


def _blocks(entry: Any) -> Iterator[Mapping[str, Any]]:
    """The blocks of a server: below its name, its kind and its implementation."""
    for kind in entry.values() if isinstance(entry, Mapping) else ():
        for block in kind.values() if isinstance(kind, Mapping) else ():
            if isinstance(block, Mapping):
                yield block


def _flags(block: Mapping[str, Any], where: str) -> Iterator[bool]:
    if (said := block.get(FLAG)) is not None:
        if not isinstance(said, bool):
            raise ValueError(f"{FLAG} of {where} must be true or false, not {said!r}")
        yield said


def _uses(block: Mapping[str, Any], service: str) -> bool:
    """Whether an agent refers to this server: ``{type: responses_api_models, name: <service>}``."""
    return any(
        isinstance(value, Mapping)
        and (value.get("type"), value.get("name")) == ("responses_api_models", service)
        for value in block.values()
    )
