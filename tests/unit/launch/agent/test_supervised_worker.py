"""How a worker's end is told: by its own words, by its exit, and by what it was asked.

The worker is a small process that speaks as one does, and starts in a fiftieth of the time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl_runner.launch.agent import supervision, worker_process
from sparkdl_runner.launch.agent.rank_log import RankLog
from sparkdl_runner.launch.agent.supervision import supervise
from sparkdl_runner.launch.agent.worker_process import WorkerProcess
from sparkdl_runner.launch.wire import messages
from sparkdl_runner.launch.wire.control import Envelope
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, World, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
    attempt=0,
)[0]

# Before what each test has it do: a line, as wire.control has it, and the agent's requests.
SPEAKS = """
import json, os, signal, socket, struct, sys, time
own = dict(zip(sys.argv[1::2], sys.argv[2::2]))
line = socket.socket(fileno=int(own["--control-fd"]))
requests = int(own["--requests-fd"])
def read(size):
    found = b""
    while len(found) < size:
        found += line.recv(size - len(found)) or os._exit(90)
    return found
def hear():
    sizes = struct.unpack(">IQ", read(12))
    return json.loads(read(sizes[0])), read(sizes[1])
def frame(kind, payload=b"", **fields):
    text = json.dumps({"kind": kind, **fields}).encode()
    return struct.pack(">IQ", len(text), len(payload)) + text + payload
def say(kind, payload=b"", **fields):
    line.sendall(frame(kind, payload, **fields))
given, function = hear()
"""


# No process that ends, and no last word, takes so long, even on a busy machine.
PATIENCE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def _is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST_EXIT_SECONDS", "DRAIN_SECONDS", "KILL_SECONDS", "DELIVER_SECONDS"):
        monkeypatch.setattr(supervision, name, PATIENCE_SECONDS)
    monkeypatch.setattr(worker_process, "KILL_SECONDS", PATIENCE_SECONDS)


class Heard:
    """Keeps what the agent is told, in order."""

    def __init__(self, world: World = WORLD) -> None:
        self.world = world
        self.messages: list[messages.Message] = []

    def take(self, world: World, message: messages.Message) -> None:
        assert world is self.world
        self.messages.append(message)

    def of(self, kind: type[messages.Message]) -> list[messages.Message]:
        return [one for one in self.messages if isinstance(one, kind)]


@contextmanager
def worker(
    folder: Path, script: str, grace_seconds: float = PATIENCE_SECONDS
) -> Iterator[WorkerProcess]:
    code, python = folder / "worker.py", folder / "python"
    code.write_text(SPEAKS + script)
    # It is called with -P -m sparkdl_runner.launch.worker, which are for the real one.
    python.write_text(f'#!/bin/sh\nshift 3\nexec "{sys.executable}" -I -S "{code}" "$@"\n')
    python.chmod(0o700)
    real, sys.executable = sys.executable, str(python)
    try:
        made = WorkerProcess(
            backend="torch",
            environment={"PATH": os.environ["PATH"], "API_TOKEN": "hunter2-hunter2"},
            shutdown_grace_seconds=grace_seconds,
        )
    finally:
        sys.executable = real
    try:
        yield made
    finally:
        made.end()


def ended(
    folder: Path, made: WorkerProcess, heard: Heard | None = None, *, is_tracked: bool = False
) -> Outcome:
    heard = heard or Heard()
    envelope = Envelope(world=heard.world, environment={}, search_path=[], function=b"work")
    if is_tracked:
        (folder / "of the rank").mkdir()
        run = {"folder": str(folder / "of the rank")}
        envelope = replace(envelope, mlflow_run=run, system_metrics=True)
    return supervise(made, envelope, heard, RankLog(folder / "logs", 0))


def test_a_value_comes_with_the_word_that_it_was_returned(tmp_path: Path) -> None:
    script = """
print("first", given["search_path"], function.decode(), flush=True)
say("Text", text="to the driver, with hunter2-hunter2")
say("Returned", b"value")
"""
    heard = Heard()
    with worker(tmp_path, script) as made:
        outcome = ended(tmp_path, made, heard)
    assert (outcome.status, outcome.payload, outcome.notes) == (Status.RETURNED, b"value", ())
    assert (outcome.exit_code, outcome.output_tail) == (0, ("first [] work",))
    assert heard.of(messages.Output) == [messages.Output(["first [] work"])]
    (text,) = heard.of(messages.Text)
    assert "to the driver" in text.text
    assert "hunter2" not in text.text
    assert not heard.of(messages.Failed)
    assert not (tmp_path / "logs").exists(), "all went well"


def test_a_gpu_library_that_hangs_holds_no_rank_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        goes_on.wait()

    monkeypatch.setattr(supervision, "look_until", hang)
    with worker(tmp_path, 'say("Returned", b"value")') as made:
        outcome = ended(tmp_path, made, is_tracked=True)
    assert (outcome.status, begun.is_set()) == (Status.RETURNED, True)
    goes_on.set()


@pytest.mark.parametrize("rank", [0, 1])
def test_only_of_rank_0_is_a_line_shown_that_has_not_ended(tmp_path: Path, rank: int) -> None:
    script = """
