# SPDX-License-Identifier: Apache-2.0
"""What a worker counts, in the registry of ``prometheus_client`` that its process exports anyway.

With ``PROMETHEUS_MULTIPROC_DIR`` set to a directory before the start, the workers of one service
count together, and a killed worker's counts stay. No label grows with rollouts: each has the values
that stand here, an error code, or the class of a status.

A labelled metric is used through :class:`Children`, which looks a child up once: the library's own
look costs more than to count.
"""

from typing import Final, TypeVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

__all__ = [
    "ADMISSION_CLOSED",
    "BASES",
    "BASE_BYTES",
    "CLAIMS",
    "CLAIMS_TAKEN",
    "FENCED",
    "HOPS",
    "HOP_SECONDS",
    "IN_FLIGHT",
    "LOG_LINES_DROPPED",
    "LOOP_LAG_SECONDS",
    "OWNER_UNREACHABLE",
    "PLACEMENTS",
    "RECEIVED",
    "RELEASES",
    "REQUESTS",
    "REQUEST_BYTES",
    "RESYNCS",
    "SAVED_BYTES",
    "SESSIONS",
    "SOCKET_REBINDS",
    "STAGE_SECONDS",
    "SWEEPS",
    "SWEEP_SECONDS",
    "SWEPT",
    "TAKEOVERS",
    "Children",
]

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)

