"""Supervises one worker while it works, and says how it ended."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.launch.agent.host_metrics import look_until
from sparkdl_runner.launch.agent.output_relay import OutputRelay
from sparkdl_runner.launch.agent.rank_folder import RankFolder, leave_traces, log_sender
from sparkdl_runner.launch.agent.rank_log import RankLog
from sparkdl_runner.launch.agent.vital_signs import Observer
from sparkdl_runner.launch.agent.worker_process import KILL_SECONDS, WorkerProcess
from sparkdl_runner.launch.wire import messages
from sparkdl_runner.launch.wire.control import Envelope
from sparkdl_runner.launch.wire.message_json import decode
from sparkdl_runner.launch.wire.messages import (
    Delivered,
    Logged,
    Message,
    Progress,
    Raised,
    Release,
    Returned,
    Serving,
    Stop,
)
from sparkdl_runner.launch.wire.outcome import Outcome, Status, describe_exit
from sparkdl_runner.launch.wire.receiver import Receiver

# How long a process may take to end whose function has returned, whatever the grace is.
LEAST_EXIT_SECONDS = 1.0
# How long last words may take to arrive once the worker is dead.
DRAIN_SECONDS = 2.0
# How long rank 0 may take to send what it has logged before it is ended, since another has failed.
DELIVER_SECONDS = 1.0
LOOK_SECONDS = 1.0
LOG_SECONDS = 10.0


@dataclass(frozen=True)
class Exited:
    """The worker's own process is dead."""


def supervise(
    worker: WorkerProcess,
    envelope: Envelope,
    receiver: Receiver,
    log: RankLog,
    *,
    sends_value: bool = False,
) -> Outcome:
    """Gives a worker its work, and waits until it and all that it started are gone.

    Args:
        worker: The process.
        envelope: Its place and its work.
        receiver: Takes what it says.
        log: Takes all that it prints.
        sends_value: Whether the receiver gets a plain value as soon as the function has returned.

    Returns:
        How it ended.
    """
    return _Supervision(worker, envelope, receiver, log, sends_value).run()


