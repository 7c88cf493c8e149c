import os
import signal

import pytest

from nacre.utils import signals
from nacre.utils.signals import STOP_SIGNALS, StopSignal, block_signals, ignore_stop_signals

pytestmark = pytest.mark.usefixtures("heard_signals")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_is_a_wish_that_is_heard_later_and_handlers_come_back(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_what_torchrun_passes_on_does_not_interrupt_the_save(second, monkeypatch):
    monkeypatch.setattr(signals, "_AGAIN_SECONDS", 3600.0)  # a busy machine may stop in between
    with StopSignal() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), second)
        assert stop()


def test_a_second_ctrl_c_later_stops_at_once_and_a_second_sigterm_never(monkeypatch):
    monkeypatch.setattr(signals, "_AGAIN_SECONDS", -1.0)
    with StopSignal() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_nobody_waits_while_nobody_listens():
    with StopSignal(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            stop()
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_helper_that_is_starting_hears_no_stop():
    with block_signals():
        process = os.fork()
        if not process:
            os.kill(os.getpid(), signal.SIGTERM)  # kept for later, which never comes
            ignore_stop_signals()
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 7
