"""Starts one worker, watches it, relays what it says, and ends it with all that it started."""

from __future__ import annotations

import os
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkdl_runner import host_metrics, lifeline, stacks
from sparkdl_runner.control import Envelope, Line
from sparkdl_runner.host_metrics import HostMetrics
from sparkdl_runner.memory_evidence import MemoryEvidence
from sparkdl_runner.outcome import DIED, FAILED, RETURNED, STOPPED, Outcome, describe_exit
from sparkdl_runner.rank_log import RankLog
from sparkdl_runner.redaction import Redactor, secrets_of
from sparkdl_runner.sink import Sink
from sparkdl_runner.tracking.rank_run import artifacts_in
from sparkdl_runner.vital_signs import Observer
from sparkdl_runner.world import World

TAIL_LINES = 40
MAX_LINE_CHARACTERS = 16 * 1024
# How long last words may take to arrive once the worker is dead.
DRAIN_SECONDS = 2.0
OUTPUT_POLL_MILLISECONDS = 250
LOOK_SECONDS = 1.0
FILE_PART_BYTES = 256 * 1024
# What is kept with the run of one file that a rank leaves.
MAX_FILE_BYTES = 64 << 20
# How long a process that was killed may take to be gone.
KILL_SECONDS = 10.0


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
    _folder: Path | None = None
    _looks_at_host = False

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
        self._is_over = threading.Event()
        self._asking = threading.Lock()
        self._family = uuid.uuid4().hex
        self._memory = MemoryEvidence()
        self._secrets = secrets_of(environment)
        self._redact = Redactor(self._secrets)
        self._log: RankLog | None = None
        ours, theirs = socket.socketpair()
        lifeline_end, self._lifeline = os.pipe()
        output, output_end = os.pipe()
        self._stacks, stacks_end = os.pipe()
        inherited = [theirs.fileno(), lifeline_end, stacks_end]
        command = [sys.executable, "-P", "-m", "sparkdl_runner.worker", "--backend", backend]
        command += ["--control-fd", str(theirs.fileno()), "--lifeline-fd", str(lifeline_end)]
        command += ["--agent-pid", str(os.getpid()), "--stacks-fd", str(stacks_end)]
        if listener is not None:
            inherited.append(listener.fileno())
            command += ["--listener-fd", str(listener.fileno())]
        try:
            self._process = subprocess.Popen(
                command,
                env={**environment, lifeline.FAMILY: self._family},
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
            os.close(self._stacks)
            raise
        finally:
            theirs.close()
            os.close(lifeline_end)
            os.close(output_end)
            os.close(stacks_end)
            if listener is not None:
                listener.close()
        self._line = Line(ours)
        self._output = output
        self._observer = Observer(self._process.pid)

    def begin(self, envelope: Envelope, sink: Sink, log: RankLog) -> None:
        """Gives the worker its place and its work, and says where its words go. Call it once."""
        self._world = envelope.world
        self._sink = sink
        self._log = log
        if envelope.mlflow_run is not None:
            self._folder = Path(envelope.mlflow_run["folder"])
            self._looks_at_host = envelope.world.local_rank == 0 and envelope.system_metrics
        self._redact = Redactor(self._secrets + secrets_of(envelope.environment))
        self._observer = Observer(self._process.pid)  # Its clock begins with the work.
        try:
            envelope.send(self._line)
        except OSError:
            pass  # It died while it was starting; wait() will say how.

    def stop(self) -> None:
        """Asks for the worker's end; safe from any thread, and after the end."""
        self._events.put(("stop", None))

    def stacks(self) -> str:
        """The Python stacks of the worker's threads, or a sentence on why there are none."""
        with self._asking:
            if self._stacks < 0 or self._has_ended():
                return "(no stacks: the process has ended)"
            return stacks.ask(self._process.pid, self._stacks, self._observer.look().state)

    def _has_ended(self) -> bool:
        """Whether the process is dead; it is not reaped here, so that its group keeps its id."""
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        except ChildProcessError:
            return True  # It is dead and reaped.

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
                ("vitals", self._look_after),
                ("host", self._look_at_host),
            )
        ]
        self._is_relaying = True
        for thread in threads:
            thread.start()
        try:
            self._supervise()
        finally:
            self._kill()
        # What the worker said in its last moment may have been overtaken by its exit.
        threads[1].join(DRAIN_SECONDS)
        while not self._events.empty():
            self._note(*self._events.get())
        self._is_over.set()
        threads[0].join(DRAIN_SECONDS)
        threads[3].join(DRAIN_SECONDS)
        outcome = self._outcome()
        if outcome.status == DIED:
            self._sink.failed(outcome)
        self._leave_files()
        self.end()
        if self._log is not None:
            self._log.close(keep=outcome.status != RETURNED)
        return outcome

    def _leave_files(self) -> None:
        """Gives away what is to be kept with the run: all that was printed, and traces."""
        if self._folder is None:
            return
        if self._log is not None and self._log.size_bytes:
            self._leave(f"logs/rank-{self._world.rank}.log", self._log.path)
        folder = artifacts_in(self._folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self._leave(f"traces/{path.relative_to(folder).as_posix()}", path)

    def _leave(self, name: str, path: Path) -> None:
        try:
            with path.open("rb") as file:
                for start in range(0, MAX_FILE_BYTES, FILE_PART_BYTES):
                    data = file.read(FILE_PART_BYTES)
                    if not data:
                        return
                    self._sink.file_part(self._world, name, data, is_first=start == 0)
                if path.stat().st_size > MAX_FILE_BYTES:
                    where = f"... cut here: all of it is in {path} on host {self._world.host}"
                    last = f"\n{where}\n".encode()
                    self._sink.file_part(self._world, name, last, is_first=False)
        except OSError:
            return  # It is gone, or its disk is; what was read of it is kept.

    def end(self) -> None:
        """Ends the worker if it still runs, without waiting for its last words. Idempotent."""
        if self._process.poll() is None:
            self._kill()
        self._is_over.set()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._line.close()
        if self._log is not None:
            self._log.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        with self._asking:
            if self._stacks >= 0:
                os.close(self._stacks)
                self._stacks = -1
        if not self._is_relaying:
            os.close(self._output)
            self._is_relaying = True

    def _supervise(self) -> None:
        """Handles events until the worker's own process has ended."""
        kill_at: float | None = None
        was_killed = False
        while True:
            try:
                patience = None if kill_at is None else max(0.0, kill_at - time.monotonic())
                kind, content = self._events.get(timeout=patience)
            except queue.Empty:
                if was_killed:
                    return  # Not even that ends it: it waits in the kernel, for a disk perhaps.
                was_killed, kill_at = True, time.monotonic() + KILL_SECONDS
                self._signal_group(signal.SIGKILL)
                continue
            if kind == "exit":
                return
            if kind == "stop" and not self._was_stopped:
                self._was_stopped = True
                with suppress(OSError):  # Then SIGTERM is not taken for somebody else's.
                    self._line.send({"kind": "stop"})
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
            if self._log is not None and self._log.problem is not None:
                fields["notes"] = (f"rank {self._world.rank}: {self._log.problem}",)
            if status == RETURNED and exit_code not in (None, 0) and not self._was_stopped:
                fields["notes"] = (
                    f"rank {self._world.rank} returned its value, but its process then "
                    + describe_exit(exit_code),
                )
        if status == DIED and exit_code == -signal.SIGKILL:
            fields["message"] = self._memory.verdict() or ""
        return Outcome(
            world=self._world,
            status=status,
            ended_at=time.time(),
            exit_code=exit_code,
            output_tail=tuple(self._tail),
            log_path="" if self._log is None or self._log.size_bytes == 0 else str(self._log.path),
            payload=payload,
            **fields,
        )

    def _kill(self) -> None:
        """Ends the worker and all that it started, whether that stayed in its group or not."""
        self._signal_group(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        lifeline.kill_family(self._family)

    def _signal_group(self, number: int) -> None:
        # The leader is not reaped before the group is dead, so the id cannot mean another group.
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _await_exit(self) -> None:
        try:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            self._events.put(("exit", None))

    def _receive(self) -> None:
        try:
            while True:
                message, payload = self._line.receive()
                if message["kind"] == "message":
                    self._observer.printed()
                    text = self._redact(message["text"])
                    if self._log is not None:
                        self._log.write(f"{text}\n".encode(errors="replace"))
                    self._sink.message(self._world, text)
                elif message["kind"] == "progress":
                    self._sink.progress(self._world, message["report"])
                elif message["kind"] == "pulse":
                    del message["kind"]
                    self._observer.pulse(**message)
                else:
                    for name in ("message", "traceback"):
                        if name in message:
                            message[name] = self._redact(message[name])
                    self._events.put(("report", (message, payload)))
        except EOFError:
            pass
        except Exception as error:  # The function wrote to the line, which is not its own.
            told = f"what came from the worker could not be understood: {error!r}"
            report = {"kind": FAILED, "exception": type(error).__name__, "message": told}
            self._events.put(("report", (report, b"")))

    def _look_at_host(self) -> None:
        """In a thread of its own: a GPU driver that hangs must not pass for a rank that does."""
        if not self._looks_at_host:
            return
        with suppress(Exception):  # A page without these figures is no reason to end a training.
            host = HostMetrics()
            pause = host_metrics.FIRST_LOOK_SECONDS
            while not self._is_over.wait(pause):
                self._sink.host_metrics(self._world, host.look())
                pause = host_metrics.LOOK_SECONDS

    def _look_after(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self._memory.look()
            self._sink.vital_signs(self._world, self._observer.look())

    def _relay_output(self) -> None:
        rest = b""
        poller = select.poll()
        poller.register(self._output, select.POLLIN)
        with open(self._output, "rb", buffering=0) as pipe:
            while True:
                if not poller.poll(OUTPUT_POLL_MILLISECONDS):
                    if self._is_over.is_set():
                        break  # Someone unknown to us still holds the pipe, in silence.
                    continue
                chunk = pipe.read(64 * 1024)
                if not chunk:
                    break
                self._observer.printed()
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    self._show(whole + newline)
                if len(rest) > MAX_LINE_CHARACTERS:
                    self._show(rest)
                    rest = b""
            if rest:
                self._show(rest)

    def _show(self, text: bytes) -> None:
        # Whole lines, so that no secret is missed because it came in two parts.
        text = self._redact.raw(text)
        if self._log is not None:
            self._log.write(text)
        lines = [_readable(raw) for raw in text.removesuffix(b"\n").split(b"\n")]
        self._tail.extend(lines)
        self._sink.output(self._world, lines)


def _readable(raw: bytes) -> str:
    """Decodes a line; of a progress bar that rewrites itself, the last state is kept."""
    text = raw.decode(errors="replace").rstrip("\r")
    return text.rpartition("\r")[2][:MAX_LINE_CHARACTERS]
