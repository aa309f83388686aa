# SPDX-License-Identifier: Apache-2.0
"""What the sending side makes of each form of conversation: bytes that go, and time it takes.

No sockets: a client state machine sends, and whatever it sends is kept.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.figures import Part
from rollout_router.bench.forms import FORMS
from rollout_router.bench.lineage import CONTENT_TYPE
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.tables import Table
from rollout_router.transport.sandbox.client import Client, Outgoing, Sent, Tally
from rollout_router.transport.sandbox.wire import HISTORY_HEADER, KEPT, sha256_hex

__all__ = ["SHA256_REFERENCE", "DeltaCosts", "FormCosts", "run_deltas", "tallied"]

_WARM_UPS: Final = 5
SHA256_REFERENCE: Final = "sha256"
_ROLLOUT: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCosts:
    """One run of one form; its first body goes in full, as the first one does in life."""

    form: str
    bytes_full: int  # that the harness wrote
    bytes_plain: int  # that go as frames without compression
    bytes_deflated: int  # that go as frames
    stages: list[Measured]  # of a call behind the first


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCosts(Part):
    """Each form."""

    rounds: int
    forms: list[FormCosts]

    def tables(self) -> list[Table]:
        """A table of the stages each."""
        rows = []
        for costs in self.forms:
            fewer = (costs.bytes_full / sent for sent in (costs.bytes_plain, costs.bytes_deflated))
            ratios = (stage.ratio for stage in costs.stages if stage.ratio is not None)
            numbers = (*(f"{one:.1f}" for one in fewer), *(f"{one:.3g}" for one in ratios))
            rows.append([costs.form, f"{costs.bytes_full:,}", *numbers])
        title = f"Deltas: bytes of a run, time of a call as a ratio to sha256; {self.rounds} rounds"
        columns = ["form", "bytes in full", "times fewer", "deflated", "time", "time, deflated"]
        return [Table(title=title, columns=columns, rows=rows)]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {f"deltas {f.form} {s.stage}": s for f in self.forms for s in f.stages}


def run_deltas(*, rounds: int, say: Callable[[str], None]) -> DeltaCosts:
    """Measure every form; *say* takes one line for people.

    Raises:
        BenchFailed: a body that should have gone as a frame did not.
    """
    say(f"measuring {rounds} rounds of {len(FORMS)} forms of conversation")
    return DeltaCosts(rounds=rounds, forms=[_costs(form, rounds) for form in FORMS])


def _costs(form: str, rounds: int) -> FormCosts:
    stages = [
        Stage(name=SHA256_REFERENCE, reference=None, prepare=_hash(form)),
        Stage(name="delta_plain", reference=SHA256_REFERENCE, prepare=_send(form, deflate=False)),
        Stage(name="delta_deflated", reference=SHA256_REFERENCE, prepare=_send(form, deflate=True)),
    ]
    tally = tallied(FORMS[form]())
    return FormCosts(
        form=form,
        bytes_full=tally.bytes_full,
        bytes_plain=tally.bytes_plain,
        bytes_deflated=tally.bytes_sent,
        stages=run_rounds(stages, rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter),
    )


def tallied(bodies: Iterable[bytes]) -> Tally:
    """What goes for the bodies of one run, the first one in full.

    Raises:
        BenchFailed: a frame could not be made.
    """
    failures: list[Exception] = []  # raising one would tell nobody (S5)
    client = Client(clock=time.monotonic, on_failure=failures.append)
    for body in bodies:
        _settle(client, _prepare(client, body))
    if failures:
        raise BenchFailed(f"the sandbox side could make no frame: {failures[0]!r}")
    return client.statistics()[_ROLLOUT]


def _hash(form: str) -> Callable[[], Callable[[], object]]:
    bodies = _endless(form)

    def prepare() -> Callable[[], object]:
        _, body = next(bodies)
        return lambda: sha256_hex(body)

    return prepare


def _send(form: str, *, deflate: bool) -> Callable[[], Callable[[], object]]:
    """The whole decision: digest, choice of the base, delta, frame."""
    bodies = _endless(form)
    client = Client(clock=time.monotonic, deflate=deflate)
    sent: list[Outgoing] = []

    def prepare() -> Callable[[], object]:
        nonlocal client
        first, body = next(bodies)
        if first is not None:
            client = Client(clock=time.monotonic, deflate=deflate)
            sent[:] = [_prepare(client, first)]
        elif sent[-1].sent is not Sent.FRAME:
            raise BenchFailed(f"{form}: the sandbox side sent no frame")
        _settle(client, sent.pop())
        return lambda: sent.append(_prepare(client, body))

    return prepare


def _endless(form: str) -> Iterator[tuple[bytes | None, bytes]]:
    """Each body behind the first, run after run; a run's second comes with the first."""
    run = list(FORMS[form]())
    while True:
        yield run[0], run[1]
        for body in run[2:]:
            yield None, body


def _prepare(client: Client, body: bytes) -> Outgoing:
    return client.prepare("http://bench", _ROLLOUT, [("Content-Type", CONTENT_TYPE)], body)


def _settle(client: Client, outgoing: Outgoing) -> None:
    client.settle(outgoing, 200, [(HISTORY_HEADER, KEPT + outgoing.target.sha)])
