# SPDX-License-Identifier: Apache-2.0
"""The shim's command line in full: ``--help``, wrong usage, and what flags.py is not sure of."""

import argparse
import os
from typing import Any, Callable, Dict, List

from rollout_router.transport.sandbox.client import BASES_BYTES_MAX
from rollout_router.transport.sandbox.flags import (
    ENVIRONMENT,
    FLAGS,
    SWITCH,
    is_on,
    is_pid,
    shim_arguments,
)
from rollout_router.transport.sandbox.shim import Shim
from rollout_router.transport.sandbox.wire import ROLLOUT_HEADER

__all__ = ["asked"]


def asked(arguments: List[str]) -> Dict[str, Any]:
    """The settings, by flag with underscores.

    Raises:
        SystemExit: with 0 after ``--help``, with 2 and a message where they are wrong.
    """
    parser = _parser()
    found = vars(parser.parse_args(arguments))
    settings = {name: value for name, value in found.items() if value is not None}
    if not settings.get("gateway"):
        parser.error("--gateway is required")
    try:
        Shim(report=print, **shim_arguments(settings))
    except ValueError as error:
        parser.error(str(error))
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollout-router shim",
        description="A loopback server for a harness: sends a gateway only what is new.",
        epilog=f"Every flag has a twin in the environment, for example {ENVIRONMENT}GATEWAY.",
    )
    defaults = {"port": 0, "rollout-header": ROLLOUT_HEADER, "bases-bytes": BASES_BYTES_MAX}
    types: Dict[str, Callable[[str], int]] = {"port": int, "bases-bytes": _size, "parent-pid": _pid}
    for name, (kind, metavar, text) in FLAGS.items():
        twin = os.environ.get(ENVIRONMENT + name.upper().replace("-", "_"))
        if kind is SWITCH:
            parser.add_argument(f"--{name}", help=text, default=is_on(twin), action="store_true")
            continue
        parser.add_argument(
            f"--{name}",
            help=text,
            metavar=metavar,
            # argparse converts a default that is text, as it does an argument
            default=twin or defaults.get(name),
            type=types.get(name, str),
        )
    return parser


def _pid(text: str) -> int:
    pid = int(text)
    if not is_pid(pid):
        raise argparse.ArgumentTypeError(f"not the id of a process: {text}")
    return pid


def _size(text: str) -> int:
    size = int(text)
    if size < 0:
        raise argparse.ArgumentTypeError(f"not a number of bytes: {text}")
    return size
