# SPDX-License-Identifier: Apache-2.0
"""What a disk broke in the fixed parts of a store, and mending it (law C2).

A repair writes epochs that no worker was ever given: it raises the generation first (C2). Claims
are never repaired: an operator frees the rollout of an unreadable one by force.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from rollout_router.claims.census import code_of
from rollout_router.claims.disk import publish, read_capped
from rollout_router.claims.epochs import decode_highest, encode_highest, floor_of
from rollout_router.claims.errors import StoreUnavailable
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.layout import (
    STRIPE_NAMES,
    read_format,
    restore_parts,
    write_format,
)
from rollout_router.claims.record import Malformed, Unreadable

__all__ = ["damage", "highest_of", "repair"]


def damage(store: FileClaimStore) -> Iterator[Unreadable]:
    """What ``repair`` would mend: fixed parts that are missing, epoch files that are damaged.

    Never raises for a part that cannot be looked at: that is a damage too, with the name of the
    error number.
    """
    root = str(store.state_dir)
    parts = ["locks", "owners", "epochs", "claims"]
    parts += [f"{part}/{stripe}" for stripe in STRIPE_NAMES for part in ("locks", "claims")]
    for part in parts:
        try:
            os.lstat(f"{root}/{part}")
        except OSError as error:
            yield Unreadable(path=f"{root}/{part}", code=code_of(error))
    for stripe in STRIPE_NAMES:
        path = f"{root}/epochs/{stripe}"
        if isinstance(code := highest_of(path), str):
            yield Unreadable(path=path, code=code)


def repair(
    store: FileClaimStore, *, behind: Mapping[str, int] = MappingProxyType({})
) -> tuple[Unreadable, ...]:
    """Mend the fixed parts of a store. Claims are never repaired: ``force`` frees their rollouts.

    Run it while no worker runs when a lock file is missing: a worker that still holds the old file
    would not exclude one that holds the new.

    Args:
        store: opened, not only inspected.
        behind: stripes with a claim above their epoch file, and that claim's epoch: an old file
            was put back, so what was granted and released above it is not on record any more.

    Returns:
        What was damaged and is mended now.

    Raises:
        StoreUnavailable: what was mended until then stays mended; run it again.
    """
    root = store.state_dir
    mended: list[Unreadable] = []
    try:
        with store.holding_format():
            mended += restore_parts(root)
            damaged = [s for s in STRIPE_NAMES if _code(root, s, behind=behind)]
            if not damaged:
                return tuple(mended)
            raised = read_format(root).raised(store.boot_id)
            write_format(root, raised)
            for stripe in damaged:
                path = f"{root}/epochs/{stripe}"
                with store.holding_stripe(stripe):
                    if code := _code(root, stripe, behind=behind):
                        highest = max(floor_of(raised.generation), behind.get(stripe, 0))
                        publish(path, encode_highest(highest), durable=True)
                        mended.append(Unreadable(path=path, code=code))
    except OSError as error:
        raise StoreUnavailable(f"repairing {root}", error.errno) from error
    return tuple(mended)


def highest_of(path: str) -> int | str:
    """What an epoch file says, or the code of what is wrong with it.

    Raises:
        StoreUnavailable: this process has no descriptors or memory left.
    """
    try:
        return decode_highest(read_capped(path))
    except Malformed as error:
        return error.code
    except OSError as error:
        return code_of(error)


def _code(root: Path, stripe: str, *, behind: Mapping[str, int]) -> str | None:
    highest = highest_of(f"{root}/epochs/{stripe}")
    if isinstance(highest, str):
        return highest
    return "behind" if highest < behind.get(stripe, 0) else None
