"""Progress as the kernel counts it, on a core that the watched processes must share."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from sparkdl_runner.launch.agent.vital_signs import Observer
from sparkdl_runner.launch.wire.messages import Pulse

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

WORK = "while True: pass"
POLL = "import time\nwhile True: time.sleep(0.001)"


def test_work_is_told_from_waiting_also_where_others_take_the_processor():
    """The kernel gives the watched processes a tenth of the core that they share with another.

    It counts a wait when the wait ends: a look in the middle of one may take work for waiting.
    The next look, or the one after it, sees the work.
    """
    core = min(os.sched_getaffinity(0))
    start = f"import os\nos.sched_setaffinity(0, [{core}])\nprint(1, flush=True)\n"
    processes = []
    try:
        nice = f"import os\nos.nice(10)\n{start}"
        for text in (nice + WORK, nice + POLL, start + WORK):
            process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
            processes.append(process)
            process.stdout.read(1)  # it is up
        observers = [Observer(process.pid) for process in processes[:2]]
        for observer, process in zip(observers, processes, strict=False):
            observer.pulse(pulse_of(process))
        begun = time.monotonic()
        for _ in range(2):  # the first look tells nothing of a thread but where its counters stand
            worked, deadline = False, time.monotonic() + 300
            while not worked:
                assert time.monotonic() < deadline
                time.sleep(0.4)
                looked = time.monotonic() - begun
                working, polling = (observer.look().idle_seconds for observer in observers)
                worked = working < 0.4
                assert polling >= looked
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def pulse_of(process):
    return Pulse(
        place=7,
        threads=[process.pid],
        joining=False,
        communicating=False,
        on_gpu=False,
        lingering="",
    )