print("\\r10%", end="", flush=True)
say("Returned", b"value")
"""
    heard = Heard(replace(WORLD, rank=rank))
    with worker(tmp_path, script) as made:
        ended(tmp_path, made, heard)
    shown = [one.text for one in heard.of(messages.Unfinished)]
    assert shown == (["10%", ""] if rank == 0 else [])
    assert heard.of(messages.Output) == [messages.Output(["10%"])]


def test_a_function_that_raised_is_told_at_once_and_what_it_printed_is_kept(
    tmp_path: Path,
) -> None:
    script = """
print("words", flush=True)
told = {"exception": "ValueError", "message": "hunter2-hunter2 is bad"}
say("Raised", b"pickled", **told, is_preemption=True)
"""
    heard = Heard()
    with worker(tmp_path, script) as made:
        outcome = ended(tmp_path, made, heard)
    assert (outcome.status, outcome.exception, outcome.payload) == (
        Status.FAILED,
        "ValueError",
        b"pickled",
    )
    assert outcome.is_preemption
    assert outcome.message.endswith(" is bad")
    assert "hunter2" not in outcome.message
    (told,) = heard.of(messages.Failed)
    assert told.outcome.exception == "ValueError"
    assert Path(outcome.log_path).read_text() == "words\n"


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV)],
)
def test_a_death_is_told_by_how(tmp_path: Path, script: str, exit_code: int) -> None:
    heard = Heard()
    with worker(tmp_path, script) as made:
        outcome = ended(tmp_path, made, heard)
    assert (outcome.status, outcome.exit_code) == (Status.DIED, exit_code)
    assert heard.of(messages.Failed) == [messages.Failed(outcome)]
    assert outcome.log_path == "", "it printed nothing"


def test_an_exit_after_the_value_that_is_not_clean_is_a_note(tmp_path: Path) -> None:
    with worker(tmp_path, 'say("Returned", b"v"); os._exit(3)') as made:
        outcome = ended(tmp_path, made)
    assert outcome.status == Status.RETURNED
    (note,) = outcome.notes
    assert note.startswith("rank 0 returned its value, but its process then exited with code 3")


def test_a_process_that_lingers_after_the_value_is_ended_and_the_value_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LEAST_EXIT_SECONDS", 0.05)
    with worker(tmp_path, 'say("Returned", b"v"); time.sleep(600)', 0.0) as made:
        outcome = ended(tmp_path, made)
    assert (outcome.status, outcome.payload) == (Status.RETURNED, b"v")
    (note,) = outcome.notes
    assert note == (
        "rank 0 returned its value, but its process then was ended after "
        "shutdown_grace_seconds=0, since something kept it from ending"
    )


class Events(queue.SimpleQueue):
    """Notes how long each event is waited for; calls ``on_wait`` when a worker serves."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        super().__init__()
        self._on_wait = on_wait
        self.waited: dict[str, float | None] = {}
        """The limit of the wait for the event after one of each kind."""
        self._last = "nothing"

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        self.waited.setdefault(self._last, timeout)
        if self._last == "Serving":
            self._on_wait()
        event = super().get(block, timeout)
        self._last = type(event).__name__
        return event


@pytest.mark.parametrize("releases_first", [True, False])
def test_what_serves_others_stays_until_it_is_released(
    tmp_path: Path, releases_first: bool
) -> None:
    script = """
say("Returned", b"v")
say("Serving")
print("serving", flush=True)
print(hear()[0], flush=True)
"""
    with worker(tmp_path, script, 0.0) as made:
        events = made.events = Events(made.release if not releases_first else lambda: None)
        if releases_first:
            made.release()
        outcome = ended(tmp_path, made)
    assert (outcome.status, outcome.notes) == (Status.RETURNED, ())
    assert outcome.output_tail == ("serving", "{'kind': 'Release'}")
    # Once it has returned, it is to end; once it serves, it may stay as long as it is needed.
    assert events.waited["Returned"] is not None
    assert events.waited["Serving"] is None


def test_a_stop_is_said_before_the_signal_and_what_is_raised_because_of_it_is_none_of_its_own(
    tmp_path: Path,
) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda *_: None)
made = hear()[0]
say("Raised", exception="ConnectionError", message="a peer is gone")
print(made, flush=True)
"""
    heard = Heard()
    with worker(tmp_path, script) as made:
        made.stop()
        made.stop()
        outcome = ended(tmp_path, made, heard)
    assert (outcome.status, outcome.exception) == (Status.STOPPED, "")
    assert not heard.of(messages.Failed)


def entries(heard: Heard) -> list[object]:
    reports = [json.loads(one.report) for one in heard.of(messages.Logged)]
    return [entry for report in reports for entry in report["entries"]]


# Its first report is that of the start, as of each rank.
LOGS = """
def report(*entries):
    text = json.dumps({"entries": list(entries), "problems": []}).encode()
    if entries:
        say("Logged", text, num_entries=len(entries))
    else:
        say("Progress", text)
