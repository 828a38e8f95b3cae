"""What the kernel tells of processes: in /proc as Linux does, and through psutil elsewhere.

Without /proc, nothing is known of another process's single threads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HAS_PROC = os.path.exists("/proc/self/stat")

# psutil's words for the states of proc(5). Waiting and running are all one to other systems.
_STATES = {"stopped": "T", "zombie": "Z", "dead": "X", "tracing-stop": "t", "disk-sleep": "D"}
_ENDED = ("Z", "X")


@dataclass(frozen=True)
class ProcessStat:
    """A process or a thread."""

    state: str
    """A letter, as in proc(5)."""
    cpu_seconds: float
    started_ticks: int
    """When it started, in a unit of this system's. It does not move when the clock is corrected."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, though its parent has not asked how yet."""
        return self.state in _ENDED


def stat(pid: int, thread: int | None = None) -> ProcessStat | None:
    """Looks at a process, or at one of its threads; None if nothing is known of it.

    Raises:
        PermissionError: It is another user's, and /proc hides those (hidepid).
    """
    if not HAS_PROC:
        return _by_psutil(pid) if thread is None else None
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        content = Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = content.rpartition(b")")[2].split()  # The name before ")" may hold spaces.
    ticks = int(fields[11]) + int(fields[12])
    return ProcessStat(fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK"), int(fields[19]))


def ids() -> list[int]:
    """The ids of all processes that are to be seen."""
    if HAS_PROC:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    import psutil

    return list(psutil.pids())


def environment(pid: int) -> list[bytes]:
    """What a process was started with, as ``name=value``; nothing if it is another user's."""
    if HAS_PROC:
        try:
            content = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return []  # It has ended, or is another user's.
        return content.split(b"\0") if content else []
    import psutil

    try:
        variables = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return []
    return [os.fsencode(f"{name}={value}") for name, value in variables.items()]


def has_program(pid: int) -> bool:
    """Whether it is known to run a program, as the kernel's own processes do not."""
    try:
        return bool(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def _by_psutil(pid: int) -> ProcessStat | None:
    import psutil  # Where /proc is, a worker starts without it.

    try:
        process = psutil.Process(pid)
        state = _STATES.get(process.status(), "S")
        started_ticks = int(process.create_time() * 1e6)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return None
    try:
        used = process.cpu_times()
    except psutil.Error:  # It has just ended, or is another user's.
        return ProcessStat(state, 0.0, started_ticks)
    return ProcessStat(state, used.user + used.system, started_ticks)
