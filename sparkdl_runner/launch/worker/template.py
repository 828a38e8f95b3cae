"""A template: a process that has imported the backend, and that workers are forked from.

It has one thread and runs nothing of the user's. Its agent sends it the variables and descriptors
of a worker. It forks the worker, tells its process id, and later how it ended. It reaps it only
when the agent says so: until then the id stays the worker's, and its group's. What the import
prints is kept in its own output, a file, and is printed by each worker.
"""

from __future__ import annotations

import importlib
import math
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.worker import lifeline
from sparkdl_runner.launch.worker.ends import MOST_SAID, WorkerEnds, command

JEMALLOC_THREAD = "jemalloc_bg_thd"
# How long it waits before it imports more: ranks that begin need the cores.
REST_SECONDS = 2.0
# Meant for ranks, where they come to all processes of a job: ranks may answer by a checkpoint.
_FOR_RANKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Template:
    """What the template does."""

    agent: socket.socket
    """The line to its agent."""
    backend: Backend
    """What to import."""
    started_with: Mapping[str, str]
    """The environment before anything was imported."""
    load: Callable[[Iterable[str]], None]
    """Imports modules."""

    def __post_init__(self) -> None:
        self._line = WorkerPipe(self.agent)
        self._seconds = math.inf  # How long it stays without a worker.
        self._later: list[str] = []
        self._workers: dict[int, int] = {}  # Those that are not reaped, by their pidfds.
        self._waiting = select.poll()
        self._waiting.register(self.agent, select.POLLIN)

    def serve(self) -> WorkerEnds:
        """Forks workers until nobody wants any. Returns in each worker, with its ends."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # If it were ignored, waitid would fail.
        self._import(self.backend.imports)
        known = {number: signal.getsignal(number) for number in _FOR_RANKS}
        self._handlers = {number: how for number, how in known.items() if how is not None}
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
        rest = REST_SECONDS
        try:
            self._line.send_values({"ready": True})
            while True:
                seconds = rest if self._later else self._seconds
                is_needed = self._workers and not self._later
                patience = None if is_needed or seconds == math.inf else 1000 * seconds
                ready = self._waiting.poll(patience)
                rest = REST_SECONDS if ready else 0.0
                if not ready and not self._later:
                    break
                if not ready:
                    self._import([self._later.pop(0)])
                for file, _ in ready:
                    if file != self.agent.fileno():
                        self._tell_end(file)
                    elif (ends := self._obey(self._line.receive()[0])) is not None:
                        return ends
        except EOFError:
            pass
        os._exit(0)

    def _import(self, modules: Iterable[str]) -> None:
        self.load(modules)
        sys.stdout.flush()
        sys.stderr.flush()
        self._imported = _imported()
        self._can_fork = _can_fork(self.started_with[lifeline.FAMILY])
        before, now = self.started_with, os.environ
        # A new process would do the same changes to its environment.
        self._changed = {
            name: now.get(name)
            for name in before.keys() | now.keys()
            if before.get(name) != now.get(name)
        }

    def _obey(self, asked: dict[str, object]) -> WorkerEnds | None:
        match asked:
            case {"environment": dict(environment)}:
                return self._fork(environment)
            case {"reap": int(pid)}:
                os.waitpid(pid, 0)
                (file,) = (file for file, other in self._workers.items() if other == pid)
                del self._workers[file]
                os.close(file)
            case {"seconds": float(seconds), "for_restart": bool(for_restart)}:
                self._seconds = seconds
                more = self.backend.imported_by_trainings if for_restart else ()
                self._later = [module for module in more if module not in sys.modules]
        return None

    def _fork(self, environment: dict[str, str]) -> WorkerEnds | None:
        """Starts a worker. Returns its ends in the worker, and None in the template.

        One that cannot be started, or that nobody waits for any more, is told to have failed.
        """
        *files, output = self._line.receive_files(len(WorkerEnds._fields) + 1)
        ends = WorkerEnds(*files)
        is_fresh = self._imported == _imported() and all(
            self.started_with.get(name) == environment.get(name) for name in self._changed
        )
        template_pid, pid, own = os.getpid(), -1, [output, *ends]
        try:
            if _is_closed(ends.lifeline):
                raise BrokenPipeError("its agent has given it up")
            begun, begins = os.pipe()
            own += [begun, begins]
            pid = os.fork()
            if pid:
                worker = os.pidfd_open(pid)
        except OSError as error:
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            with suppress(OSError):  # Nobody reads it any more.
                os.write(output, f"sparkdl_runner: no worker could be forked: {error}\n".encode())
            for file in own:
                os.close(file)
            self._line.send_values({"failed": True})
            return None
        if pid == 0:
            os.setsid()
            threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            said = os.pread(1, MOST_SAID, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            self.agent.close()
            for file in (output, begun, begins, *self._workers):
                os.close(file)
            if not is_fresh or not self._can_fork:  # It imports by itself, as any new process.
                for end in ends:
                    os.set_inheritable(end, True)
                words = command(self.backend.name, template_pid, **ends._asdict())
                os.execve(words[0], words, environment)  # noqa: S606 - the program is ours
            lifeline.rename_family(self.started_with[lifeline.FAMILY], environment[lifeline.FAMILY])
            changed = {**environment, **self._changed}
            os.environ.clear()
            os.environ.update({name: text for name, text in changed.items() if text is not None})
            _renew_randomness()
            os.write(1, said)
            return ends
        for file in (begins, output, *ends):
            os.close(file)
        os.read(begun, 1)  # From then on it has a group of its own.
        os.close(begun)
        self._workers[worker] = pid
        self._waiting.register(worker, select.POLLIN)
        self._line.send_values({"pid": pid, "is_fresh": is_fresh})
        if not is_fresh:
            self._seconds = 0.0
        return None

    def _tell_end(self, worker: int) -> None:
        self._waiting.unregister(worker)
        pid = self._workers[worker]
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end is not None:
            code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            self._line.send_values({"ended": pid, "code": code})


def _is_closed(pipe: int) -> bool:
    """Whether the other end of a pipe is closed."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _can_fork(family: str) -> bool:
    """Whether what is forked from this process can be a worker; one that ends at once shows it.

    Not where a thread runs, which would be missing in it, perhaps with a lock. BLAS ends its own
    when its process forks, and jemalloc (in Arrow, which TensorFlow imports) starts its own anew.
    Nor where CUDA was used, which then cannot be used in it.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            lifeline.rename_family(family, family)
            cuda = sys.modules.get("torch.cuda")
            code = int(cuda is not None and cuda._is_in_bad_fork())
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        return False
    threads = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    return len(threads) - threads.count(JEMALLOC_THREAD) == 1


def _renew_randomness() -> None:
    """Seeds what a new process would have seeded. Python's ``random`` does so by itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


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
