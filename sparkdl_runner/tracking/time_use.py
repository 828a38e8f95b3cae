"""The parts of a rank's time: data_wait, compute, communication, checkpoint.

A thread samples the main thread's stack twenty times a second. That costs a step nothing that
could be measured, and needs no change to the function.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from sparkdl_runner.base import processes
from sparkdl_runner.base.thread_frames import current_frames

SAMPLE_SECONDS = 0.05
DATA, COMPUTE, COMMUNICATION, CHECKPOINT = "data_wait", "compute", "communication", "checkpoint"
PARTS = (DATA, COMPUTE, COMMUNICATION, CHECKPOINT)
LABELS = {part: part.replace("_", " ") for part in PARTS}
"""The names of the parts for people."""

# Parts of files' paths, and what a thread does there. The innermost frame that matches decides.
_PLACES = (
    ("/sparkdl_runner/data/", DATA),
    ("/torch/utils/data/", DATA),
    ("/petastorm/", DATA),
    ("/sparkdl_runner/checkpoint/", CHECKPOINT),
    ("/torch/distributed/checkpoint/", CHECKPOINT),
    ("/horovod/", COMMUNICATION),
    ("/torch/distributed/", COMMUNICATION),
)
# DistributedDataParallel averages gradients inside of backward(), without a Python frame of its
# own. A main thread that sleeps there waits for the other ranks.
_BACKWARD = "/torch/autograd/"
_DEPTH = 40


class TimeUse:
    """Counts the seconds of the main thread by what it does."""

    def __init__(self) -> None:
        self._main = threading.main_thread()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sparkdl-time-use", daemon=True)

    def start(self) -> None:
        """Starts sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling, after ``start``."""
        self._stopped.set()
        self._thread.join()

    def seconds(self) -> dict[str, float]:
        """Seconds by part, since ``start``."""
        return dict(self._seconds)

    def _sample(self) -> None:
        last = time.perf_counter()
        while not self._stopped.wait(SAMPLE_SECONDS):
            now = time.perf_counter()
            self._seconds[part_of(self._main)] += now - last
            last = now


def part_of(thread: threading.Thread) -> str:
    """The part of a step in which the thread is now."""
    frame = current_frames().get(thread.ident or 0)
    for _ in range(_DEPTH):
        if frame is None:
            break
        path = frame.f_code.co_filename
        for place, part in _PLACES:
            if place in path:
                return part
        if _BACKWARD in path:
            ranks = "torch.distributed" in sys.modules and "RANK" in os.environ
            return COMMUNICATION if ranks and _sleeps(thread) else COMPUTE
        frame = frame.f_back
    return COMPUTE


def _sleeps(thread: threading.Thread) -> bool:
    """Whether the thread sleeps; false where the system does not tell."""
    status = processes.stat(os.getpid(), thread.native_id)
    return status is not None and status.state == "S"
