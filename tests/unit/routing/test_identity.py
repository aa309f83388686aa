# SPDX-License-Identifier: Apache-2.0
"""Which rollout a request names: one table (R7)."""

import pytest

from rollout_router.routing.identity import InvalidIdentity, Rollout, identify, path_of

HEADER = b"x-session-id"
LONGEST = "a" * 200


@pytest.mark.parametrize(
    ("path", "named", "expected"),
    [
        (b"/ng-rollout/a/v1/responses", [], Rollout("a")),
        (b"/sessions/a/v1/responses", [], Rollout("a")),
        (b"/sessions/a", [], Rollout("a")),
        (b"/sessions/A9._-z/", [], Rollout("A9._-z")),
        (b"/sessions/" + LONGEST.encode() + b"/x", [], Rollout(LONGEST)),
        (b"/sessions/" + LONGEST.encode() + b"a/x", [], InvalidIdentity(LONGEST + "a")),
        (b"/sessions/%61/x", [], InvalidIdentity("%61")),
        (b"/sessions/.a/x", [], InvalidIdentity(".a")),
        (b"/sessions/a%2Fb/x", [], InvalidIdentity("a%2Fb")),
        (b"/sessions//x", [], InvalidIdentity("")),
        (b"/sessions/\xe9/x", [], InvalidIdentity("\xe9")),
        (b"/sessions", [], None),
        (b"/sessionsa/b", [], None),
        (b"/v1/sessions/a/x", [], None),
        (b"/v1/responses", [], None),
        (b"/v1/responses", [b"h"], Rollout("h")),
        (b"/v1/responses", [b"h", b"h"], Rollout("h")),
        (b"/v1/responses", [b"h", b"i"], InvalidIdentity("h, i")),
        (b"/v1/responses", [b""], InvalidIdentity("")),
        (b"/v1/responses", [b"a b"], InvalidIdentity("a b")),
        (b"/sessions/a/x", [b"h"], Rollout("a")),
        (b"/sessions/%61/x", [b"h"], InvalidIdentity("%61")),
        (b"/%73essions/a/x", [], InvalidIdentity("/%73essions/a/x")),
        (b"/%73essions/a/x", [b"h"], InvalidIdentity("/%73essions/a/x")),
        (b"/ng%2Drollout/a/x", [], InvalidIdentity("/ng%2Drollout/a/x")),
        (b"/sessions%2Fa", [], InvalidIdentity("/sessions%2Fa")),
        (b"/files/%2Fsessions%2Fa", [], None),
        (b"/%2573essions/a/x", [], None),
        (b"/ng-control/a/x", [], None),
        (b"/ng-control/a/x", [b"h"], None),
        (b"/ng-control", [b"h"], Rollout("h")),
    ],
)
def test_r7_identity_is_read_from_the_raw_path_then_from_the_header(
    path: bytes, named: list[bytes], expected: Rollout | InvalidIdentity | None
) -> None:
    headers = [(b"content-type", b"text/plain"), *((b"X-Session-Id", value) for value in named)]

    assert identify(path, headers, header=HEADER) == expected


def test_r7_an_id_with_a_newline_is_invalid() -> None:
    assert identify(b"/", [(HEADER, b"a\n")], header=HEADER) == InvalidIdentity("a\n")


def test_a_server_without_raw_paths_is_understood_too() -> None:
    assert path_of({"path": "/sessions/r1/v1", "raw_path": b"/x"}) == b"/x"
    assert path_of({"path": "/sessions/r1/v1"}) == b"/sessions/r1/v1"
    assert path_of({"path": "/sessions/é/v1", "raw_path": None}) == b"/sessions/%C3%A9/v1"
