"""An agent's template, and the workers that are forked from it: see ``worker.template``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.worker import lifeline
from sparkdl_runner.launch.worker.ends import MOST_SAID, WorkerEnds, command


def is_possible() -> bool:
    """Whether this system can have templates: Linux 5.3 tells a worker's end by a file."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(os.memfd_create("sparkdl-template"))
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
        self._is_killed = self._is_over = False
        self._lock = threading.RLock()
        self._unsent: list[tuple[dict[str, Any], list[int], ForkedChild | None]] = []
        """Until it is ready: while it imports it reads nothing, and the pipe may be full."""
        self._asked: deque[ForkedChild] = deque()
        self._begun: dict[int, ForkedChild] = {}
        self._environment = {**environment, lifeline.FAMILY: uuid.uuid4().hex}
        started: Future[subprocess.Popen[bytes]] = Future()
        hold = threading.Thread(target=self._hold, args=(backend, started), daemon=True)
        hold.name = "sparkdl-template"
        hold.start()
        try:
            self._process, self._thread = started.result(), hold
        except BaseException:  # An interrupt, say: nobody will know it.
            started.add_done_callback(_kill_unknown)
            raise

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
            if self._is_over or self._is_killed:
                raise OSError(f"the template, process {self.pid}, has ended")
            child = ForkedChild(self, os.dup(output))
            self._asked.append(child)
            self._say({"environment": dict(environment)}, [*ends, output], child)
            return child

    def _say(
        self, values: dict[str, Any], files: Sequence[int] = (), child: ForkedChild | None = None
    ) -> None:
        if not self.is_ready:
            self._unsent.append((values, [os.dup(file) for file in files], child))
            return
        try:
            self._line.send_values(values)
            if files:
                self._line.send_files(files)
        except BaseException:  # Half a message is none: the template cannot go on.
            self._kill()
            raise

    def _say_unsent(self) -> None:
        while self._unsent:
            values, files, child = self._unsent.pop(0)
            try:
                if child is None or child in self._asked:
                    self._say(values, files, child)
            finally:
                for file in files:
                    os.close(file)

    def _kill(self) -> None:
        self._is_killed, self.is_usable = True, False
        self._process.kill()

    def keep(self, seconds: float, *, for_restart: bool = False) -> None:
        """Has it end once it was without a worker for so long; and import more for a restart."""
        with self._lock, suppress(OSError):  # It has ended.
            if seconds or self._asked or self._begun:
                self._say({"seconds": float(seconds), "for_restart": for_restart})
            else:
                self._kill()

    def reap(self, pid: int) -> None:
        """Lets the kernel give a worker's process id to others."""
        with self._lock, suppress(OSError):  # It has ended.
            if self._begun.pop(pid, None) is not None:
                self._say({"reap": pid})

    def give_up(self, child: ForkedChild) -> None:
        """Does without a worker that has not begun, or of whose end the template does not tell.

        Ends the template if it has no others: its import may hang, and it may be stopped.
        """
        with self._lock:
            if child in self._asked and any(one is child for _, _, one in self._unsent):
                self._asked.remove(child)
                child.lost(-signal.SIGTERM)
            elif child in self._asked:
                child.returncode = -signal.SIGTERM
                child.code.add_done_callback(lambda _: self.reap(child.pid))
            begun = self._begun.values()
            if all(one.returncode is not None for one in self._asked) and all(
                one is child or one.code.done() for one in begun
            ):
                self._kill()

    def join(self) -> None:
        """Waits until it is gone, unless it has workers."""
        if not self._asked and not self._begun:
            self._thread.join()

    def _hold(self, backend: str, started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            process = self._start(backend)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        try:
            while True:
                self._hear(self._line.receive()[0])
        except (EOFError, OSError):
            pass
        finally:
            process.kill()
            self._lose_all(process.wait())

    def _start(self, backend: str) -> subprocess.Popen[bytes]:
        with ExitStack() as failed:
            ours, theirs = socket.socketpair()
            failed.enter_context(ours)
            with theirs:
                self._said = os.memfd_create("sparkdl-template")
                failed.callback(os.close, self._said)
                process = subprocess.Popen(
                    command(backend, os.getpid(), template=theirs.fileno()),
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._said,
                    stderr=self._said,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            failed.pop_all()
        self._line = WorkerPipe(ours)
        return process

    def _lose_all(self, code: int) -> None:
        with self._lock:
            self._is_over, self.is_usable = True, False
            size = os.fstat(self._said).st_size
            said = os.pread(self._said, MOST_SAID, max(0, size - MOST_SAID))
            if self._begun and not self._is_killed:
                text = said.decode(errors="replace")
                who = f"sparkdl_runner: process {self.pid}, from which ranks were forked,"
                print(f"{who} ended, exit code {code}, and they with it: {text}", file=sys.stderr)
            for child in self._asked:
                child.lost(code, said)
            for child in list(self._begun.values()):
                child.lost(-signal.SIGKILL)
            for file in (file for _, files, _ in self._unsent for file in files):
                os.close(file)
            self._unsent.clear()
            self._asked.clear()
            self._begun.clear()
            self._line.close()
            os.close(self._said)

    def _hear(self, told: dict[str, Any]) -> None:
        with self._lock:
            match told:
                case {"ready": True}:
                    self.is_ready = True
                    self._say_unsent()
                case {"failed": True}:
                    self._asked.popleft().lost(1)
                case {"pid": int(pid), "is_fresh": bool(is_fresh)}:
                    self.is_usable = is_fresh and not self._is_killed
                    child = self._begun[pid] = self._asked.popleft()
                    child.begin(pid)
                case {"ended": int(pid), "code": int(code)} if pid in self._begun:
                    self._begun[pid].code.set_result(code)


class ForkedChild:
    """A worker's process, from when its template is asked for it; like a ``subprocess.Popen``.

    Args:
        template: Its template.
        output: What it will print to. Closed here once it does.
    """

    def __init__(self, template: TemplateProcess, output: int) -> None:
        self.template = template
        self._output = output
        self.returncode: int | None = None
        """How it ended; None until it is reaped or given up."""
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
            self.template.give_up(self)
            raise
        self._reap(self.code)

    def _reap(self, code: Future[int]) -> None:
        self.returncode = code.result()
        self.template.reap(self.pid)

    def begin(self, pid: int) -> None:
        """It is there."""
        os.close(self._output)
        self.begun.set_result(pid)

    def lost(self, code: int, said: bytes = b"") -> None:
        """It has ended with its template, which has said so much, or was never there."""
        if not self.begun.done():
            with suppress(OSError):  # Nobody reads it any more.
                os.write(self._output, said)
            self.begin(self.template.pid)
        if not self.code.done():
            self.code.set_result(code)
        self.returncode = self.code.result()


def _kill_unknown(started: Future[subprocess.Popen[bytes]]) -> None:
    if started.exception() is None:
        started.result().kill()
