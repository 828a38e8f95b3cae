"""A spare worker's wait for its work: a process that has imported the backend, and nothing else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from typing import NoReturn

from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.worker import lifeline

# An idle worker's own; a message of its agent never changes them.
_OWN = (lifeline.FAMILY, lifeline.FOLDER)


def await_work(
    line: WorkerPipe, seconds: float, *, started_with: Mapping[str, str], guard_pid: int
) -> None:
    """Waits until the agent has work, and becomes what a worker started at that moment would be.

    Ends the process if the agent is gone or has no work in time, or if files that it has imported
    have changed since: then the agent starts another.

    Args:
        line: To the agent.
        seconds: How long to wait, unless the agent says otherwise meanwhile.
        started_with: The environment before anything was imported.
        guard_pid: See ``lifeline``.
    """
    imported = _imported()
    # A new process would do the same changes to the environment that it gets.
    names = started_with.keys() | os.environ.keys()
    changed = {
        name: os.environ.get(name)
        for name in names
        if started_with.get(name) != os.environ.get(name)
    }
    try:
        while True:
            if not line.wait(seconds):
                _end(guard_pid)
            asked = line.receive()[0]
            if "environment" in asked:
                break
            seconds = asked["seconds"]
        wanted = asked["environment"]
        wanted |= {name: started_with[name] for name in _OWN}
        fits = _imported() == imported and not any(
            started_with.get(name) != wanted.get(name) for name in changed
        )
        line.send_values({"fits": fits})
    except (EOFError, OSError):
        _end(guard_pid)
    if not fits:
        _end(guard_pid)
    os.environ.clear()
    os.environ.update(wanted)
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _end(guard_pid: int) -> NoReturn:
    lifeline.release(guard_pid)
    os._exit(0)


def _imported() -> tuple[object, ...]:
    """The files that an import of the same modules would find now."""
    importlib.invalidate_caches()
    modules = dict(sys.modules)
    files = {getattr(module, "__file__", None) for module in modules.values()}
    specs = {name: PathFinder.find_spec(name) for name in modules if "." not in name}
    return (
        {file: _state(file) for file in files if file},
        {name: spec.origin for name, spec in specs.items() if spec},
    )


def _state(file: str) -> object:
    try:
        status = os.stat(file)
    except OSError:
        return None  # A part of an archive, which is a part of the search path.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
