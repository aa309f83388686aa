# SPDX-License-Identifier: Apache-2.0
"""What a disk broke in the fixed parts of a store, and mending it (law C2).

A repair writes epochs that no worker was ever given: it raises the generation first (C2). Claims
are never repaired: an operator frees the rollout of an unreadable one by force.
"""

from collections.abc import Iterator
from pathlib import Path

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

__all__ = ["damage", "repair"]


def damage(store: FileClaimStore) -> Iterator[Unreadable]:
    """What ``repair`` would mend: fixed parts that are missing, epoch files that are damaged."""
    for stripe in STRIPE_NAMES:
        for part in ("locks", "claims"):
            path = store.state_dir / part / stripe
            if not path.exists():
                yield Unreadable(path=str(path), code="missing")
        if code := _epoch_damage(store.state_dir / "epochs" / stripe):
            yield Unreadable(path=str(store.state_dir / "epochs" / stripe), code=code)


def repair(store: FileClaimStore) -> tuple[Unreadable, ...]:
    """Mend the fixed parts of a store. Claims are never repaired: ``force`` frees their rollouts.

    Run it while no worker runs when a lock file is missing: a worker that still holds the old file
    would not exclude one that holds the new.

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
            damaged = [s for s in STRIPE_NAMES if _epoch_damage(root / "epochs" / s)]
            if not damaged:
                return tuple(mended)
            raised = read_format(root).raised(store.boot_id)
            write_format(root, raised)
            for stripe in damaged:
                path = root / "epochs" / stripe
                with store.holding_stripe(stripe):
                    if code := _epoch_damage(path):
                        publish(
                            str(path), encode_highest(floor_of(raised.generation)), durable=True
                        )
                        mended.append(Unreadable(path=str(path), code=code))
    except OSError as error:
        raise StoreUnavailable(f"repairing {root}", error.errno) from error
    return tuple(mended)


def _epoch_damage(path: Path) -> str | None:
    try:
        decode_highest(read_capped(str(path)))
    except FileNotFoundError:
        return "missing"
    except Malformed as error:
        return error.code
    return None
