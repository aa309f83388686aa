# SPDX-License-Identifier: Apache-2.0
"""Where the three rooms meet: the decision, the middleware, the worker's life, admission."""

from rollout_router.routing.install import install
from rollout_router.routing.keys import mint_key
from rollout_router.routing.making import close_session
from rollout_router.routing.router import Router
from rollout_router.routing.settings import SessionSettings, Settings

__all__ = ["Router", "SessionSettings", "Settings", "close_session", "install", "mint_key"]
