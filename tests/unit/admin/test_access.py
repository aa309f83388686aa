# SPDX-License-Identifier: Apache-2.0
"""Who may read and who may change."""

from pathlib import Path

import pytest

from rollout_router.admin.access import ADMIN_ANSWERS, Access, AdminRefusal

ACCESS = Access(host="127.0.0.1", token="t0ken")  # noqa: S106 - of a test
NAMED = Access(host="Gym.example", token="t0ken")  # noqa: S106 - of a test
EVERYWHERE = Access(host="0.0.0.0", token="t0ken")  # noqa: S104, S106 - as above; nothing listens


def code(access: Access, method: str, **headers: str) -> str | None:
    try:
        access.check(method, headers)
    except AdminRefusal as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize(
    ("access", "host", "known"),
    [
        (ACCESS, "127.0.0.1:9000", True),
        (ACCESS, "localhost", True),
        (ACCESS, "LOCALHOST:1", True),
        (ACCESS, "[::1]:9000", True),
        (ACCESS, "evil.example:9000", False),
        (ACCESS, "127.0.0.1.evil.example", False),
        (ACCESS, "localhost.evil.example", False),
        (ACCESS, "10.0.0.1:9000", False),
        (ACCESS, "", False),
        (ACCESS, "127.0.0.1, evil.example", False),
        (ACCESS, "evil.example@127.0.0.1", True),
        (ACCESS, "[::1", False),
        (NAMED, "gym.example:80", True),
        (NAMED, "other.example", False),
        (EVERYWHERE, "10.0.0.1:9000", True),
        (EVERYWHERE, "[fe80::1]:9000", True),
        (EVERYWHERE, "evil.example", False),
    ],
)
def test_a_name_that_is_not_ours_is_refused_whoever_it_leads_to(
    access: Access, host: str, *, known: bool
) -> None:
    assert code(access, "GET", host=host) == (None if known else "host_refused")


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, "admin_token_invalid"),
        ({"authorization": "Bearer wrong"}, "admin_token_invalid"),
        ({"authorization": "Bearer "}, "admin_token_invalid"),
        ({"authorization": "Basic t0ken"}, "admin_token_invalid"),
        ({"authorization": "t0ken"}, "admin_token_invalid"),
        ({"authorization": "Bearer t0k\xe9n"}, "admin_token_invalid"),
        ({"authorization": "Bearer t0ken"}, None),
        ({"authorization": "bearer t0ken"}, None),
        ({"authorization": "Bearer t0ken", "origin": "http://localhost:9"}, None),
        ({"authorization": "Bearer t0ken", "origin": "http://localhost:8"}, "origin_refused"),
        ({"authorization": "Bearer t0ken", "origin": "http://evil.example"}, "origin_refused"),
        ({"authorization": "Bearer t0ken", "origin": "null"}, "origin_refused"),
        ({"authorization": "Bearer t0ken", "origin": "http://["}, "origin_refused"),
    ],
    ids=str,
)
def test_what_changes_anything_needs_the_token_and_our_own_page(
    headers: dict[str, str], refused: str | None
) -> None:
    assert code(ACCESS, "POST", host="localhost:9", **headers) == refused
    assert code(ACCESS, "DELETE", host="localhost:9", **headers) == refused
    assert code(ACCESS, "GET", host="localhost:9", **headers) is None


def test_a_token_is_not_shown_by_accident() -> None:
    assert "t0ken" not in repr(ACCESS)


def test_every_code_of_the_address_is_documented_in_its_section() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()
    section = page.split("## The admin address")[1].split("\n## ")[0]
    for name, answer in ADMIN_ANSWERS.items():
        assert f"| {answer.status} | `{name}` |" in section