_TIMES_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""A claim takes tenths of a millisecond, a model minutes; three buckets a factor of ten."""


class Children(dict[str | tuple[str, ...], _Metric]):
    """The children of *metric* by the value of its label, or by those of its labels in order.

    Args:
        metric: with labels.
        known: those whose child is there from the beginning, so that it is exported as 0.
    """

    def __init__(self, metric: _Metric, *known: str | tuple[str, ...]) -> None:
        super().__init__()
        self.metric: Final = metric
        for values in known:
            self[values]

    def __missing__(self, values: str | tuple[str, ...]) -> _Metric:
        of = (values,) if isinstance(values, str) else values
        child = self[values] = self.metric.labels(*of)
        return child


RECEIVED: Final = Children(
    Counter(
        "rollout_router_requests_received",
        "Requests of rollouts and sessions that a worker began with, over its public port or its"
        " private socket. Those that never had an outcome went with a worker that was killed.",
        ["port"],
    ),
    "public",
    "private",
)

REQUESTS: Final = Children(
    Counter(
        "rollout_router_requests",
        "Requests that ended, by port and outcome: the class of the answer's status (2xx) as it"
        " was passed on, the code of a refusal of this worker, cut, or client_gone.",
        ["port", "outcome"],
    ),
    ("public", "2xx"),
    ("private", "2xx"),
)

IN_FLIGHT: Final = Gauge(
    "rollout_router_requests_in_flight",
    "Requests of clients that workers have in hand, a forwarded one once. Set four times a second.",
    multiprocess_mode="livesum",
)

HOPS: Final = Children(
    Counter(
        "rollout_router_hops",
        "Requests that were forwarded to another worker, by how that ended: delivered, moved,"
        " not_dispatched, not_placed, cut, given_up (the client left, or this worker), or the code"
        " of the refusal.",
        ["outcome"],
    ),
    "delivered",
    "moved",
)

HOP_SECONDS: Final = Histogram(
    "rollout_router_hop_seconds",
    "From sending a request to its owner until the head of its answer, the owner's work included.",
    buckets=_TIMES_S,
)

STAGE_SECONDS: Final = Children(
    Histogram(
        "rollout_router_stage_seconds",
        "What a stage of a request took at one worker: claim, admission, read, rebuild, app (until"
        " the head of the answer) and capture (writing the record).",
        ["stage"],
        buckets=_TIMES_S,
    ),
    *("claim", "admission", "read", "rebuild", "app", "capture"),
)

CLAIMS_TAKEN: Final = Children(
    Counter(
        "rollout_router_claims_taken",
        "Claims that a worker took: new, again (its own, which memory did not hold), or takeover.",
        ["how"],
    ),
    "new",
    "again",
    "takeover",
)

TAKEOVERS: Final = Children(
    Counter(
        "rollout_router_takeovers",
        "Claims taken over from dead owners, by what proved the death.",
        ["reason"],
    ),
    "life_lock_free",
    "other_boot",
)

RELEASES: Final = Children(
    Counter(
        "rollout_router_releases",
        "Claims given back: evicted (history forgot the rollout), leaving (the worker does),"
        " session_ended; or marked lost with a worker that leaves (session_lost).",
        ["reason"],
    ),
    "evicted",
    "leaving",
    "session_ended",
    "session_lost",
)

RESYNCS: Final = Children(
    Counter(
        "rollout_router_resyncs",
        "Deltas whose base was not held: new_owner (this worker has kept none of the rollout since"
        " it took the claim), or not_held (it has kept others).",
        ["reason"],
    ),
    "new_owner",
    "not_held",
)

FENCED: Final = Children(
    Counter(
        "rollout_router_fenced",
        "Calls that found their claim gone, at the owner's re-check (dispatch) or at a sink.",
        ["where"],
    ),
    "dispatch",
    "sink",
)

REQUEST_BYTES: Final = Children(
    Counter(
        "rollout_router_request_body_bytes",
        "Bytes of request bodies as they came to the owner, in full or as a delta.",
        ["form"],
    ),
    "full",
    "delta",
)

SAVED_BYTES: Final = Counter(
    "rollout_router_delta_saved_bytes",
    "By so much rebuilt bodies are longer than the deltas that they came as.",
)

BASES: Final = Gauge(
    "rollout_router_bases_held",
    "Bases that workers hold. Set four times a second, as the next four.",
    multiprocess_mode="livesum",
)

BASE_BYTES: Final = Gauge(
    "rollout_router_base_bytes_held",
    "Bytes that the bases hold.",
    multiprocess_mode="livesum",
)

CLAIMS: Final = Gauge(
    "rollout_router_claims_held",
    "Claims that living workers hold, of sessions too.",
    multiprocess_mode="livesum",
)

SESSIONS: Final = Gauge(
    "rollout_router_sessions_held",
    "Sessions among them.",
    multiprocess_mode="livesum",
)

ADMISSION_CLOSED: Final = Gauge(
    "rollout_router_admission_closed",
    "1 while a worker lets nothing in; 0 while all do.",
    multiprocess_mode="livemax",  # a process that is no worker says 0
)

LOOP_LAG_SECONDS: Final = Histogram(
    "rollout_router_event_loop_lag_seconds",
    "How much later than asked an event loop woke, looked at four times a second.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
)

OWNER_UNREACHABLE: Final = Counter(
    "rollout_router_owner_unreachable",
    "Requests refused because the owner is alive or unknown and could not be reached.",
)

PLACEMENTS: Final = Children(
    Counter(
        "rollout_router_placements",
        "New rollouts placed here or at a peer; nobody: the peer could not be reached.",
        ["to"],
    ),
    "here",
    "peer",
    "nobody",
)

SOCKET_REBINDS: Final = Counter(
    "rollout_router_socket_rebinds",
    "Private sockets that were bound anew because their file was gone.",
)

SWEEPS: Final = Children(
    Counter(
        "rollout_router_sweeps",
        "Passes over the store for what dead workers left: whole, or stopped early (partial).",
        ["outcome"],
    ),
    "whole",
    "partial",
)

SWEEP_SECONDS: Final = Histogram(
    "rollout_router_sweep_seconds",
    "What a pass took, its pauses included.",
    buckets=(0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
)

SWEPT: Final = Children(
    Counter(
        "rollout_router_swept",
        "What sweeps cleared of dead workers.",
        ["what"],
    ),
)

LOG_LINES_DROPPED: Final = Counter(
    "rollout_router_log_lines_dropped",
    "Log lines that were lost because nobody read the log fast enough.",
)