def raises(count):
    say("Raised", exception="OSError", message="no file", num_entries=count)
report()
"""


def test_a_function_that_raised_sends_what_it_had_logged_though_the_failure_ends_all_ranks(
    tmp_path: Path,
) -> None:
    script = f"""{LOGS}
raises(2)
hear()  # The stop, which its own failure has made the driver send.
report("first")
report("last")
say("Delivered")
time.sleep(600)
"""
    heard = Heard()
    with worker(tmp_path, script) as made:
        take = heard.take

        def stop_after_a_failure(world: World, message: messages.Message) -> None:
            take(world, message)
            if isinstance(message, messages.Failed):
                made.stop()

        heard.take = stop_after_a_failure  # type: ignore[method-assign]
        outcome = ended(tmp_path, made, heard, is_tracked=True)
    assert entries(heard) == ["first", "last"]
    # It is not waited for any longer than it has to send.
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, -signal.SIGTERM)
    assert not heard.of(messages.Unsent)


def test_entries_that_were_not_sent_within_the_grace_are_counted(tmp_path: Path) -> None:
    script = f'{LOGS}report("first"); raises(3); time.sleep(600)'
    heard = Heard()
    with worker(tmp_path, script, 0.05) as made:
        outcome = ended(tmp_path, made, heard, is_tracked=True)
    assert outcome.status == Status.FAILED
    assert heard.of(messages.Unsent) == [messages.Unsent(2)]


@pytest.mark.parametrize(
    ("then", "sent", "seconds"),
    [
        ("hear(); report('last'); say('Delivered'); time.sleep(600)", ["last"], PATIENCE_SECONDS),
        ("time.sleep(600)", [], 0.02),  # As where native code never gives the interpreter back.
    ],
)
def test_rank_0_sends_what_it_had_logged_before_a_failure_of_another_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, sent: list[str], seconds: float
) -> None:
    monkeypatch.setattr(supervision, "DELIVER_SECONDS", seconds)
    heard = Heard()
    with worker(tmp_path, LOGS + then) as made:
        take = heard.take

        def stop_after_a_report(world: World, message: messages.Message) -> None:
            take(world, message)
            if isinstance(message, messages.Progress):
                made.stop()

        heard.take = stop_after_a_report  # type: ignore[method-assign]
        outcome = ended(tmp_path, made, heard, is_tracked=True)
    assert (outcome.status, outcome.exit_code) == (Status.STOPPED, -signal.SIGTERM)
    assert entries(heard) == sent


def test_what_had_left_a_process_that_gave_up_is_there(tmp_path: Path) -> None:
    heard = Heard()
    with worker(tmp_path, f"{LOGS}report('first'); report('last'); os._exit(7)") as made:
        outcome = ended(tmp_path, made, heard, is_tracked=True)
    assert (outcome.status, outcome.exit_code) == (Status.DIED, 7)
    assert entries(heard) == ["first", "last"]


def test_who_does_not_end_when_it_is_stopped_is_killed_after_its_grace(tmp_path: Path) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("it does not listen", flush=True)
time.sleep(600)
"""
    heard = Heard()
    with worker(tmp_path, script, 0.05) as made:
        heard.take = lambda world, message: (
            made.stop() if isinstance(message, messages.Output) else None
        )
        outcome = ended(tmp_path, made, heard)
    assert (outcome.status, outcome.exit_code) == (Status.STOPPED, -signal.SIGKILL)


def test_who_speaks_nonsense_on_its_line_has_failed(tmp_path: Path) -> None:
    script = 'say("Assigned", assignment=1); time.sleep(600)'
    with worker(tmp_path, script, 0.0) as made:
        outcome = ended(tmp_path, made)
    assert (outcome.status, outcome.exception) == (Status.FAILED, "ValueError")
    assert outcome.message.startswith("what came from the worker could not be understood:")


def test_requests_reach_the_process_once_each_and_none_after_its_end(tmp_path: Path) -> None:
    script = """
found = b""
while found.count(b"why") < 3:
    found += os.read(requests, 4096)
print(found.count(b"why"), flush=True)
say("Returned", b"v")
"""
    with worker(tmp_path, script) as made:
        for _ in range(2):
            made.request_stop("why 1")
            made.preempt("why 2")
            made.request_growth("why 3")
        outcome = ended(tmp_path, made)
        assert outcome.output_tail == ("3",)
        made.request_stop("why 4")
        made.stop()
        made.release()
        assert made.stacks() == messages.Stacks("(no stacks: the process has ended)", [])
