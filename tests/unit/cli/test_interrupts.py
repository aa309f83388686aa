# SPDX-License-Identifier: Apache-2.0
"""Signals as exceptions, for as long as a command runs."""

import signal

import pytest

from rollout_router.cli.interrupts import unwound_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_and_is_afterwards_what_it_was(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # whatever this process was told to ignore
    try:
        with pytest.raises(SystemExit) as ended, unwound_by_signals():
            signal.raise_signal(number)
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_the_caller_has_it_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwound_by_signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
