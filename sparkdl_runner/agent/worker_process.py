"""Supervises one worker from its start to its end, and says how it ended."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sparkdl_runner.agent import host_metrics
from sparkdl_runner.agent.child_process import KILL_SECONDS, ChildProcess
from sparkdl_runner.agent.host_metrics import HostMetrics
from sparkdl_runner.agent.memory_evidence import MemoryEvidence
from sparkdl_runner.agent.output_relay import OutputRelay
from sparkdl_runner.agent.rank_files import leave_files
from sparkdl_runner.agent.rank_folder import RankFolder
from sparkdl_runner.agent.rank_log import RankLog
from sparkdl_runner.redaction import Redactor, secrets_of
from sparkdl_runner.wire.control import Envelope
from sparkdl_runner.wire.outcome import DIED, FAILED, RETURNED, STOPPED, Outcome, describe_exit
from sparkdl_runner.wire.sink import Sink
from sparkdl_runner.wire.vital_signs import Observer
from sparkdl_runner.world import World

# How long a process may take to end whose function has returned, whatever the grace is.
LEAST_EXIT_SECONDS = 1.0
# How long last words may take to arrive once the worker is dead.
DRAIN_SECONDS = 2.0
LOOK_SECONDS = 1.0


class WorkerProcess:
    """One worker from its start to its end.

    The thread that creates it must live until ``wait`` has returned: the kernel ends the worker
    with that thread.

    Args:
        backend: The backend's name; the worker begins to import it at once.
        environment: The whole environment to start with.
        shutdown_grace_seconds: See ``RunConfig``.
    """

    _sink: Sink
    _world: World
    _relay: OutputRelay
    _folder: RankFolder | None = None
    _looks_at_host = False
    _was_killed = False
    _lingering = ""

    def __init__(
        self,
        *,
        backend: str,
        environment: Mapping[str, str],
        shutdown_grace_seconds: float,
    ) -> None:
        self._grace = shutdown_grace_seconds
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._report: tuple[dict[str, Any], bytes] | None = None
        self._was_stopped = False
        self._is_over = threading.Event()
        self._memory = MemoryEvidence()
        self._secrets = secrets_of(environment)
        self._redact = Redactor(self._secrets)
        self._log: RankLog | None = None
        self._child = ChildProcess(backend=backend, environment=environment)
        self._observer = Observer(self._child.pid)

    def begin(self, envelope: Envelope, sink: Sink, log: RankLog) -> None:
        """Gives the worker its place and its work, and says where its words go. Call it once."""
        self._world = envelope.world
        self._sink = sink
        self._log = log
        if envelope.mlflow_run is not None:
            self._folder = RankFolder(envelope.mlflow_run["folder"])
            self._looks_at_host = envelope.world.local_rank == 0 and envelope.system_metrics
        self._redact = Redactor(self._secrets + secrets_of(envelope.environment))
        self._observer = Observer(self._child.pid)  # Its clock begins with the work.
        self._relay = OutputRelay(
            world=self._world,
            sink=sink,
            log=log,
            redact=self._redact,
            printed=self._observer.printed,
        )
        try:
            envelope.send(self._child.line)
        except OSError:
            pass  # It died while it was starting; wait() will say how.

    def stop(self) -> None:
        """Asks for the worker's end; safe from any thread, and after the end."""
        self._events.put(("stop", None))

    def release(self) -> None:
        """Says that all other ranks have ended; safe from any thread, and after the end."""
        self._events.put(("release", None))

    def stacks(self) -> str:
        """The Python stacks of the worker's threads, or a sentence on why there are none."""
        return self._child.stacks(lambda: self._observer.look().state)

    def wait(self) -> Outcome:
        """Supervises the worker until it and all that it started are gone.

        Returns:
            How it ended. It is an error to call this before ``begin``.
        """
        output = self._child.take_output()  # The relaying thread closes it.
        threads = [
            threading.Thread(target=target, name=f"sparkdl-{name}-{self._world.rank}", daemon=True)
            for name, target in (
                ("output", lambda: self._relay.run(output, self._is_over)),
                ("control", self._receive),
                ("exit", self._await_exit),
                ("vitals", self._look_after),
                ("host", self._look_at_host),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            self._supervise()
        finally:
            self._child.kill()
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
        if self._folder is not None and self._log is not None:
            leave_files(self._world, self._folder.path, self._log, self._sink)
        self.end()
        if self._log is not None:
            self._log.close(keep=outcome.status != RETURNED)
        return outcome

    def end(self) -> None:
        """Ends the worker if it still runs, without waiting for its last words. Idempotent."""
        self._child.kill_if_it_runs()
        self._is_over.set()
        self._child.close()
        if self._log is not None:
            self._log.close()
        if self._folder is not None:
            self._folder.remove()

    def _supervise(self) -> None:
        """Handles events until the worker's own process has ended."""
        kill_at: float | None = None
        farewells: set[str] = set()
        while True:
            try:
                patience = None if kill_at is None else max(0.0, kill_at - time.monotonic())
                kind, content = self._events.get(timeout=patience)
            except queue.Empty:
                if self._was_killed:
                    return  # Not even that ends it: it waits in the kernel, for a disk perhaps.
                self._was_killed, kill_at = True, time.monotonic() + KILL_SECONDS
                self._child.signal_group(signal.SIGKILL)
                continue
            if kind == "exit":
                return
            if kind == "stop" and not self._was_stopped:
                self._was_stopped = True
                with suppress(OSError):  # Then SIGTERM is not taken for somebody else's.
                    self._child.line.send({"kind": "stop"})
                self._child.signal_group(signal.SIGTERM)
                kill_at = time.monotonic() + self._grace
            elif kind in ("serving", "release"):
                farewells.add(kind)
                if kind == "serving" and not self._was_stopped:
                    kill_at = None  # It has ended, but for what the other ranks need of it.
                if len(farewells) == 2:
                    with suppress(OSError):
                        self._child.line.send({"kind": "release"})
            elif kind == "report":
                self._note(kind, content)
                if kill_at is None:
                    # It has only to end now; what it holds must not keep it from that.
                    least = LEAST_EXIT_SECONDS if content[0]["kind"] == RETURNED else 0.0
                    kill_at = time.monotonic() + max(self._grace, least)

    def _note(self, kind: str, content: Any) -> None:
        """Keeps what the worker reported, and passes on a failure without waiting for the exit."""
        # What is raised after a stop is raised because of it.
        if kind != "report" or (self._was_stopped and content[0]["kind"] == FAILED):
            return
        self._report = content
        if content[0]["kind"] == FAILED:
            self._sink.failed(self._outcome())

    def _outcome(self) -> Outcome:
        exit_code = self._child.exit_code
        status = STOPPED if self._was_stopped else DIED
        fields: dict[str, Any] = {}
        payload = b""
        if self._report is not None:
            fields, payload = dict(self._report[0]), self._report[1]
            status = fields.pop("kind")
            fields["notes"] = self._notes(status, exit_code)
        if status == DIED and exit_code == -signal.SIGKILL:
            fields["message"] = self._memory.verdict() or ""
        return Outcome(
            world=self._world,
            status=status,
            ended_at=time.time(),
            exit_code=exit_code,
            output_tail=tuple(self._relay.tail),
            log_path="" if self._log is None or self._log.size_bytes == 0 else str(self._log.path),
            payload=payload,
            **fields,
        )

    def _notes(self, status: str, exit_code: int | None) -> tuple[str, ...]:
        notes = []
        if self._log is not None and self._log.problem is not None:
            notes.append(f"rank {self._world.rank}: {self._log.problem}")
        if status == RETURNED and exit_code not in (None, 0) and not self._was_stopped:
            then = (
                f"was ended after shutdown_grace_seconds={self._grace:g}, since "
                f"{self._lingering or 'something'} kept it from ending"
                if self._was_killed
                else describe_exit(exit_code)
            )
            notes.append(f"rank {self._world.rank} returned its value, but its process then {then}")
        return tuple(notes)

    def _await_exit(self) -> None:
        try:
            self._child.await_exit()
        finally:
            self._events.put(("exit", None))

    def _receive(self) -> None:
        try:
            while True:
                message, payload = self._child.line.receive()
                if message["kind"] == "message":
                    self._observer.printed()
                    text = self._redact(message["text"])
                    if self._log is not None:
                        self._log.write(f"{text}\n".encode(errors="replace"))
                    self._sink.message(self._world, text)
                elif message["kind"] == "progress":
                    self._sink.progress(self._world, message["report"])
                elif message["kind"] == "loader_plan":
                    self._sink.loader_plan(self._world, message["plan"])
                elif message["kind"] == "pulse":
                    del message["kind"]
                    self._lingering = message.pop("lingering")
                    self._observer.pulse(**message)
                elif message["kind"] == "serving":
                    self._events.put(("serving", None))
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
