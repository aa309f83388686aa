# SPDX-License-Identifier: Apache-2.0
"""Every setting explains itself, in words that do not change with the machine."""

from rollout_router.serve.settings_table import settings_table


def test_each_setting_says_what_it_means_and_why() -> None:
    for row in settings_table():
        assert row.help.endswith("."), row.name
        assert len(row.description) > len(row.help) + 10, row.name
        assert row.default, row.name
        assert (row.default == "none") is row.optional, row.name
        assert bool(row.unit) is (row.type == "number") or row.type == "integer", row.name


def test_bounds_and_defaults_are_in_words() -> None:
    rows = {row.name: row for row in settings_table()}
    assert rows["port"].bound == "at least 0, at most 65,535"
    assert rows["sweep_seconds"].bound == "more than 0"
    assert rows["placement"].bound == "one of arrival, balanced"
    assert rows["host"].default == '"127.0.0.1"'
    assert rows["history_delta"].default == "true"
    assert (rows["owner_timeout_seconds"].key, rows["owner_timeout_seconds"].unit) == (
        "owner_timeout_seconds",
        "s",
    )
