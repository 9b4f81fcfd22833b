from __future__ import annotations

import os
import signal
import threading

import pytest

from reflectrl.core import WorkFailed
from reflectrl.core.stop import gentle_stops

BOTH = (signal.SIGINT, signal.SIGTERM)


class Ended(Exception):
    """What the handler raises that was there before."""


@pytest.fixture(autouse=True)
def _handlers():
    """Handlers of the test's own; those of pytest come back."""
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
    signal.pthread_sigmask(signal.SIG_BLOCK, ())  # Python looks for signals here


@pytest.mark.parametrize(
    ("signals", "acts", "stops"),
    [
        ([signal.SIGINT], signal.SIGINT, [True]),  # at the end of the block
        ([signal.SIGTERM], signal.SIGTERM, [True]),
        ([signal.SIGINT, signal.SIGTERM], signal.SIGTERM, [True]),  # the second one at once
        ([signal.SIGINT, signal.SIGINT], signal.SIGINT, [True]),
        ([signal.SIGTERM, None], None, [True]),  # an error in the block goes before the signal
        ([], None, []),
    ],
)
def test_the_first_signal_asks_for_a_stop_and_a_second_one_acts(signals, acts, stops):
    said, wanted = [], []

    def work():
        with gentle_stops(said.append) as stop:
            assert not stop.wanted
            for number in signals:
                send(number)
                wanted.append(stop.wanted)

    if None in signals:
        with pytest.raises(TypeError):
            work()
    elif acts:
        with pytest.raises(Ended, match=str(int(acts))):
            work()
    else:
        work()
    assert wanted == stops
    assert [signals[0].name in sentence for sentence in said] == [True] * len(stops)
    assert [signal.getsignal(number) for number in BOTH] == [end, end]


def test_an_ignored_signal_stays_ignored_and_one_without_an_end_is_no_success():
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
