"""When a signal strikes: at once, once the work in hand is done, or not at all."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pagedlab.interrupts import Interrupted, Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    installed = Interrupts()
    installed.install()
    yield installed
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_outside_the_first_signal_strikes(interrupts):
    with pytest.raises(Interrupted, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)


def test_deferred_the_first_is_remembered_and_the_second_strikes(interrupts):
    with interrupts.deferred():
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested
        with pytest.raises(Interrupted, match="SIGINT") as struck:
            signal.raise_signal(signal.SIGINT)
        assert struck.value.exit_code == 130


def test_what_was_deferred_strikes_where_it_may(interrupts):
    with interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted), interrupts.striking():
            pytest.fail("entered")


def test_while_a_folder_is_written_no_signal_strikes_the_first_or_a_later_one(interrupts):
    with interrupts.deferred():
        interrupts.finish()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(signum)
        assert interrupts.requested
    with pytest.raises(Interrupted):  # and only while: the next one strikes
        signal.raise_signal(signal.SIGINT)
