# SPDX-License-Identifier: Apache-2.0
"""The workers of a store, dead ones too."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rollout_router.claims import (
    ClaimReader,
    Owner,
    OwnerIdentity,
    StoreUnavailable,
    Unreadable,
    code_of,
)
from rollout_router.documents import SCHEMA
from rollout_router.documents.claims import described

__all__ = ["workers_document"]


def workers_document(store: ClaimReader, *, step: Callable[[], object]) -> dict[str, Any]:
    """Every worker that left an owner file, and how many claims it has; lost sessions do not count.

    *step* is called at each record.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    claims: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    for record in store.survey():
        step()
        if isinstance(record, Unreadable):
            unreadable.append(record)
        elif record.state == "owned":
            claims[record.owner.nonce] += 1
    for found in _owners(store):
        if isinstance(found, Unreadable):
            unreadable.append(found)
            continue
        judgement = store.judge(Owner(nonce=found.nonce, inode=found.inode))
        rows.append(
            {
                "id": found.nonce,
                "pid": found.pid,
                "socket": found.socket,
                "verdict": judgement.verdict.value,
                "claims": claims[found.nonce],
            }
        )
    return {
        "schema": SCHEMA,
        "workers": rows,
        "unreadable": [described(one) for one in unreadable],
    }


def _owners(store: ClaimReader) -> Iterator[OwnerIdentity | Unreadable]:
    try:
        yield from store.owners()
    except StoreUnavailable as error:  # their directory is gone, or closed to us
        yield Unreadable(path=f"{store.state_dir}/owners", code=code_of(error))
