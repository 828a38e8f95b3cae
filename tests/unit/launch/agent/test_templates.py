"""Workers that are forked from a template. They are real, but torch is a module of the test's."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import sparkdl_runner
from sparkdl_runner.base import processes
from sparkdl_runner.launch.agent import worker_process
from sparkdl_runner.launch.agent.spares import pool
from sparkdl_runner.launch.agent.spares.pool import end_spares, keep_template, start_workers
from sparkdl_runner.launch.agent.template_process import TemplateProcess
from sparkdl_runner.launch.agent.worker_process import WorkerProcess
from sparkdl_runner.launch.worker import lifeline
from sparkdl_runner.launch.worker.template import JEMALLOC_THREAD

# No process starts, answers or ends so late, even on a busy machine.
PATIENCE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module that templates and workers import in torch's place: one that raises, at first."""
    file = tmp_path / "torch.py"
    file.write_text("raise ImportError\n")
    monkeypatch.setattr(pool, "ANSWER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(worker_process, "KILL_SECONDS", PATIENCE_SECONDS)
    yield file
    templates = list(pool._templates.values())
    end_spares()
    for one in templates:
        wait_for_end(one)


def environment(torch: Path, **more: str) -> dict[str, str]:
    root = Path(sparkdl_runner.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{torch.parent}:{root}", **more}


@contextmanager
def started(
    number: int,
    torch: Path,
    *,
    with_template: bool = True,
    may_restart: bool = False,
    **more: str,
) -> Iterator[list[WorkerProcess]]:
    workers = start_workers(
        number,
        backend="torch",
        environment=environment(torch, **more),
        shutdown_grace_seconds=1.5,
        with_template=with_template,
        may_restart=may_restart,
    )
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def template() -> TemplateProcess:
    (only,) = pool._templates.values()
    return only


def wait_for_end(template: TemplateProcess) -> None:
    template._thread.join(PATIENCE_SECONDS)
    assert not template._thread.is_alive()


def parents(workers: list[WorkerProcess]) -> set[int]:
    return {psutil.Process(worker.pid).ppid() for worker in workers}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    stat = processes.stat(pid)
    return stat is None or stat.has_ended


def test_all_workers_and_those_of_the_next_call_share_one_template(torch: Path) -> None:
    with started(1, torch) as first, started(1, torch) as second:
        assert parents([*first, *second]) == {template().pid}
    with started(3, torch, with_template=False) as third:
        assert parents(third) == {template().pid}
    held = template()
    keep_template(0, backend="torch", environment=environment(torch))
    assert pool._templates == {}
    wait_for_end(held)
    assert is_gone(held.pid)


def test_a_worker_alone_is_a_child_of_its_agent(torch: Path) -> None:
    with started(1, torch, with_template=False) as workers:
        assert parents(workers) == {os.getpid()}
    assert pool._templates == {}


def test_how_a_worker_ended_is_told_and_its_id_stays_its_own_until_then(torch: Path) -> None:
    with started(2, torch) as (one, other):
        assert not one.has_ended()
        os.kill(one.pid, signal.SIGTERM)
        one.await_exit()
        assert one.has_ended()
        assert one.exit_code is None
        assert processes.stat(one.pid).state == "Z"
        one.end()
        assert one.exit_code == -signal.SIGTERM
        assert not other.has_ended()
        other.line.close()  # It has no work, then.
        other.await_exit()
        other.end()
        assert other.exit_code == 0


def test_each_worker_is_a_family_and_a_group_of_its_own(torch: Path) -> None:
    with started(2, torch) as (one, other):
        assert os.getpgid(one.pid) == os.getsid(one.pid) == one.pid
        mark = f"{lifeline.FAMILY}={one._family}".encode()
        wait_until(lambda: mark in processes.environment(one.pid))
        one.kill()
        assert one.exit_code == -signal.SIGKILL
        assert not other.has_ended()
        assert not is_gone(template().pid)


def test_a_template_of_other_conditions_is_left_to_its_workers(torch: Path) -> None:
    with started(1, torch) as first:
        held = template()
        with started(1, torch, OMP_NUM_THREADS="3") as second:
            assert parents(first).isdisjoint(parents(second))
            keep_template(600, backend="torch", environment=environment(torch, OMP_NUM_THREADS="3"))
            assert parents(second) == {template().pid}
            assert not first[0].has_ended()
    wait_for_end(held)


def test_a_template_that_waited_long_enough_ends_and_the_next_call_starts_another(
    torch: Path,
) -> None:
    keep_template(600, backend="torch", environment=environment(torch))
    first = template()
    keep_template(0.05, backend="torch", environment=environment(torch))
    assert template() is first
    wait_for_end(first)
    with started(1, torch) as workers:
        assert parents(workers) == {template().pid} != {first.pid}
        keep_template(0.05, backend="torch", environment=environment(torch))
        time.sleep(0.2)
        assert not workers[0].has_ended()


def test_a_template_whose_files_have_changed_starts_new_processes_and_is_replaced(
    torch: Path,
) -> None:
    torch.write_text("")
    with started(1, torch) as first:
        assert parents(first) == {template().pid}
        stale = template()
        torch.write_text("number = 2\n")
        with started(1, torch) as second, started(1, torch) as third:
            (worker,) = second
            wait_until(lambda: "--control-fd" in psutil.Process(worker.pid).cmdline())
            assert parents(second) == {stale.pid}
            assert parents(third) == {template().pid} != {stale.pid}
    wait_for_end(stale)


def test_a_template_that_has_a_thread_starts_new_processes(torch: Path) -> None:
    thread = "threading.Thread(target=time.sleep, args=[600], daemon=True).start()"
    torch.write_text(f"import threading, time\n{thread}\n")
    with started(2, torch) as workers:
        for worker in workers:
            wait_until(lambda pid=worker.pid: "--control-fd" in psutil.Process(pid).cmdline())
        assert parents(workers) == {template().pid}
        workers[0].line.close()
        workers[0].await_exit()
        workers[0].end()
        assert workers[0].exit_code == 0


def test_a_thread_of_jemallocs_which_begins_anew_in_a_fork_is_no_hindrance(torch: Path) -> None:
    name = f"pathlib.Path('/proc/thread-self/comm').write_text({JEMALLOC_THREAD!r})"
    thread = "threading.Thread(target=run, daemon=True).start(); named.wait()"
    torch.write_text(
        "import pathlib, threading, time; named = threading.Event()\n"
        f"def run(): {name}; named.set(); time.sleep(600)\n"
        f"{thread}\nraise ImportError\n"
    )
    with started(2, torch) as workers:
        assert parents(workers) == {template().pid}
        assert not any("--control-fd" in psutil.Process(one.pid).cmdline() for one in workers)


def test_what_trainings_import_next_is_imported_once_ranks_run_that_may_restart(
    torch: Path,
) -> None:
    by = torch.with_name("imported-by")
    # The first of these modules.
    torch.with_name("sympy.py").write_text(
        f"import os, pathlib\npathlib.Path({str(by)!r}).write_text(str(os.getpid()))\n"
    )
    with started(1, torch) as first:
        assert first[0].pid
    assert not by.exists()
    with started(1, torch, may_restart=True) as second:
        wait_until(lambda: by.exists() and bool(by.read_text()))
        assert int(by.read_text()) == template().pid
        with started(1, torch, may_restart=True) as third:
            assert parents([*second, *third]) == {template().pid}


def test_workers_end_with_their_template_as_if_killed(torch: Path) -> None:
    with started(2, torch) as workers:
        pids = [worker.pid for worker in workers]
        os.kill(template().pid, signal.SIGTERM)  # Meant for ranks.
        os.kill(template().pid, signal.SIGKILL)
        for worker in workers:
            worker.await_exit()
            worker.kill()
            assert worker.exit_code == -signal.SIGKILL
            assert worker.has_ended()
        wait_until(lambda: all(map(is_gone, pids)))  # They may be dying yet.
        with started(1, torch) as others:
            assert others[0].pid not in pids
            assert not others[0].has_ended()


def test_signals_for_ranks_end_no_template_and_reach_ranks(torch: Path) -> None:
    def ignored(pid: int) -> bool:
        (mask,) = re.findall(r"SigIgn:\t(\w+)", Path(f"/proc/{pid}/status").read_text())
        return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)

    with started(1, torch) as (worker,):
        assert not ignored(worker.pid)  # Once it is there, its template is ready.
        assert ignored(template().pid)


def test_what_an_import_prints_each_worker_prints(torch: Path) -> None:
    torch.write_text("print('imported')\nraise ImportError\n")
    with started(2, torch) as workers:
        for worker in workers:
            with open(worker.take_output()) as output:
                assert output.readline() == "imported\n"


def test_a_fork_that_fails_ends_that_worker_alone(torch: Path) -> None:
    torch.write_text(
        "import os\nreal, template, forks = os.fork, os.getpid(), [1, 2, 3]\n"  # One is a trial.
        "def fork():\n"
        "    if os.getpid() == template:\n"  # Workers fork their guards.
        "        if not forks: raise BlockingIOError(11, 'too many processes')\n"
        "        forks.pop()\n"
        "    return real()\n"
        "os.fork = fork\nraise ImportError\n"
    )
    with started(3, torch) as (one, other, third):
        third.await_exit()
        assert third.exit_code == 1
        with open(third.take_output()) as output:
            assert "no worker could be forked: [Errno 11] too many processes" in output.readline()
        assert not one.has_ended()
        assert not other.has_ended()


def test_a_worker_whose_template_dies_importing_has_ended_as_that_did(torch: Path) -> None:
    torch.write_text("import os\nos.abort()\n")
    with started(1, torch) as (worker,):
        held = template()
        worker.await_exit()
        assert worker.exit_code == -signal.SIGABRT
        assert worker.has_ended()
        assert worker.pid == held.pid
        worker.signal_group(signal.SIGKILL)  # To nobody.
        worker.kill()


def test_an_import_that_hangs_is_given_up_with_the_worker(torch: Path) -> None:
    torch.write_text("import time\ntime.sleep(600)\n")
    with started(2, torch) as (one, other):
        assert one.stacks().text.startswith("(no stacks: the backend")
        held = template()
        one.give_up()
        one.await_exit()
        assert one.exit_code == -signal.SIGTERM
        assert not other.has_ended()
        other.give_up()
        other.await_exit()
        wait_for_end(held)


def test_a_template_that_imports_is_asked_for_any_number_of_workers(torch: Path) -> None:
    go = torch.with_name("go")
    torch.write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "raise ImportError\n"
    )
    with started(12, torch, LARGE="x" * 60_000) as workers:  # No pipe holds so much.
        workers[3].give_up()
        assert workers[3].has_ended()
        go.touch()
        del workers[3]
        assert parents(workers) == {template().pid}


