# SPDX-License-Identifier: Apache-2.0
"""What workers are forked from: a process that has imported what they need, and does nothing else.

It is the fork server of ``multiprocessing``, one a process, and ends with it.
"""

import multiprocessing
from multiprocessing import forkserver

__all__ = ["start_preloading"]


def start_preloading(
    *, app: object, upstream: object, capture_dir: object, admin: object = None
) -> None:
    """Start it now, and do not wait: a worker that is started later waits for its imports.

    Nothing of the application's is imported: it may start threads. What is not None was given.
    """
    modules = ["rollout_router.serve.uncollected"]  # before the others
    modules += ["rollout_router.cli.main", "rollout_router.serve.supervisor"]
    modules.append("rollout_router.serve.worker")
    if app is None:
        modules += ["rollout_router.gateway.app", "rollout_router.gateway.scripted"]
    if upstream is not None:
        modules.append("rollout_router.gateway.upstream")
    if capture_dir is not None:
        modules.append("rollout_router.gateway.capture")
    if admin is not None:
        modules.append("rollout_router.admin.process")
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    forkserver.ensure_running()