class _Supervision:
    """The state of one worker while it works."""

    def __init__(
        self,
        worker: WorkerProcess,
        envelope: Envelope,
        receiver: Receiver,
        log: RankLog,
        sends_value: bool,
    ) -> None:
        self._worker = worker
        self._envelope = envelope
        self._world = envelope.world
        self._receiver = receiver
        self._log = log
        self._send_log = log_sender(self._world, log, self._tell)
        self._sends_value = sends_value
        worker.is_first = envelope.world.rank == 0
        run = envelope.mlflow_run
        self._folder = None if run is None else RankFolder(run["folder"])
        self._redact = Redactor(worker.secrets + secrets_of(envelope.environment))
        self._observer = Observer(worker.importing_pid)
        self._relay = OutputRelay(
            show=lambda lines: self._tell(messages.Output(lines)),
            log=log,
            redact=self._redact,
            printed=self._observer.printed,
            show_unfinished=self._tell_unfinished if self._world.rank == 0 else None,
        )
        self._end: Returned | Raised | None = None
        """How the function ended, as the worker reported it."""
        self._was_stopped = False
        self._was_killed = False
        self._lingering = ""
        self._owes_entries = False
        """Whether the worker may have entries for MLflow that it has not sent."""
        self._num_entries = 0
        """How many have come."""
        self._is_over = threading.Event()

    def run(self) -> Outcome:
        """See ``supervise``."""
        output = self._worker.take_output()  # The relaying thread closes it.
        relaying = self._start("output", lambda: self._relay.run(output, self._is_over))
        receiving = self._start("control", self._receive)
        looking = self._start("vitals", self._look)
        self._start("exit", self._await_exit)
        if self._envelope.system_metrics and self._world.local_rank == 0:
            # In a thread of its own: a GPU driver that hangs must not pass for a rank that does.
            self._start("host", self._look_at_host)
        if self._folder:
            self._start("logs", self._send_logs)
        try:
            with suppress(OSError):  # It died while it was starting, and its exit says how.
                self._envelope.send(self._worker.line)
            try:
                self._supervise()
            finally:
                self._worker.kill()
            # The worker's last messages may be read only after its exit was noticed.
            receiving.join(DRAIN_SECONDS)
            while not self._worker.events.empty():
                event = self._worker.events.get()
                if isinstance(event, Returned | Raised):
                    self._note(event)
            self._is_over.set()
            relaying.join(DRAIN_SECONDS)
            looking.join(DRAIN_SECONDS)
            outcome = self._outcome()
            self._tell_unsent()
            if outcome.status == Status.DIED:
                self._tell(messages.Failed(outcome))
            if self._folder is not None:
                self._send_log(messages.FilePart)
                leave_traces(self._world, self._folder.path, self._tell)
            self._log.close(keep=outcome.status != Status.RETURNED and not outcome.is_growth)
            return outcome
        finally:
            self._is_over.set()
            self._worker.end()
            self._log.close()
            if self._folder is not None:
                self._folder.remove()

    def _start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        name = f"sparkdl-{name}-{self._world.rank}"
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _tell(self, message: Message) -> None:
        self._receiver.take(self._world, message)

    def _tell_unfinished(self, text: str) -> None:
        self._tell(messages.Unfinished(text))

    def _supervise(self) -> None:
        """Handles events until the worker's own process has ended."""
        kill_at: float | None = None
        end_at: float | None = None  # Once it is to end: by a signal that it may answer.
        is_stopping = is_serving = is_released = False
        while True:
            if end_at is not None and not (self._owes_entries and time.monotonic() < end_at):
                self._worker.signal_group(signal.SIGTERM)
                end_at = None
            try:
                next_at = kill_at if end_at is None else end_at
                patience = None if next_at is None else max(0.0, next_at - time.monotonic())
                event = self._worker.events.get(timeout=patience)
            except queue.Empty:
                if end_at is not None:
                    continue
                if self._was_killed:
                    return  # A process that waits in the kernel, as for a disk, outlives SIGKILL.
                self._was_killed, kill_at = True, time.monotonic() + KILL_SECONDS
                self._worker.signal_group(signal.SIGKILL)
                continue
            match event:
                case Exited():
                    return
                case Stop() if self._worker.has_ended():
                    pass  # It ended by itself, perhaps as the cause: its exit comes next.
                case Stop() if not is_stopping:
                    is_stopping = True
                    self._worker.give_up()
                    self._tell_worker(event)  # First: it takes other SIGTERMs for preemptions.
                    if kill_at is not None and isinstance(self._end, Raised):
                        end_at = kill_at  # It was the cause, and may send what it had logged.
                    else:
                        self._was_stopped = True
                        kill_at = time.monotonic() + self._worker.grace_seconds
                        end_at = min(time.monotonic() + DELIVER_SECONDS, kill_at)
                case Delivered():
                    self._owes_entries = False
                case Serving():
                    is_serving = True
                    if not self._was_stopped:
                        kill_at = None  # It stays as long as other ranks need what it serves.
                case Release():
                    is_released = True
                case Returned() | Raised():
                    self._note(event)
                    if isinstance(event, Returned):
                        self._owes_entries = False
                    if kill_at is None:
                        # The process has only to end now, so a thread of it must not take for ever.
                        least = LEAST_EXIT_SECONDS if isinstance(event, Returned) else 0.0
                        kill_at = time.monotonic() + max(self._worker.grace_seconds, least)
            if is_serving and is_released:
                self._tell_worker(Release())

    def _tell_unsent(self) -> None:
        """Counts the entries that a function had logged that raised, and that have not come."""
        if isinstance(self._end, Raised):
            unsent = self._end.num_entries - self._num_entries
            if unsent > 0:
                self._tell(messages.Unsent(unsent))

    def _tell_worker(self, message: Message) -> None:
        with suppress(OSError):
            self._worker.line.send(message)

    def _note(self, end: Returned | Raised) -> None:
        """Keeps how the function ended, and passes on a failure without waiting for the exit."""
        if isinstance(end, Raised) and self._was_stopped:
            return  # What is raised after a stop is raised because of it.
        self._end = end
        if isinstance(end, Raised):
            self._tell(messages.Failed(self._outcome()))
        elif self._sends_value and end.plain:
            # Ahead of the task's end: the process may linger, and the host be lost.
            self._tell(messages.PlainValue(end.plain))

    def _outcome(self) -> Outcome:
        outcome = Outcome(
            world=self._world,
            status=Status.STOPPED if self._was_stopped else Status.DIED,
            ended_at=time.time(),
            exit_code=self._worker.exit_code,
            output_tail=tuple(self._relay.tail),
            log_path=str(self._log.path) if self._log.size_bytes else "",
        )
        end = self._end
        if end is None:
            if outcome.status == Status.DIED and outcome.exit_code == -signal.SIGKILL:
                outcome = replace(outcome, message=self._worker.memory.verdict() or "")
            return outcome
        outcome = replace(outcome, notes=self._notes(end))
        if isinstance(end, Raised):
            fields = {name: value for name, value in vars(end).items() if name != "num_entries"}
            return replace(outcome, status=Status.FAILED, **fields)
        fields = {name: value for name, value in vars(end).items() if name != "plain"}
        return replace(outcome, status=Status.RETURNED, **fields)

    def _notes(self, end: Returned | Raised) -> tuple[str, ...]:
        notes = []
        if self._log.problem is not None:
            notes.append(f"rank {self._world.rank}: {self._log.problem}")
        exit_code = self._worker.exit_code
        if isinstance(end, Returned) and exit_code not in (None, 0) and not self._was_stopped:
            then = (
                f"was ended after shutdown_grace_seconds={self._worker.grace_seconds:g}, since "
                f"{self._lingering or 'something'} kept it from ending"
                if self._was_killed
                else describe_exit(exit_code)
            )
            notes.append(f"rank {self._world.rank} returned its value, but its process then {then}")
        return tuple(notes)

    def _await_exit(self) -> None:
        try:
            self._worker.await_exit()
        finally:
            self._worker.events.put(Exited())

    def _receive(self) -> None:
        try:
            while True:
                self._heard(decode(*self._worker.line.receive(), messages.WORKER_TO_AGENT))
        except EOFError:
            pass
        except Exception as error:  # The function wrote to the line, which is not its own.
            message = self._redact(f"what came from the worker could not be understood: {error!r}")
            self._worker.events.put(Raised(exception=type(error).__name__, message=message))

    def _heard(self, message: Message) -> None:
        match message:
            case messages.Text(text):
                self._observer.printed()
                text = self._redact(text)
                self._log.write(f"{text}\n".encode(errors="replace"))
                self._tell(messages.Text(text))
            case messages.Pulse():
                self._lingering = message.lingering
                self._worker.collectives = message.collectives
                self._observer.pulse(message)
            case Serving() | Delivered() | Returned():
                self._worker.events.put(message)
            case Progress() | Logged():
                self._owes_entries = self._folder is not None and self._world.rank == 0
                if isinstance(message, Logged):
                    self._num_entries += message.num_entries
                self._tell(message)
            case Raised():
                shown = replace(
                    message,
                    message=self._redact(message.message),
                    traceback=self._redact(message.traceback),
                )
                self._worker.events.put(shown)
            case _:
                self._tell(message)

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self._worker.memory.look()
            self._observer.watch(self._worker.importing_pid)
            returned = isinstance(self._end, Returned)
            self._tell(replace(self._observer.look(), has_returned=returned))

    def _send_logs(self) -> None:
        while not self._is_over.wait(LOG_SECONDS):
            self._send_log(messages.LogPart)

    def _look_at_host(self) -> None:
        look_until(self._is_over, lambda values: self._tell(messages.HostMetrics(values)))
