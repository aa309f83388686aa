# SPDX-License-Identifier: Apache-2.0
"""Which bytes of an answer wait until the application is done (F2)."""

import pytest

from rollout_router.asgi import Message
from rollout_router.routing.completion import Completion

Body = tuple[bytes, bool]  # and whether more follows


def leaving(
    bodies: list[Body], *, length: bytes | None, method: str = "GET", status: int = 200
) -> list[Body | None]:
    """What leaves for each message of the body; the head always leaves as it is."""
    completion = Completion(method)
    headers = [] if length is None else [(b"Content-Length", length)]
    start: Message = {"type": "http.response.start", "status": status, "headers": headers}
    assert completion.passing(start) == start
    passed = [
        completion.passing({"type": "http.response.body", "body": body, "more_body": more})
        for body, more in bodies
    ]
    return [None if out is None else (out["body"], out["more_body"]) for out in passed]


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([(b"abcde", False)], [(b"abcde", False)]),
        ([(b"abcde", True), (b"", False)], [None, (b"abcde", False)]),
        ([(b"abc", True), (b"de", True), (b"", False)], [(b"abc", True), None, (b"de", False)]),
        ([(b"abcde", True), (b"", True), (b"", False)], [None, None, (b"abcde", False)]),
        ([(b"abc", True), (b"", False)], [(b"abc", True), (b"", False)]),  # the server's to refuse
        ([(b"abcde", True), (b"f", True)], [None, (b"abcdef", True)]),  # likewise
    ],
)
def test_f2_what_makes_an_answer_whole_leaves_with_its_end(
    bodies: list[Body], expected: list[Body | None]
) -> None:
    assert leaving(bodies, length=b"5") == expected


@pytest.mark.parametrize(
    ("length", "method", "status"),
    [(None, "GET", 200), (b"many", "GET", 200), (b"0", "HEAD", 200), (b"0", "GET", 304)],
)
def test_an_answer_that_its_terminator_ends_is_passed_on_as_it_comes(
    length: bytes | None, method: str, status: int
) -> None:
    bodies: list[Body] = [(b"", True), (b"", True), (b"", False)]
    assert leaving(bodies, length=length, method=method, status=status) == bodies


def test_f2_an_empty_answer_ends_when_its_application_is_done() -> None:
    sent: list[Body] = [(b"", True), (b"", False)]
    assert leaving(sent, length=b"0") == [None, (b"", False)]
