"""A worker's signs of life and of progress, on real processes and a clock that the test sets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sparkdl_runner.launch.agent import vital_signs
from sparkdl_runner.launch.agent.vital_signs import Observer
from sparkdl_runner.launch.wire.messages import Pulse


@pytest.fixture
def process():
    """A process that computes for a while when a line is written to it."""
    code = (
        "import sys\n"
        "for line in sys.stdin:\n"
        "    end = __import__('time').process_time() + float(line)\n"
        "    while __import__('time').process_time() < end: pass\n"
        "    print('done', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    compute(process, 0.01)  # it is up
    yield process
    process.kill()
    process.communicate()


def compute(process, seconds):
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def waited(process):
    """Seconds that it was ready to run and waited for a core, since its start."""
    return vital_signs._ran_and_waited(process.pid, process.pid)[1]


def pulse(process, place, *, joining=False, communicating=False):
    return Pulse(
        place=place,
        threads=[process.pid],
        joining=joining,
        communicating=communicating,
        on_gpu=False,
        lingering="",
    )


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


def test_waiting_at_one_place_is_life_without_progress(process):
    clock = Clock()
    observer = Observer(process.pid, clock)
    assert not observer.look().has_begun
    for _ in range(5):
        clock.seconds += 10
        observer.pulse(pulse(process, 7, joining=True))
        signs = observer.look()
    assert signs.has_begun
    assert (signs.silent_seconds, signs.idle_seconds, signs.joining_seconds) == (0, 40, 40)
    observer.pulse(pulse(process, 8))
    signs = observer.look()
    assert (signs.idle_seconds, signs.joining_seconds) == (0, 0)


def test_computing_is_progress_unless_it_is_the_backends_way_to_wait(process):
    clock = Clock()
    observer = Observer(process.pid, clock)

    def compute_for_a_while():
        """The clock goes on by what the kernel lets the process wait for a core as well."""
        before = waited(process)
        compute(process, 0.1)
        passed = 0.25 + waited(process) - before
        clock.seconds += passed
        return passed

    observer.pulse(pulse(process, 7))
    observer.look()
    compute_for_a_while()
    assert observer.look().idle_seconds == 0
    observer.pulse(pulse(process, 7, communicating=True))
    passed = compute_for_a_while()
    signs = observer.look()
    assert signs.idle_seconds == pytest.approx(passed)
    assert signs.silent_seconds == 0


def test_output_is_progress(process):
    clock = Clock()
    observer = Observer(process.pid, clock)
    observer.look()
    clock.seconds += 10
    assert observer.look().idle_seconds == 10
    observer.printed()
    assert observer.look().idle_seconds == 0


def test_a_stopped_process_gives_no_sign_of_life(process):
    clock = Clock()
    observer = Observer(process.pid, clock)
    observer.look()
    os.kill(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 120
    while observer.look().state != "T":
        assert time.monotonic() < deadline
    before = observer.look().silent_seconds
    clock.seconds += 30
    signs = observer.look()
    assert signs.silent_seconds == before + 30
    assert signs.state == "T"


def test_a_process_that_is_gone_has_no_state():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert Observer(process.pid).look().state == ""


def test_another_process_may_be_watched_from_then_on(process):
    template = subprocess.Popen(["sleep", "600"])
    try:
        clock = [0.0]
        observer = Observer(template.pid, now=lambda: clock[0])
        clock[0] = 5.0
        assert observer.look().silent_seconds == 5
        observer.watch(process.pid)
        assert observer.look().silent_seconds == 0
        template.kill()
        template.wait()
        assert observer.look().state
    finally:
        template.kill()
        template.wait()
