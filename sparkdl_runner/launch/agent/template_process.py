"""An agent's template, and the workers that are forked from it: see ``worker.template``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.worker import lifeline
from sparkdl_runner.launch.worker.ends import WorkerEnds, command


def is_possible() -> bool:
    """Whether this system can have templates: Linux 5.3 tells a worker's end by a file."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        return True
    except (AttributeError, OSError):
        return False


class TemplateProcess:
    """The process, with a thread that lives as long: the kernel ends it with that thread.

    Args:
        backend: The backend's name; the template begins to import it at once.
        environment: The whole environment to start with.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, backend: str, environment: Mapping[str, str]) -> None:
        self.is_usable = True
        """Whether it lives, and its imports are what new ones would be."""
        self.is_ready = False
        """Whether it has imported the backend."""
        self._is_over = False
        self._lock = threading.RLock()
        self._asked: deque[ForkedChild] = deque()
        self._begun: dict[int, ForkedChild] = {}
        self._environment = {**environment, lifeline.FAMILY: uuid.uuid4().hex}
        started: Future[subprocess.Popen[bytes]] = Future()
        hold = threading.Thread(target=self._hold, args=(backend, started), daemon=True)
        hold.name = "sparkdl-template"
        hold.start()
        self._process, self._thread = started.result(), hold

    @property
    def pid(self) -> int:
        """The template's process."""
        return self._process.pid

    def fork(self, environment: Mapping[str, str], ends: WorkerEnds, output: int) -> ForkedChild:
        """Asks for a worker, which begins once the backend is imported.

        Args:
            environment: The whole environment.
            ends: The worker's ends, of which it gets copies.
            output: What it prints to.

        Raises:
            OSError: The template has ended.
        """
        with self._lock:
            if self._is_over:
                raise OSError(f"the template, process {self.pid}, has ended")
            self._line.send_values({"environment": dict(environment)})
            self._line.send_files([*ends, output])
            child = ForkedChild(self)
            self._asked.append(child)
            return child

    def keep(self, seconds: float, *, for_restart: bool = False) -> None:
        """Has it end once it was without a worker for so long; and import more for a restart."""
        with self._lock, suppress(OSError):  # It has ended.
            if seconds or self._asked or self._begun:
                self._line.send_values({"seconds": float(seconds), "for_restart": for_restart})
            else:
                self._process.kill()

    def reap(self, pid: int) -> None:
        """Lets the kernel give a worker's process id to others."""
        with self._lock, suppress(OSError):  # It has ended.
            if self._begun.pop(pid, None) is not None:
                self._line.send_values({"reap": pid})

    def give_up(self) -> None:
        """Ends it if it has no worker yet: its import may hang."""
        with self._lock:
            if not self._begun:
                self._process.kill()

    def join(self) -> None:
        """Waits until it is gone, unless it has workers."""
        if not self._asked and not self._begun:
            self._thread.join()

    def _hold(self, backend: str, started: Future[subprocess.Popen[bytes]]) -> None:
        ours, theirs = socket.socketpair()
        self._line = WorkerPipe(ours)
        with theirs:
            try:
                process = subprocess.Popen(
                    command(backend, os.getpid(), template=theirs.fileno()),
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException as error:
                self._line.close()
                started.set_exception(error)
                return
        started.set_result(process)
        with suppress(EOFError):
            while True:
                self._hear(self._line.receive()[0])
        process.kill()
        code = process.wait()
        with self._lock:
            self._is_over, self.is_usable = True, False
            for child in self._asked:
                child.lost(code)
            for child in list(self._begun.values()):
                child.lost(-signal.SIGKILL)
            self._asked.clear()
            self._begun.clear()
        self._line.close()

    def _hear(self, told: dict[str, Any]) -> None:
        with self._lock:
            if "ended" in told:
                if (ended := self._begun.get(told["ended"])) is not None:
                    ended.code.set_result(told["code"])
                return
            self.is_ready, self.is_usable = True, told["is_fresh"]
            child = self._begun[told["pid"]] = self._asked.popleft()
            child.begun.set_result(told["pid"])


class ForkedChild:
    """A worker's process, from when its template is asked for it; like a ``subprocess.Popen``."""

    def __init__(self, template: TemplateProcess) -> None:
        self.template = template
        self.returncode: int | None = None
        """How it ended; None until it is reaped."""
        self.begun: Future[int] = Future()
        self.code: Future[int] = Future()

    @property
    def pid(self) -> int:
        """Its process id. Waits for it. It is the template's if that has ended before."""
        return self.begun.result()

    def begins(self, seconds: float) -> bool:
        """Whether it begins within so many seconds."""
        with suppress(TimeoutError):
            return self.begun.result(seconds) != self.template.pid
        return False

    def wait(self, seconds: float) -> None:
        """Waits for its end, and reaps it, then or later.

        Raises:
            TimeoutError: It has not ended, as far as the template has told.
        """
        try:
            self.code.result(seconds)
        except TimeoutError:
            self.code.add_done_callback(self._reap)
            raise
        self._reap(self.code)

    def _reap(self, code: Future[int]) -> None:
        self.returncode = code.result()
        self.template.reap(self.pid)

    def lost(self, code: int) -> None:
        """The template has ended, and it with it."""
        if not self.begun.done():
            self.begun.set_result(self.template.pid)
        if not self.code.done():
            self.code.set_result(code)
        self.returncode = self.code.result()
