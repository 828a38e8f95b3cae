"""Starts one worker, watches it, relays what it says, and ends it with all that it started."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

from sparkdl_runner.control import Envelope, Line
from sparkdl_runner.outcome import DIED, FAILED, RETURNED, STOPPED, Outcome, describe_exit
from sparkdl_runner.world import World

TAIL_LINES = 40
MAX_LINE_CHARACTERS = 16 * 1024
# What may still write to the output pipe after the group is dead has left the group on purpose.
DRAIN_SECONDS = 2.0

# Spark's secrets in its Python processes' environment; user code has no business with them.
SPARK_SECRETS = (
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "_SPARK_AUTH_SECRET",
)


class Sink(ABC):
    """Where a worker's words go while it runs. Must never block for long."""

    @abstractmethod
    def output(self, world: World, lines: list[str]) -> None:
        """Takes lines that the rank printed."""

    @abstractmethod
    def message(self, world: World, text: str) -> None:
        """Takes what the rank sent with ``log_to_driver``."""

    @abstractmethod
    def failed(self, outcome: Outcome) -> None:
        """Takes the news that the rank has failed or died, as soon as it is known."""


class WorkerProcess:
    """One worker from its start to its end.

    The thread that creates it must live until ``wait`` has returned: the kernel ends the worker
    with that thread.

    Args:
        backend: The backend's name; the worker begins to import it at once.
        environment: The whole environment to start with.
        listener: A listening socket that the worker is to serve the rendezvous on, if any; this
            process's copy is closed.
        shutdown_grace_seconds: See ``RunConfig``.
    """

    _sink: Sink
    _world: World

    def __init__(
        self,
        *,
        backend: str,
        environment: Mapping[str, str],
        listener: socket.socket | None,
        shutdown_grace_seconds: float,
    ) -> None:
        self._grace = shutdown_grace_seconds
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._report: tuple[dict[str, Any], bytes] | None = None
        self._was_stopped = False
        self._is_relaying = False  # The relaying thread closes the output pipe that it reads.
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        output, output_end = os.pipe()
        inherited = [theirs.fileno(), lifeline]
        command = [sys.executable, "-P", "-m", "sparkdl_runner.worker", "--backend", backend]
        command += ["--control-fd", str(theirs.fileno()), "--lifeline-fd", str(lifeline)]
        command += ["--agent-pid", str(os.getpid())]
        if listener is not None:
            inherited.append(listener.fileno())
            command += ["--listener-fd", str(listener.fileno())]
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                pass_fds=inherited,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
            os.close(output_end)
            if listener is not None:
                listener.close()
        self._line = Line(ours)
        self._output = output

    def begin(self, envelope: Envelope, sink: Sink) -> None:
        """Gives the worker its place and its work, and says where its words go. Call it once."""
        self._world = envelope.world
        self._sink = sink
        try:
            envelope.send(self._line)
        except OSError:
            pass  # It died while it was starting; wait() will say how.

    def stop(self) -> None:
        """Asks for the worker's end; safe from any thread, and after the end."""
        self._events.put(("stop", None))

    def wait(self) -> Outcome:
        """Supervises the worker until it and all that it started are gone.

        Returns:
            How it ended. It is an error to call this before ``begin``.
        """
        threads = [
            threading.Thread(target=target, name=f"sparkdl-{name}-{self._world.rank}", daemon=True)
            for name, target in (
                ("output", self._relay_output),
                ("control", self._receive),
                ("exit", self._await_exit),
            )
        ]
        self._is_relaying = True
        for thread in threads:
            thread.start()
        try:
            self._supervise()
        finally:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        # What the worker said in its last moment may have been overtaken by its exit.
        threads[1].join(DRAIN_SECONDS)
        while not self._events.empty():
            self._note(*self._events.get())
        threads[0].join(DRAIN_SECONDS)
        self.end()
        outcome = self._outcome()
        if outcome.status == DIED:
            self._sink.failed(outcome)
        return outcome

    def end(self) -> None:
        """Ends the worker if it still runs, without waiting for its last words. Idempotent."""
        if self._process.poll() is None:
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._line.close()
        if not self._is_relaying:
            os.close(self._output)
            self._is_relaying = True

    def _supervise(self) -> None:
        """Handles events until the worker's own process has ended."""
        kill_at: float | None = None
        while True:
            try:
                patience = None if kill_at is None else max(0.0, kill_at - time.monotonic())
                kind, content = self._events.get(timeout=patience)
            except queue.Empty:
                kill_at = None
                self._signal_group(signal.SIGKILL)
                continue
            if kind == "exit":
                return
            if kind == "stop" and not self._was_stopped:
                self._was_stopped = True
                self._signal_group(signal.SIGTERM)
                kill_at = time.monotonic() + self._grace
            elif kind == "report":
                self._note(kind, content)
                if content[0]["kind"] == FAILED and kill_at is None:
                    # It has only to end now; what it holds must not keep it from that.
                    kill_at = time.monotonic() + self._grace

    def _note(self, kind: str, content: Any) -> None:
        """Keeps what the worker reported, and passes on a failure without waiting for the exit."""
        # What is raised after a stop is raised because of it.
        if kind != "report" or (self._was_stopped and content[0]["kind"] == FAILED):
            return
        self._report = content
        if content[0]["kind"] == FAILED:
            self._sink.failed(self._outcome())

    def _outcome(self) -> Outcome:
        exit_code = self._process.returncode
        status = STOPPED if self._was_stopped else DIED
        fields: dict[str, Any] = {}
        payload = b""
        if self._report is not None:
            fields, payload = dict(self._report[0]), self._report[1]
            status = fields.pop("kind")
            if status == RETURNED and exit_code not in (None, 0) and not self._was_stopped:
                fields["notes"] = (
                    f"rank {self._world.rank} returned its value, but its process then "
                    + describe_exit(exit_code),
                )
        return Outcome(
            world=self._world,
            status=status,
            ended_at=time.time(),
            exit_code=exit_code,
            output_tail=tuple(self._tail),
            payload=payload,
            **fields,
        )

    def _signal_group(self, number: int) -> None:
        # The leader is not reaped before the group is dead, so the id cannot mean another group.
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _await_exit(self) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._events.put(("exit", None))

    def _receive(self) -> None:
        try:
            while True:
                message, payload = self._line.receive()
                if message["kind"] == "message":
                    self._sink.message(self._world, message["text"])
                else:
                    self._events.put(("report", (message, payload)))
        except EOFError:
            pass

    def _relay_output(self) -> None:
        rest = b""
        with open(self._output, "rb", buffering=0) as pipe:
            while chunk := pipe.read(64 * 1024):
                *whole, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_CHARACTERS:
                    whole, rest = [*whole, rest], b""
                if whole:
                    self._show(whole)
            if rest:
                self._show([rest])

    def _show(self, raw_lines: list[bytes]) -> None:
        lines = [_readable(raw) for raw in raw_lines]
        self._tail.extend(lines)
        self._sink.output(self._world, lines)


def _readable(raw: bytes) -> str:
    """Decodes a line; of a progress bar that rewrites itself, the last state is kept."""
    text = raw.decode(errors="replace").rstrip("\r")
    return text.rpartition("\r")[2][:MAX_LINE_CHARACTERS]


def worker_environment(threads: int) -> dict[str, str]:
    """The environment that a worker starts with: this process's, made fit for it.

    Args:
        threads: The CPU threads that the rank may use, unless OMP_NUM_THREADS says otherwise.
    """
    environment = {name: value for name, value in os.environ.items() if name not in SPARK_SECRETS}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    environment["PYTHONPATH"] = os.pathsep.join(_extra_search_path())
    return environment


def _extra_search_path() -> list[str]:
    """The modules that this process sees beyond the interpreter's own: py-files, archives.

    The interpreter's own folders stay out: the variable reaches whatever the function starts,
    which may be another Python.
    """
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths = (os.path.abspath(path) if path else os.getcwd() for path in sys.path)
    return [
        path
        for path in paths
        if not path.startswith(own) and not os.path.basename(path).startswith("python3")
    ]
