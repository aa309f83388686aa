# SPDX-License-Identifier: Apache-2.0
"""What a disk broke in the fixed parts of a store, and mending it (law C2).

A repair writes epochs that no worker was ever given: it raises the generation first (C2). Claims
are never repaired: an operator frees the rollout of an unreadable one by force.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rollout_router.claims.creation import highest_generation, restore_parts, write_format
from rollout_router.claims.disk import TEMPORARY, publish, read_capped
from rollout_router.claims.envelope import Malformed
from rollout_router.claims.epochs import decode_highest, encode_highest, floor_of, generation_of
from rollout_router.claims.errors import StoreRefused, StoreUnavailable, code_of
from rollout_router.claims.files import FileClaimStore
from rollout_router.claims.layout import STRIPE_NAMES, read_format
from rollout_router.claims.record import Unreadable
from rollout_router.claims.sweeper import dead_owners

__all__ = ["UNRECORDED_GENERATIONS", "highest_of", "repair"]

UNRECORDED_GENERATIONS: Final = 1024
"""So many boots and repairs may lie between a FORMAT from a backup and an epoch file that cannot be
read any more. 2**31 generations are enough for two million repairs."""


def repair(
    store: FileClaimStore, *, behind: Mapping[str, int] = MappingProxyType({})
) -> tuple[Unreadable, ...]:
    """Mend the fixed parts of a store. Claims are never repaired: ``force`` frees their rollouts.

    While a lock file is missing it needs that no worker lives: one that still holds the old file
    would not exclude one that holds the new (C1).

    Args:
        store: opened, not only inspected.
        behind: stripes with a claim above their epoch file, and that claim's epoch: an old file
            was put back, so what was granted and released above it is not on record any more.

    Returns:
        What was damaged and is mended now.

    Raises:
        StoreRefused: a lock file is missing and a worker is not proven dead, or the generations are
            used up. Nothing was changed.
        StoreUnavailable: what was mended until then stays mended; run it again.
    """
    root = store.state_dir
    mended: list[Unreadable] = []
    try:
        lacking = [name for name in STRIPE_NAMES if not (root / "locks" / name).exists()]
        if lacking:
            _check_nobody_lives(store, lacking)
        with store.holding_format():
            mended += restore_parts(root)
            damaged = [s for s in STRIPE_NAMES if _code(root, s, behind=behind)]
            found = read_format(root)
            known = max(highest_generation(root), *map(generation_of, behind.values()), 0)
            if not damaged and known <= found.generation:
                return tuple(mended)
            # Above every epoch on record, also where an old FORMAT was put back; and what is not on
            # record any more may have been of a later generation (C2).
            margin = UNRECORDED_GENERATIONS if damaged else 0
            raised = found.raised(store.boot_id, above=max(known, found.generation) + margin)
            write_format(root, raised)
            if known > found.generation:
                mended.append(Unreadable(path=f"{root}/FORMAT", code="behind"))
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


def _check_nobody_lives(store: FileClaimStore, lacking: list[str]) -> None:
    owners = store.state_dir / "owners"
    if not owners.exists():
        return  # nobody can tell
    dead = {owner.nonce for owner in dead_owners(store)}
    names = {path.name for path in owners.iterdir() if not path.name.startswith(TEMPORARY)}
    living = sorted(names - dead)
    if living:
        raise StoreRefused(
            f"{store.state_dir}/locks lacks {', '.join(lacking[:5])}, and {len(living)} workers "
            f"are not proven dead ({', '.join(living[:5])}): two writers on two lock files would "
            "not exclude each other. Stop all workers of this store, then repair it"
        )


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