def test_a_template_that_was_killed_is_asked_for_no_more(torch: Path) -> None:
    torch.write_text("import time\ntime.sleep(600)\n")
    with started(1, torch) as (one,):
        held = template()
        one.give_up()
        assert not held.is_usable
        with started(1, torch) as (other,):
            assert template() is not held
            other.give_up()
        wait_for_end(held)


def test_the_last_words_of_a_template_are_told_where_its_ranks_have_begun(
    torch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.write_text("print('imported')\nraise ImportError\n")
    with started(1, torch) as (worker,):
        assert worker.pid
        held = template()
        os.kill(held.pid, signal.SIGKILL)
        wait_for_end(held)
        assert worker.exit_code == -signal.SIGKILL
    told = capfd.readouterr().err
    assert f"process {held.pid}, from which ranks were forked, ended, exit code -9" in told
    assert "imported" in told


def stop(pid: int) -> None:
    """Stops a process, which may run on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    while processes.stat(pid).state != "T":
        time.sleep(0.01)


def test_an_end_is_seen_though_the_template_was_stopped(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(1, torch) as (worker,):
        held, pid = template(), worker.pid
        stop(held.pid)
        os.kill(pid, signal.SIGKILL)
        worker.await_exit()
        assert worker.exit_code is None
        monkeypatch.setattr(worker_process, "KILL_SECONDS", 0.1)
        worker.kill()
        wait_for_end(held)  # It had no other worker.
        assert worker.exit_code == -signal.SIGKILL


def test_a_template_that_does_not_answer_is_left(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(1, torch) as (worker,):
        assert worker.pid
    held = template()
    stop(held.pid)
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 0.1)
    with started(1, torch) as workers:
        assert parents(workers) == {os.getpid()}


def test_a_worker_that_a_stopped_template_never_forks_is_given_up(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(1, torch) as (worker,):
        assert worker.pid
        held = template()
        stop(held.pid)
        try:
            monkeypatch.setattr(pool, "ANSWER_SECONDS", 0.1)
            with monkeypatch.context() as patch:
                patch.setattr(worker_process, "KILL_SECONDS", 0.1)
                with started(1, torch) as others:
                    assert parents(others) == {os.getpid()}
                    assert not worker.has_ended()
        finally:
            os.kill(held.pid, signal.SIGCONT)


def test_spares_are_ended_but_not_those_that_have_workers(torch: Path) -> None:
    with started(1, torch) as (worker,):
        held = template()
        assert worker.pid
        end_spares()
        assert pool._templates == {}
        assert not worker.has_ended()
    wait_for_end(held)
    keep_template(600, backend="torch", environment=environment(torch))
    held = template()
    stop(held.pid)
    end_spares()
    assert is_gone(held.pid)


def test_a_process_that_was_forked_has_none_of_its_parents_templates(torch: Path) -> None:
    keep_template(600, backend="torch", environment=environment(torch))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not pool._templates and not pool._lock.locked() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not is_gone(template().pid)


def test_without_the_kernels_help_all_workers_import_by_themselves(
    torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with started(2, torch) as workers:
        assert parents(workers) == {os.getpid()}
    keep_template(600, backend="torch", environment=environment(torch))
    assert pool._templates == {}
