"""A worker's process: started with its pipes, asked to stop, and killed with all it started."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sparkdl_runner.base import processes
from sparkdl_runner.base.redaction import secrets_of
from sparkdl_runner.launch.agent import stack_tools
from sparkdl_runner.launch.agent.memory_evidence import MemoryEvidence
from sparkdl_runner.launch.agent.template_process import ForkedChild, TemplateProcess
from sparkdl_runner.launch.agent.vital_signs import process_state
from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.wire.messages import Release, Stacks, Stop
from sparkdl_runner.launch.worker import lifeline, stacks
from sparkdl_runner.launch.worker.ends import WorkerEnds, command
from sparkdl_runner.launch.worker.unanswered import unanswered_addresses
from sparkdl_runner.rank import stop_request

# How long a process that was killed may take to be gone.
KILL_SECONDS = 10.0
_LOOK_SECONDS = 0.02


class WorkerProcess:
    """One worker's process, and this end of all that connects it. ``supervise`` gives it its work.

    The thread that creates it must live until the worker has ended: the kernel ends the worker
    with that thread.

    Args:
        backend: The backend's name; the worker begins to import it at once.
        environment: The whole environment to start with.
        shutdown_grace_seconds: See ``RunConfig``.
        template: Forks the worker; None for one that imports by itself.
    """

    def __init__(
        self,
        *,
        backend: str,
        environment: Mapping[str, str],
        shutdown_grace_seconds: float,
        template: TemplateProcess | None = None,
    ) -> None:
        self.grace_seconds = shutdown_grace_seconds
        self.secrets = secrets_of(environment)
        self.memory = MemoryEvidence()
        """Looks that began before the process did."""
        self.events: queue.SimpleQueue[object] = queue.SimpleQueue()
        """Requests of others: ``Stop`` or ``Release``. The worker's supervisor adds its own."""
        self.is_first = False  # Whether it is rank 0.
        self.collectives: dict[str, Any] = {}
        """What it told of them with its newest pulse."""
        self._asking = threading.Lock()
        self._requested: set[bytes] = set()
        self._family = uuid.uuid4().hex
        self._folder = os.path.join(tempfile.gettempdir(), f"sparkdl_runner-{self._family}")
        ours, theirs = socket.socketpair()
        lifeline_end, self._lifeline = os.pipe()
        self._output, output_end = os.pipe()
        self._stacks, stacks_end = os.pipe()
        requests_end, self._requests = os.pipe()
        ends = WorkerEnds(theirs.fileno(), lifeline_end, stacks_end, requests_end)
        own = {lifeline.FAMILY: self._family, lifeline.FOLDER: self._folder}
        self._process: subprocess.Popen[bytes] | ForkedChild
        try:
            if template is not None:
                self._process = template.fork({**environment, **own}, ends, output_end)
            else:
                self._process = subprocess.Popen(
                    command(backend, os.getpid(), **ends._asdict()),
                    env={**environment, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=output_end,
                    stderr=output_end,
                    pass_fds=ends,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            for end in (self._lifeline, self._output, self._stacks, self._requests):
                os.close(end)
            raise
        finally:
            theirs.close()
            for end in (lifeline_end, output_end, stacks_end, requests_end):
                os.close(end)
        self.line = WorkerPipe(ours)
        """The private line to the worker."""

    @property
    def pid(self) -> int:
        """The worker's process, and its group. Waits until there is one."""
        return self._process.pid

    @property
    def importing_pid(self) -> int:
        """The process that imports the backend: the worker, or its template until it begins."""
        if isinstance(self._process, ForkedChild) and not self.begins(0):
            return self._process.template.pid
        return self.pid

    def begins(self, seconds: float) -> bool:
        """Whether its template has forked it within so many seconds."""
        return not isinstance(self._process, ForkedChild) or self._process.begins(seconds)

    @property
    def exit_code(self) -> int | None:
        """The exit code as in ``subprocess``; None until the process is reaped."""
        return self._process.returncode

    def take_output(self) -> int:
        """The reading end of the worker's output; the caller closes it."""
        output, self._output = self._output, -1
        return output

    def stop(self) -> None:
        """Asks for the worker's end; safe from any thread, and after the end."""
        self.events.put(Stop())
        if isinstance(self._process, ForkedChild) and not self.begins(0):
            self.line.close()  # Who sends it its work may wait for ever.

    def give_up(self) -> None:
        """Does without the worker if it has not begun: its template may hang."""
        if isinstance(self._process, ForkedChild) and not self.begins(0):
            self._process.template.give_up(self._process)
            self._close_lifeline()  # Should it begin yet, it ends at once.

    def _close_lifeline(self) -> None:
        with self._asking:
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def request_stop(self, reason: str) -> None:
        """Asks the function to end by itself; safe from any thread, and after the end."""
        self._request(stop_request.STOP, reason)

    def preempt(self, reason: str) -> None:
        """Says that the host will be taken away; safe as ``request_stop`` is."""
        self._request(stop_request.PREEMPT, reason)

    def request_growth(self, reason: str) -> None:
        """Asks all ranks to end with their next checkpoint; safe as ``request_stop`` is."""
        self._request(stop_request.GROW, reason)

    def _request(self, kind: bytes, reason: str) -> None:
        with self._asking, suppress(OSError):
            if self._requests >= 0 and kind not in self._requested:
                self._requested.add(kind)
                os.write(self._requests, stop_request.packed(kind, reason))

    def release(self) -> None:
        """Says that all other ranks have ended; safe from any thread, and after the end."""
        self.events.put(Release())

    def stacks(self) -> Stacks:
        """What the worker does: its threads' stacks, or a sentence on why there are none."""
        if not self.begins(0):
            return Stacks("(no stacks: the backend is being imported)", [])
        unanswered = unanswered_addresses(self.pid)
        with self._asking:
            if self._stacks < 0 or self.has_ended():
                return Stacks("(no stacks: the process has ended)", [])
            text = stacks.ask(self.pid, self._stacks, process_state(self.pid))
        # Without the lock: a request to stop need not wait for these programs.
        marks = {lifeline.FAMILY: self._family}
        native = stack_tools.native_frames(self.pid, marks, self.has_ended)
        text = f"{native}\n\n{text}".lstrip("\n")
        nccl = stack_tools.nccl_report(marks, self.has_ended) if self.is_first else ""
        return Stacks(text, unanswered, self.collectives, nccl)

    def await_exit(self) -> None:
        """Waits until the worker's own process is dead; it is not reaped here."""
        if isinstance(self._process, ForkedChild):
            while not self.has_ended():  # The template may have been stopped, and tell nothing.
                with suppress(TimeoutError):
                    self._process.code.result(1.0)
        elif hasattr(os, "waitid"):  # Before Python 3.13, macOS has it not.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        while not self.has_ended():
            time.sleep(_LOOK_SECONDS)

    def has_ended(self) -> bool:
        """Whether the process is dead; it is not reaped here, so that its group keeps its id."""
        if self.exit_code is not None or not self.begins(0):
            return self.exit_code is not None
        stat = processes.stat(self.pid)
        return stat is None or stat.has_ended

    def signal_group(self, number: int) -> None:
        """Sends a signal to the worker and to what stayed in its group."""
        # The leader is not reaped before the group is dead, so the id cannot mean another group.
        # A template that was stopped may never fork it: it then finds its line closed, and ends.
        if self.exit_code is None and self.begins(KILL_SECONDS):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """Ends the worker and all that it started, whether that stayed in its group or not."""
        self.signal_group(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired, TimeoutError):
            if self.exit_code is None:
                self._process.wait(KILL_SECONDS)
        lifeline.kill_family(self._family)

    def end(self) -> None:
        """Kills the worker if it still runs, and removes what is left of it. Idempotent."""
        self.give_up()
        if self.exit_code is None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._close_lifeline()
        self.line.close()
        with self._asking:
            if self._stacks >= 0:
                os.close(self._stacks)
                os.close(self._requests)
                self._stacks = self._requests = -1
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
