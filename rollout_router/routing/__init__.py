# SPDX-License-Identifier: Apache-2.0
"""Where the three rooms meet: the decision, the middleware, the worker's life, admission."""

from rollout_router.routing.install import install
from rollout_router.routing.keys import mint_key
from rollout_router.routing.router import Router
from rollout_router.routing.settings import Settings

__all__ = ["Router", "Settings", "install", "mint_key"]
