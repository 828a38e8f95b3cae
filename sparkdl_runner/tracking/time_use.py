"""Where a rank's time goes: data_wait, compute, communication, checkpoint.

The main thread's place in the code is looked at twenty times a second. That costs a step nothing
that could be measured, needs no change to anybody's code, and adds up to all of the time.
"""

from __future__ import annotations

import os
import sys
import threading
import time

LOOK_SECONDS = 0.05
DATA, COMPUTE, COMMUNICATION, CHECKPOINT = "data_wait", "compute", "communication", "checkpoint"
PARTS = (DATA, COMPUTE, COMMUNICATION, CHECKPOINT)
LABELS = {part: part.replace("_", " ") for part in PARTS}
"""As people read them, wherever they are shown."""

# Parts of files' paths by what a thread does there; the innermost frame that is known decides.
_PLACES = (
    ("/sparkdl_runner/data/", DATA),
    ("/torch/utils/data/", DATA),
    ("/petastorm/", DATA),
    ("/sparkdl_runner/checkpoint/", CHECKPOINT),
    ("/torch/distributed/checkpoint/", CHECKPOINT),
    ("/horovod/", COMMUNICATION),
    ("/torch/distributed/", COMMUNICATION),
)
# DistributedDataParallel averages gradients inside of backward(), where Python sees no frame of
# it; but a main thread that sleeps there, and does not compute, waits for its peers.
_BACKWARD = "/torch/autograd/"
_DEPTH = 40


class TimeUse:
    """Counts the seconds of the main thread by what it does. Starts with ``start``."""

    def __init__(self) -> None:
        self._main = threading.main_thread()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="sparkdl-time-use", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the looking."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def seconds(self) -> dict[str, float]:
        """Seconds by part, since ``start``."""
        return dict(self._seconds)

    def _look(self) -> None:
        last = time.perf_counter()
        while not self._stopped.wait(LOOK_SECONDS):
            now = time.perf_counter()
            self._seconds[part_of(self._main)] += now - last
            last = now


def part_of(thread: threading.Thread) -> str:
    """What the thread is doing just now."""
    frame = sys._current_frames().get(thread.ident or 0)
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
    """Whether the kernel has put the thread to sleep, as ``proc(5)`` describes its state."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] == b"S"
    except (OSError, IndexError):
        return False
