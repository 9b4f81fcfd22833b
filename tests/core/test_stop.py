from __future__ import annotations

import os
import signal
import threading

import pytest

from reflectrl.core import WorkFailed
from reflectrl.core.stop import gentle_stops

BOTH = (signal.SIGINT, signal.SIGTERM)


class Ended(Exception):
    """Error raised by the previous handler."""


@pytest.fixture(autouse=True)
def _handlers():
    """Install the test's own signal handlers, and restore those of pytest afterwards."""
    before = [(number, signal.getsignal(number)) for number in BOTH]
    for number in BOTH:
        signal.signal(number, end)
    yield
    for number, handler in before:
        signal.signal(number, handler)


def end(number, _):
    raise Ended(number)


def send(number):
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())  # Python handles signals here


@pytest.mark.parametrize(
    ("signals", "raises", "match"),
    [
        ([signal.SIGINT], Ended, "2"),  # at the end of the block
        ([signal.SIGTERM], Ended, "15"),
        ([signal.SIGINT, signal.SIGTERM], Ended, "15"),  # the second one immediately
        ([signal.SIGTERM, None], TypeError, "NoneType"),  # an error in the block takes precedence over the signal
    ],
)
def test_the_first_signal_asks_for_a_stop_and_a_second_one_acts(signals, raises, match):
    said, wanted = [], []

    def work():
        with gentle_stops(said.append) as stop:
            assert not stop.wanted
            for number in signals:
                send(number)
                wanted.append(stop.wanted)

    with pytest.raises(raises, match=match):
        work()
    assert wanted == [True]
    assert [signals[0].name in sentence for sentence in said] == [True]
    assert [signal.getsignal(number) for number in BOTH] == [end, end]


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with gentle_stops() as stop:
        send(signal.SIGINT)
        assert not stop.wanted
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, lambda *_: None)  # a handler that does not end the process
    with pytest.raises(WorkFailed, match="SIGTERM"), gentle_stops(lambda _: None):
        send(signal.SIGTERM)


def test_outside_of_the_main_thread_it_does_nothing():
    found = []

    def work():
        with gentle_stops() as stop:
            found.append((stop.wanted, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, end)]
