# SPDX-License-Identifier: Apache-2.0
"""The quick reading of the command line: what it takes, usage.py takes in the same way."""

import os
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.transport.sandbox.flags import ENVIRONMENT, FLAGS, quick, shim_arguments
from rollout_router.transport.sandbox.usage import asked

GATEWAY = ["--gateway", "http://h:80/p"]
WORDS = """0 1 80 65535 65536 2147483648 -1 +5 ٣ 1_0 x no on http://h https://a.b-c:8443/x/y
http://h? http:// http://h: http://h:0 http://h:99999 http://[::1]:1 h:80 http://u:p@h http://h/é
http://h:000080 r1 a.b_c -r é X-Run X:Run --port""".split()  # noqa: SIM905 - a list has a line a word
VALUES = st.sampled_from([*WORDS, "", "a b", "x" * 200, "x" * 201, "http://h/\n"])
ARGUMENTS = st.one_of(
    st.sampled_from([f"--{name}" for name in FLAGS] + ["--gate", "--", "file"]),
    VALUES,
    st.builds("--{}={}".format, st.sampled_from(list(FLAGS)), VALUES),
)
TWINS = st.dictionaries(
    st.sampled_from([ENVIRONMENT + name.upper().replace("-", "_") for name in FLAGS]), VALUES
)


@pytest.mark.parametrize(
    ("arguments", "environment", "found"),
    [
        (GATEWAY, {}, {"gateway": "http://h:80/p"}),
        (["--gateway=https://h"], {}, {"gateway": "https://h"}),
        ([], {ENVIRONMENT + "GATEWAY": "http://h"}, {"gateway": "http://h"}),
        (GATEWAY, {ENVIRONMENT + "GATEWAY": "nonsense"}, {"gateway": "http://h:80/p"}),
        ([*GATEWAY, "--port", "1"], {}, {"gateway": "http://h:80/p", "port": 1}),
        ([*GATEWAY, "--port", "1", "--port", "1"], {}, None),
        (
            [*GATEWAY, "--no-deflate"],
            {ENVIRONMENT + "NO_DELTA": "No"},
            {"gateway": "http://h:80/p", "no_deflate": True, "no_delta": False},
        ),
        (["--help"], {}, None),
        ([], {}, None),
        ([*GATEWAY, "--port"], {}, None),
        ([*GATEWAY, "--no-delta=1"], {}, None),
        ([*GATEWAY, "more"], {}, None),
        (["--gateway", "http://h:000080"], {}, None),
    ],
)
def test_what_is_plain_is_read_at_once_and_all_else_is_left(
    arguments: list[str], environment: dict[str, str], found: dict[str, object] | None
) -> None:
    assert quick(arguments, environment) == found


@settings(max_examples=100, deadline=None)
@given(arguments=st.lists(ARGUMENTS, max_size=4), environment=TWINS)
def test_what_is_read_at_once_is_read_in_the_same_way_by_the_full_command_line(
    arguments: list[str], environment: dict[str, str]
) -> None:
    if "--gateway" not in arguments:
        arguments = [*GATEWAY, *arguments]
    found = quick(arguments, environment)
    if found is None:
        return

    with mock.patch.dict(os.environ, environment, clear=True):
        assert asked(arguments).items() >= found.items()


def test_every_flag_of_the_server_reaches_it() -> None:
    given_ = {"gateway": "http://h", "no_delta": True, "no_deflate": False, "bases_bytes": 0}

    assert shim_arguments({**given_, "ready_file": "f", "watch_stdin": True}) == {
        "gateway": "http://h",
        "deltas": False,
        "deflate": True,
        "bases_bytes_max": 0,
    }
