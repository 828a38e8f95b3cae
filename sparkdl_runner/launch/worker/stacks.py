"""A worker's Python stacks, also of one that cannot run Python any more.

The worker has Python's ``faulthandler`` write the stacks of all its threads into a pipe when it
gets a signal. That happens in the signal's handler, without the interpreter's lock, so it works
where native code keeps that lock; and where the process was stopped, it is woken for it.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import time

# A real-time signal: it has no meaning of its own, and training code does not use it. macOS has no
# such signals.
STACKS_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
ANSWER_SECONDS = 1.5
_QUIET_SECONDS = 0.15
MAX_STACKS_BYTES = 64 * 1024
# Threads that begin here only watch the training.
_WATCHING = (
    "/sparkdl_runner/launch/worker/pulse.py",
    "/sparkdl_runner/launch/worker/last_entries.py",
    "/sparkdl_runner/tracking/",
)
_CALL = "/sparkdl_runner/launch/wire/function.py"


def offer(fd: int) -> None:
    """Writes this process's stacks to ``fd`` whenever it is asked to. Called by the worker."""
    os.set_inheritable(fd, False)
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True, chain=False)


def ask(pid: int, fd: int, state: str) -> str:
    """Asks a worker for its stacks, and wakes it for that if it was stopped.

    Args:
        pid: The worker.
        fd: The reading end of the pipe that the worker offered.
        state: The worker's state, as in proc(5).

    Returns:
        Its stacks, the main thread's last; or a sentence on why there are none.
    """
    try:
        os.kill(pid, STACKS_SIGNAL)
        if state in ("T", "t"):
            os.kill(pid, signal.SIGCONT)
    except (ProcessLookupError, PermissionError) as error:
        return f"(no stacks: {error})"
    answer = b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    deadline = time.monotonic() + ANSWER_SECONDS
    while (left := deadline - time.monotonic()) > 0 and len(answer) < MAX_STACKS_BYTES:
        if not poller.poll(1000 * min(left, _QUIET_SECONDS if answer else left)):
            break
        chunk = os.read(fd, 64 * 1024)
        if not chunk:
            break
        answer += chunk
    if not answer:
        return "(no stacks: the process does not answer, not even its signal handler)"
    return _of_the_function(answer.decode(errors="replace"))


def _of_the_function(text: str) -> str:
    """Leaves out this package's own threads, and its frames below the user's function."""
    threads = [thread.splitlines() for thread in text.strip().split("\n\n")]
    shown = [thread for thread in threads if not _is_watching(thread)]
    return "\n\n".join("\n".join(_above_the_worker(thread)) for thread in shown)


def _is_watching(lines: list[str]) -> bool:
    """Whether the thread's first own frame, which is shown last, is one of this package's."""
    frames = [line for line in lines if line.lstrip().startswith("File ")]
    own = [frame for frame in frames if "/threading.py" not in frame]
    return bool(own) and any(place in own[-1] for place in _WATCHING)


def _above_the_worker(lines: list[str]) -> list[str]:
    for number, line in enumerate(lines):
        if _CALL in line:
            return lines[:number]
    return lines
