# SPDX-License-Identifier: Apache-2.0
"""An agent: plays the calls of one rollout with the official OpenAI SDK, and keeps what it sent.

The SDK's own retries are off, so each attempt is one request, and what the SDK wrote is taken from
the request itself, by a hook of its HTTP client. Another hook sees the answer's raw bytes as they
pass to the SDK, of streams as well, and holds none of them back. After a lost or refused attempt
the agent makes the call again, as a new call. Anything else ends the rollout with
:class:`CallFailed`; so does a stream that ended cleanly without its last event (R4).
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import openai

from rollout_router.demo.attempt import Attempt, Holder, Outcome, outcome_of
from rollout_router.demo.conversation import Dialect, Rollout, parameters, turns

__all__ = ["Agent", "Board", "CallFailed"]

ATTEMPTS_MAX: Final = 8
CALL_TIMEOUT_S: Final = 60.0
_PAUSE_S_FIRST: Final = 0.1
_PAUSE_S_MAX: Final = 2.0  # eight attempts last nine seconds; a worker is replaced in about one


class CallFailed(Exception):  # noqa: N818 - named by what happened
    """A call that no new call can make good; the message says which and why."""


class Board(Protocol):
    """Where agents say what they are doing. Called from their threads."""

    @property
    def stopping(self) -> threading.Event:
        """Set: begin no further call."""

    def sent(self, rollout_id: str) -> None:
        """A call of it is in flight from now on: its request is written and being sent."""

    def settled(self, rollout_id: str) -> None:
        """It has no call in flight any more."""

    def called(self) -> None:
        """A call has its answer."""


class Agent:
    """Plays one rollout; one thread at a time.

    Args:
        rollout: what is played.
        dialect: how the model is asked; every other turn is streamed.
        url: where the SDK is pointed at, with the rollout's identity in its path.
        board: told of each call.
    """

    def __init__(self, rollout: Rollout, dialect: Dialect, url: str, board: Board) -> None:
        self._rollout = rollout
        self._dialect = dialect
        self._board = board
        self._turns = turns(rollout.items)
        self._sent = b""
        self._answer: _Answer | None = None
        self.attempts: list[Attempt] = []
        hooks: dict[str, list[Callable[..., Any]]] = {
            "request": [self._on_request],
            "response": [self._on_response],
        }
        self._client = openai.OpenAI(
            base_url=url,
            api_key="none",
            max_retries=0,
            timeout=CALL_TIMEOUT_S,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks, trust_env=False),
        )

    def play(self, numbers: range) -> None:
        """Make the calls of these turns, in order; stops between calls when the board does.

        Raises:
            CallFailed: the rollout cannot go on.
        """
        for turn in numbers:
            if self._board.stopping.is_set():
                return
            self._call(turn)
            self._board.called()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, turn: int) -> None:
        pause_s = _PAUSE_S_FIRST
        for _ in range(ATTEMPTS_MAX):
            outcome = self._attempt(turn)
            if outcome is Outcome.ANSWERED or self._board.stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        raise CallFailed(f"call {turn + 1} got no answer in {ATTEMPTS_MAX} attempts")

    def _attempt(self, turn: int) -> Outcome:
        stream = turn % 2 == 1
        asked = parameters(self._dialect, self._rollout.items[: self._turns[turn]], stream=stream)
        self._sent = b""
        self._answer = None
        outcome = Outcome.LOST  # of a failed call too: whether it left a record is unknown
        try:
            if not self._ask(asked):
                raise CallFailed(f"the answer to call {turn + 1} ended cleanly, and is not whole")
            outcome = Outcome.ANSWERED
        except openai.APIConnectionError:
            pass  # the connection broke: whether the call ran is unknown
        except openai.APIError as error:
            status = error.status_code if isinstance(error, openai.APIStatusError) else None
            told = outcome_of(status, error.code)
            if told is None:
                raise CallFailed(f"call {turn + 1}: {error}") from error
            outcome = told
        finally:
            self._board.settled(self._rollout.rollout_id)
            self.attempts.append(self._attempted(turn, outcome))
        return outcome

    def _attempted(self, turn: int, outcome: Outcome) -> Attempt:
        sent = Attempt(
            turn=turn,
            body_sha256=hashlib.sha256(self._sent).hexdigest(),
            body_bytes=len(self._sent),
            outcome=outcome,
        )
        return sent if self._answer is None else self._answer.of(sent)

    def _ask(self, asked: dict[str, Any]) -> bool:
        """Make the call, and say whether its answer is whole."""
        create: Any = (
            self._client.responses.create
            if self._dialect is Dialect.RESPONSES
            else self._client.chat.completions.create
        )
        answer = create(**asked)
        if self._dialect is Dialect.RESPONSES:
            if not asked["stream"]:
                return bool(answer.status == "completed")
            return [event.type for event in answer][-1:] == ["response.completed"]
        answers: Sequence[Any] = list(answer) if asked["stream"] else [answer]
        return any(choice.finish_reason for part in answers for choice in part.choices)

    def _on_request(self, request: Any) -> None:
        self._sent = request.read()
        self._board.sent(self._rollout.rollout_id)

    def _on_response(self, response: Any) -> None:
        self._answer = _Answer(response)


class _Answer:
    """What comes back of one attempt, as it passes.

    ``iter_raw`` is where the response of the HTTP client gives every byte of a body, as it came
    from the connection, to whoever reads it, whole or streamed. It is covered on this one response.
    A client that read in another way would show an answer of no bytes here, and fail the proof.
    """

    def __init__(self, response: Any) -> None:
        self._response = response
        self._iter_raw: Callable[..., Iterator[bytes]] = response.iter_raw
        self._digest = hashlib.sha256()
        self._bytes = 0
        response.iter_raw = self._seen

    def of(self, sent: Attempt) -> Attempt:
        """The attempt *sent*, with what has come of its answer."""
        headers = self._response.headers  # names compare without case
        worker_id = headers.get("Rollout-Worker")
        epoch = headers.get("Rollout-Claim-Epoch")
        return replace(
            sent,
            model_sha256=headers.get("Scripted-Request-Sha256"),
            holder=Holder(worker_id=worker_id, claim_epoch=int(epoch))
            if worker_id is not None and epoch is not None
            else None,
            status=self._response.status_code,
            answer_sha256=self._digest.hexdigest(),
            answer_bytes=self._bytes,
        )

    def _seen(self, *arguments: Any, **options: Any) -> Iterator[bytes]:
        for part in self._iter_raw(*arguments, **options):
            self._digest.update(part)
            self._bytes += len(part)
            yield part
