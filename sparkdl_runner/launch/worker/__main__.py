"""The worker: a fresh process that runs the user's function as one rank.

Started as ``python -m sparkdl_runner.launch.worker`` by an agent (or by the local launcher), it
imports the backend while the agents still find one another, then receives its envelope, sets the
environment, unpickles the function, runs it, and sends back the value or the error.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress

from sparkdl_runner.base.importing import without_collecting
from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.launch.backends import Backend, get_backend, joined
from sparkdl_runner.launch.backends.environment import beside_own
from sparkdl_runner.launch.wire import function
from sparkdl_runner.launch.wire.control import Envelope, WorkerPipe
from sparkdl_runner.launch.wire.failure_report import MAX_MESSAGE, MAX_TRACEBACK
from sparkdl_runner.launch.wire.messages import Delivered, LoaderPlan, Raised, Replica, Returned
from sparkdl_runner.launch.worker import (
    child_processes,
    collectives,
    driver_log,
    figures,
    gpu_memory,
    last_entries,
    lifeline,
    pulse,
    spark_files,
    stacks,
)
from sparkdl_runner.launch.worker.driver_folders import new_folders
from sparkdl_runner.launch.worker.ends import WorkerEnds
from sparkdl_runner.launch.worker.search_path import complete_search_path, search_path_for_children
from sparkdl_runner.launch.worker.template import Template
from sparkdl_runner.launch.worker.user_traceback import user_traceback
from sparkdl_runner.rank import (
    loader_plans,
    preemption,
    rank_facts,
    replicas,
    stop_request,
    world,
)
from sparkdl_runner.tracking.rank import rank_tracking as tracking
from sparkdl_runner.tracking.rank.advice import advice


def main() -> None:
    """Runs one rank, from a command line of ``ends.command``; or forks others to do so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    for name in ("parent-pid", "template-fd", *(f"{end}-fd" for end in WorkerEnds._fields)):
        parser.add_argument(f"--{name}", type=int)
    arguments = vars(parser.parse_args())
    del sys.argv[1:]  # They are not the function's.
    started_with = dict(os.environ)

    complete_search_path()
    backend = get_backend(arguments["backend"])
    joined.note_when_joined(backend.joins)
    parent_pid, template_fd = arguments["parent_pid"], arguments["template_fd"]
    if template_fd is None:
        ends = WorkerEnds(*(arguments[f"{end}_fd"] for end in WorkerEnds._fields))
    else:
        lifeline.die_with_parent(parent_pid)
        parent_pid, agent = os.getpid(), socket.socket(fileno=template_fd)
        ends = Template(agent, backend, started_with, _import_early).serve()
    guard_pid = lifeline.die_with_agent(ends.lifeline, parent_pid)
    # Child processes must not inherit this: they would hide that it was closed.
    os.set_inheritable(ends.control, False)
    stacks.offer(ends.stacks)
    stop_request.connect(ends.requests)
    # Lines must reach the agent when they are printed, not when a buffer is full.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    line = WorkerPipe(socket.socket(fileno=ends.control))
    if template_fd is None:
        _import_early(backend.imports)
    try:
        envelope = Envelope.receive(line)
    except EOFError:
        return  # The agent gave up before the run began.
    for name in envelope.to_forget:
        os.environ.pop(name, None)
    os.environ.update(beside_own(envelope.environment, os.environ))
    added = new_folders(envelope.search_path, envelope.driver_files)
    os.environ["PYTHONPATH"] = search_path_for_children(added, envelope.search_path)
    sys.path += added
    world.enter_world(envelope.world)
    child_processes.send_by_value()
    spark_files.make_findable()
    driver_log.connect(line)
    figures.show_on_driver(line, envelope.world.rank)
    loader_plans.connect(lambda plan: line.send(LoaderPlan(plan)))
    replicas.connect(lambda told: line.send(Replica(told)))
    preemption.is_sent_by_agent = line.has_word
    collectives.record()
    pulse.start(line, backend)
    code = _run(line, backend, envelope)
    _exit(code, guard_pid, stay=lambda: backend.stay_in_worker(line))


def _import_early(modules: Iterable[str]) -> None:
    """Imports what the function will import. An error here comes again there, where it is shown."""
    with without_collecting():
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception:
                break
    gc.freeze()


def _run(line: WorkerPipe, backend: Backend, envelope: Envelope) -> int:
    """Runs the function and sends its end to the agent. Returns the exit code."""
    pid = os.getpid()
    recorder = tracking.begin(
        envelope.world.rank,
        envelope.mlflow_run,
        line.report,
        trace_steps=envelope.trace_steps,
    )
    last_entries.send_at_stop(line, recorder)
    try:
        backend.join_in_worker(envelope.listener)
        try:
            value = function.call(envelope.function)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise
            value = None
        _end_if_forked(pid, None)
        recorder.close()
        payload = function.pack_result(value, envelope.world)
        returned = Returned(
            function.plain_result(value, envelope.world),
            joined.has_joined(),
            isinstance(value, function.EachRanksValue),
            str(rank_facts.current().get("checkpoint", "")),
            payload,
        )
    except BaseException as error:
        _end_if_forked(pid, error)
        with suppress(Exception):  # The error itself must be reported in any case.
            if note := backend.advice(error) or gpu_memory.advice(error) or advice(error):
                error.add_note(note)
            if call := collectives.call_of(error):
                error.add_note(f"This rank called {call}.")
        _send_failure(line, backend, error, recorder.num_entries)
        recorder.close()  # After the failure is sent, as sending metrics may fail or take long.
        line.send(Delivered())
        return 1
    line.send(returned)
    return 0


def _end_if_forked(pid: int, error: BaseException | None) -> None:
    """Ends a process that the function forked and that returned: only the rank may report."""
    if os.getpid() == pid:
        return
    if error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if error is None else 1)


def _send_failure(
    line: WorkerPipe, backend: Backend, error: BaseException, num_entries: int = 0
) -> None:
    name = type(error).__name__
    shown = error.with_traceback(user_traceback(error))
    is_preemption = bool(getattr(error, "is_preemption", False))
    leaving = getattr(error, "ranks", ()) if is_preemption else ()
    raised = Raised(
        exception=name,
        message=_text_of(error),
        traceback="".join(traceback.format_exception(shown))[-MAX_TRACEBACK:],
        # Without memory, NCCL's errors look as if a peer was lost; here they are the cause.
        is_communication_error=backend.is_communication_error(error)
        and not gpu_memory.ran_out(error),
        is_preemption=is_preemption,
        preempted_ranks=tuple(rank for rank in leaving if isinstance(rank, int)),
        is_growth=getattr(error, "is_growth", False) is True,
        is_worth_a_restart=getattr(error, "is_worth_a_restart", False) is True,
        refused_result=name if isinstance(error, NotPicklableError) else "",
        num_entries=num_entries,
        payload=function.pack_exception(error),
    )
    line.send(raised)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE]
    except Exception:
        return "(its text cannot be had: its __str__ raised)"


def _exit(code: int, guard_pid: int, stay: Callable[[], None]) -> None:
    """Ends the process as Python does, but does not unload all modules, which is slow."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 0:
            stay()
        lifeline.release(guard_pid)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
