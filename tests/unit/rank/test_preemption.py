"""SIGTERM as a request, for as long as someone listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sparkdl_runner.rank import preemption


@pytest.fixture(autouse=True)
def _handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_flag_is_set_and_the_earlier_handler_called():
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        assert preemption.listen()
        assert preemption.listen()
        assert not preemption.requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.requested()
        assert calls == [signal.SIGTERM]
        preemption.stop_listening()
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(calls) == 2
        preemption.stop_listening()
        preemption.stop_listening()
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(calls) == 3
        assert preemption.listen()
        assert not preemption.requested(), "an old request is none to a new listener"
        preemption.stop_listening()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_handler_over_this_one_is_left_in_place():
    before = signal.getsignal(signal.SIGTERM)
    assert preemption.listen()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    preemption.stop_listening()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("ours", "status"), [(True, -signal.SIGTERM), (False, 0)])
def test_the_agents_own_signal_ends_the_rank(ours, status):
    program = (
        "import os, signal, time\n"
        "from sparkdl_runner.rank import preemption\n"
        f"preemption.is_sent_by_agent = lambda: {ours}\n"
        "preemption.listen()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert preemption.requested()\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == status


def test_a_forked_process_is_ended_by_it():
    assert preemption.listen()
    ready, is_ready = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            os.write(is_ready, b"1")  # Python has forgotten the signals that came before.
            while True:  # A pause() that begins just after the signal would last for ever.
                time.sleep(0.01)
        assert os.read(ready, 1) == b"1"
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    finally:
        os.close(ready)
        os.close(is_ready)
        preemption.stop_listening()
