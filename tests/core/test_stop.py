from __future__ import annotations

import os
import signal
import subprocess
import sys
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


def interrupted(signals, told, work):
    """Notes after each signal whether a stop is wanted."""
    with gentle_stops(told.append) as stop:
        assert not stop.wanted
        for number in signals:
            send(number)
            work.append(stop.wanted)


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_a_wish_that_is_met_at_the_end_of_the_block(number):
    told, work = [], []
    with pytest.raises(Ended, match=str(int(number))):
        interrupted([number], told, work)
    assert work == [True]
    assert len(told) == 1
    assert number.name in told[0]


@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_acts_at_once(second):
    told, work = [], []
    with pytest.raises(Ended, match=str(int(second))):
        interrupted([signal.SIGINT, second], told, work)
    assert work == [True]
    assert len(told) == 1


def test_without_a_signal_nothing_happens_and_the_handlers_are_put_back():
    told = []
    with gentle_stops(told.append) as stop:
        assert signal.getsignal(signal.SIGINT) is not end
    assert not stop.wanted
    assert told == []
    assert [signal.getsignal(number) for number in BOTH] == [end, end]


def test_an_error_in_the_block_goes_before_the_signal():
    with pytest.raises(TypeError):
        interrupted([signal.SIGTERM, None], [], [])
    assert signal.getsignal(signal.SIGTERM) is end


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with gentle_stops() as stop:
        send(signal.SIGINT)
        assert not stop.wanted
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_what_was_cut_short_is_never_taken_for_finished():
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


PROGRAM = """
import sys, time
from reflectrl.core.stop import gentle_stops
with gentle_stops() as stop:
    print("ready", flush=True)
    while not stop.wanted:
        time.sleep(0.01)
    print("finished", flush=True)
print("never")
"""


def test_a_process_ends_as_it_would_have_without():
    number = signal.SIGTERM
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler)\n{PROGRAM}"], **pipes
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        said, told = process.communicate(timeout=300)
    assert process.returncode == -number
    assert said == "finished\n"
    assert told.startswith(f"{number.name}: ")
