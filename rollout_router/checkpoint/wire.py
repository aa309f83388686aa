# SPDX-License-Identifier: Apache-2.0
"""How an operation names itself to the server that performs it. Pure.

    Operation-Id: <rollout id>/<sequence>          the same in every attempt: repeats are told by it
    Operation-Fence: <store id>/<claim epoch>      of the claim under which it is sent
    Operation-Environment: <environment id>        which environment it acts on, where it does
    Operation-Revision: <number>                   in the answer: of the environment, after it

The names do not begin with ``Rollout-``: a gateway would remove them on their way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

__all__ = [
    "ENVIRONMENT",
    "FENCE",
    "IDENTIFIER",
    "OPERATION",
    "REVISION",
    "Operation",
    "declined",
    "error_of",
]

OPERATION: Final = "operation-id"
FENCE: Final = "operation-fence"
ENVIRONMENT: Final = "operation-environment"
REVISION: Final = "operation-revision"

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""The form of a rollout's, a store's and an environment's id."""

_BUSY: Final = 503
_TOO_MANY: Final = 429
_PARKED: Final = "checkpoint_parked"  # a gym's own code for a closed gate, with a 409
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")  # of 63 bits, as SQLite stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of one rollout, as it is sent under one claim.

    Raises:
        ValueError: an id has another form, or a number is not in 1..2**63-1.
    """

    rollout_id: str
    sequence: int  # 1 and up in the life of a rollout; no attempt and no restart repeats one
    store_id: str
    claim_epoch: int
    environment_id: str | None = None

    def __post_init__(self) -> None:
        for identifier in (self.rollout_id, self.store_id, self.environment_id):
            if identifier is not None and IDENTIFIER.fullmatch(identifier) is None:
                raise ValueError(f"not an id: {identifier!r}")
        for number in (self.sequence, self.claim_epoch):
            if not 0 < number < 1 << 63:
                raise ValueError(f"not in 1..2**63-1: {number}")

    @property
    def id(self) -> str:
        """What a receiver tells a repeat by."""
        return f"{self.rollout_id}/{self.sequence}"

    def headers(self) -> dict[str, str]:
        """The headers that say all of it."""
        named = {OPERATION: self.id, FENCE: f"{self.store_id}/{self.claim_epoch}"}
        if self.environment_id is not None:
            named[ENVIRONMENT] = self.environment_id
        return named

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Self:
        """Read what :meth:`headers` says; names in lower case.

        Raises:
            KeyError: the operation or its fence is not named.
            ValueError: it is named in another form.
        """
        rollout_id, _, sequence = headers[OPERATION].rpartition("/")
        store_id, _, claim_epoch = headers[FENCE].rpartition("/")
        for number in (sequence, claim_epoch):
            if _NUMBER.fullmatch(number) is None:
                raise ValueError(f"not a positive number: {number[:40]!r}")
        return cls(
            rollout_id=rollout_id,
            sequence=int(sequence),
            store_id=store_id,
            claim_epoch=int(claim_epoch),
            environment_id=headers.get(ENVIRONMENT),
        )


def declined(status: int, code: str, *, retry_after: bool) -> bool:
    """Whether an answer says that nothing happened, and that the same may be sent again.

    Args:
        status: of the answer.
        code: its error's.
        retry_after: whether it has the header.
    """
    return status == _TOO_MANY or (status == _BUSY and retry_after) or code == _PARKED


def error_of(document: Any) -> tuple[str, str]:
    """Code and message of an answer in the form of our errors; empty where it has another."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("code") or ""), str(error.get("message") or "")
