# SPDX-License-Identifier: Apache-2.0
"""What one check found, and what to do about it."""

import enum
from dataclasses import dataclass

__all__ = ["Checked", "Status", "fail", "ok", "refused", "skipped", "warn"]


class Status(enum.StrEnum):
    """How a check ended; stable."""

    OK = "ok"
    WARN = "warn"  # it will run, and somebody should know
    FAIL = "fail"  # a start would be refused, or a run would suffer
    SKIPPED = "skipped"  # the configuration does not need it


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found, and what to change; the advice is empty where there is nothing to do."""

    status: Status
    found: str
    advice: str = ""


def ok(found: str) -> Checked:
    """It is as it should be."""
    return Checked(status=Status.OK, found=found)


def warn(found: str, advice: str) -> Checked:
    """It will run."""
    return Checked(status=Status.WARN, found=found, advice=advice)


def fail(found: str, advice: str) -> Checked:
    """It will not."""
    return Checked(status=Status.FAIL, found=found, advice=advice)


def skipped(why: str) -> Checked:
    """There is nothing to check."""
    return Checked(status=Status.SKIPPED, found=why)


def refused(error: Exception) -> Checked:
    """As a start would refuse it; our messages end with a colon and what to do."""
    found, colon, advice = str(error).rpartition(": ")
    return fail(found, advice) if colon else fail(advice, "change that, or name another one")
