"""Makes a worker, and all that it starts, die with its agent, however the agent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress

from sparkdl_runner.base import processes

_PR_SET_PDEATHSIG = 1
_LOOKS, _START_SECONDS = 5, 0.01

FAMILY = "SPARKDL_RUNNER_FAMILY"
"""A variable that a worker and all that it starts have, with a value of that worker alone."""

FOLDER = "SPARKDL_RUNNER_FOLDER"
"""The path of a folder that the worker may make for itself. It is removed when the worker is."""


def die_with_parent(parent_pid: int) -> None:
    """Has Linux's kernel kill this process when the thread that started it ends.

    Args:
        parent_pid: The process that must be our parent; if it is not, it has died already.
    """
    with suppress(AttributeError):  # Elsewhere a guard alone sees the agent's end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def die_with_agent(lifeline_fd: int, parent_pid: int) -> int:
    """Ties this process's group to the agent.

    The kernel kills this process with its parent: the agent, or a template that the agent has.
    That leaves what the function has started (data loading processes, say), so a guard, forked
    before the function's memory is there, waits for the end of the lifeline, a pipe whose other
    end only the agent holds, and then kills the family. The guard needs no interpreter lock that
    user code could keep.

    Args:
        lifeline_fd: The reading end of the lifeline.
        parent_pid: See ``die_with_parent``.

    Returns:
        The guard's process id.
    """
    die_with_parent(parent_pid)
    guard_pid = os.fork()
    if guard_pid == 0:
        _guard(lifeline_fd)
    os.close(lifeline_fd)
    return guard_pid


def rename_family(old: str, new: str) -> None:
    """Gives this process, which was forked, a family of its own in the kernel's eyes.

    Args:
        old: The value of ``FAMILY`` in the first environment, which the kernel shows.
        new: The value to be shown instead, of the same length.

    Raises:
        OSError: The kernel does not tell where the first environment is.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end, in proc(5)
    place = ctypes.string_at(start, end - start).find(f"{FAMILY}={old}".encode())
    if place < 0 or len(old) != len(new):
        raise OSError(f"the first environment of process {os.getpid()} has no {FAMILY}={old}")
    ctypes.memmove(start + place + len(FAMILY) + 1, new.encode(), len(new))


def kill_family(name: str) -> None:
    """Kills every other process whose environment has this family's name.

    A process may leave its group and its session, but the kernel keeps its first environment.

    Args:
        name: The value of ``FAMILY``.
    """
    mark = f"{FAMILY}={name}".encode()
    for _ in range(_LOOKS):  # A process may have started another just before it was killed.
        seen = {pid: processes.environment(pid) for pid in processes.ids() if pid != os.getpid()}
        family = [pid for pid, environment in seen.items() if mark in environment]
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        # For a moment, a new process has a program and no environment.
        if any(processes.has_program(pid) for pid, environment in seen.items() if not environment):
            time.sleep(_START_SECONDS)
        elif not family:
            return


def release(guard_pid: int) -> None:
    """Ends the guard when the worker ends by itself, so that no zombie is left to anyone."""
    os.kill(guard_pid, signal.SIGKILL)
    os.waitpid(guard_pid, 0)


def _guard(lifeline_fd: int) -> None:
    """Waits for the agent's end, then kills the family and the group, itself with it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Output pipes and the control line must close when the worker does, not when the guard does.
    os.dup2(lifeline_fd, 0)
    os.closerange(1, 4096)
    while os.read(0, 1):
        pass
    kill_family(os.environ[FAMILY])
    import shutil  # Only now: a worker's start is part of every launch.

    shutil.rmtree(os.environ[FOLDER], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
