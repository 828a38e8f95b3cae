"""The table of failures on ``local[2]``: what a person sees of each, and that nothing is left."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import rank_functions

from every_backend import EVERY_BACKEND
from sparkdl_runner import (
    DistributedRunner,
    HorovodRunner,
    LaunchError,
    RunCancelledError,
    RunConfig,
    RunnerError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerHungError,
    current_world,
)

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("spark")]
LIGHT = pytest.mark.usefixtures("light_spark_ranks")
BACKENDS = pytest.mark.parametrize("backend", EVERY_BACKEND)
QUIET = {"driver_log_verbosity": "log_callback_only"}


def runner(backend, **settings) -> DistributedRunner:
    return DistributedRunner(
        num_proc=2, backend=backend, run_config=RunConfig(**{**QUIET, **settings})
    )


def light(**settings) -> DistributedRunner:
    """For what does without torch, in tests that are ``LIGHT``."""
    return runner("horovod", **settings)


@LIGHT
@pytest.mark.one_lane
def test_a_stopped_rank_is_named_with_its_state_and_its_stack():
    def stop():
        if current_world().rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

    with pytest.raises(WorkerHungError) as caught:
        light(hang_timeout_seconds=10).run(stop)
    assert caught.value.rank == 1
    assert "its process is stopped (SIGSTOP)" in str(caught.value)
    assert "in stop" in caught.value.stacks


@pytest.mark.one_lane
@BACKENDS
def test_a_stuck_rank_is_named_and_not_those_that_wait_for_it(backend):
    def stick():
        if rank_functions.init(backend) == 1:
            threading.Event().wait()
        rank_functions.allreduce_until_stopped(backend)

    with pytest.raises(WorkerHungError, match=r"no progress for .* any other rank") as caught:
        runner(backend, hang_timeout_seconds=10).run(stick)
    assert caught.value.rank == 1
    assert "in stick" in caught.value.stacks
    assert "sparkdl_runner" not in caught.value.stacks
    assert re.search(r"As a consequence:\n  rank 0 on host", str(caught.value))


@pytest.mark.one_lane
@BACKENDS
def test_a_rank_that_never_joins_is_named_by_those_that_wait(backend):
    def stay_away():
        if current_world().rank == 0:
            end = time.monotonic() + 600
            while time.monotonic() < end:  # it works, but it does not come
                sum(range(1000))
        rank_functions.init(backend)

    with pytest.raises(WorkerHungError, match="has not joined its peers") as caught:
        runner(backend, rendezvous_timeout_seconds=3).run(stay_away)
    assert caught.value.rank == 0


@LIGHT
@pytest.mark.one_lane
def test_a_rank_that_computes_for_long_in_silence_is_left_alone(tmp_path):
    is_done = tmp_path / "done"

    def compute():
        if current_world().rank == 0:
            end = time.monotonic() + 21
            while time.monotonic() < end:
                sum(range(100_000))
            is_done.touch()
        while not is_done.exists():
            time.sleep(0.1)
        return "done"

    assert light(hang_timeout_seconds=10).run(compute) == "done"


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=pytest.mark.one_lane), "torch"])
def test_a_rank_that_died_is_followed_by_a_new_attempt_that_knows_its_number(backend, capfd):
    def die_once():
        rank = rank_functions.init(backend)
        if current_world().attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if current_world().attempt == 0:
            rank_functions.allreduce_until_stopped(backend)
        rank_functions.gather(backend, None)
        return current_world().attempt

    assert runner(backend, max_restarts=2, restart_backoff_seconds=0.1).run(die_once) == 1
    assert "Restarting all ranks in 0.1 s: restart 1 of 2." in capfd.readouterr().err


@LIGHT
@pytest.mark.one_lane
def test_an_error_of_the_function_is_not_tried_again_unless_asked(tmp_path):
    def fail(path):
        if current_world().rank == 0:
            with open(path, "a") as file:
                file.write("x")
            raise ValueError("always")

    path = tmp_path / "attempts"
    with pytest.raises(WorkerFailedError, match="always"):
        light(max_restarts=3, restart_backoff_seconds=0).run(fail, path=str(path))
    assert path.read_text() == "x"
    asked = {"max_restarts": 1, "restart_backoff_seconds": 0, "restart_user_errors": True}
    with pytest.raises(WorkerFailedError, match="always") as caught:
        light(**asked).run(fail, path=str(path))
    assert path.read_text() == "xxx"
    assert caught.value.attempt == 1


@LIGHT
@pytest.mark.one_lane
def test_the_full_log_of_a_rank_that_failed_is_on_its_host(tmp_path):
    def talk_and_fail():
        for number in range(5_000):
            print("line", number)
        if current_world().rank == 1:
            raise ValueError("enough")

    with pytest.raises(WorkerFailedError) as caught:
        light(log_directory=str(tmp_path)).run(talk_and_fail)
    assert caught.value.output_tail[-1] == "line 4999"
    assert len(caught.value.output_tail) < 100
    assert f"All that it printed is in {caught.value.log_path} on host" in str(caught.value)
    log = Path(caught.value.log_path)
    assert log.is_relative_to(tmp_path)
    assert log.read_text().splitlines() == [f"line {number}" for number in range(5_000)]


@LIGHT
def test_a_stopped_session_is_told_and_nothing_is_left(sessions):
    def in_a_moment():
        deadline = time.monotonic() + 300
        while not rank_functions_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        session = sessions.pop("local[2]")
        session.stop()

    stopper = threading.Thread(target=in_a_moment)
    stopper.start()
    with pytest.raises(RunCancelledError, match=r"application ended|cancelled"):
        light().run(rank_functions.sleep_in_ranks, seconds=600)
    stopper.join()


def rank_functions_running() -> bool:
    from processes import workers

    return len(workers()) >= 2


@LIGHT
def test_two_runs_that_compete_for_the_same_slots_both_end():
    values: dict[int, object] = {}

    def work(number: int) -> int:
        return number

    def compete(number: int) -> None:
        values[number] = light().run(work, number=number)

    threads = [threading.Thread(target=compete, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {0: 0, 1: 1, 2: 2}


@LIGHT
@pytest.mark.one_lane
def test_much_output_is_dropped_and_counted_and_blocks_nobody(capfd):
    def shout():
        import sys

        line = "x" * 1000 + "\n"
        for _ in range(10_000):  # 10 MB from every rank
            sys.stdout.write(line)
        return "done"

    assert HorovodRunner(np=2, driver_log_verbosity="all").run(shout) == "done"
    shown = capfd.readouterr()
    for rank in range(2):
        seen = shown.out.count(f"[rank {rank}] xxx")
        dropped = re.search(rf"(\d+) lines of rank {rank} were not shown", shown.err)
        assert seen + (int(dropped.group(1)) if dropped else 0) == 10_000


def test_settings_that_make_no_sense_are_refused():
    for settings, sentence in (
        ({"hang_timeout_seconds": 0}, "hang_timeout_seconds is 0; it must be 2 or more"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"min_num_proc": 0}, "min_num_proc is 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            RunConfig(**settings)
    with pytest.raises(LaunchError, match="3 ranks need 3 task slots"):
        DistributedRunner(num_proc=3, run_config=RunConfig(max_restarts=5)).run(print)
    with pytest.raises(LaunchError, match=r"min_num_proc is 3, and the cluster has 2 task slots"):
        DistributedRunner(num_proc=0, run_config=RunConfig(min_num_proc=3)).run(print)


@LIGHT
@pytest.mark.one_lane
def test_runs_in_a_row_do_not_add_up():
    """A few of the runs in a row that ``jobs/benchmark.py endurance`` looks at."""

    def one_run() -> None:
        assert light().run(lambda: 7) == 7

    def belongings() -> tuple[int, int]:
        gc.collect()
        return psutil.Process().num_fds(), threading.active_count()

    for _ in range(3):
        one_run()
    before = belongings()
    runs = 7
    for _ in range(runs):
        one_run()
    # Spark's own connections to its JVM come and go; a leak would be one or more for each run.
    # Threads and what they hold may end some moments after their run.
    deadline = time.monotonic() + 120
    while not all(now - then < runs // 2 for now, then in zip(belongings(), before, strict=True)):
        assert time.monotonic() < deadline, (belongings(), before)
        time.sleep(0.1)


def test_errors_share_one_base():
    for kind in (WorkerDiedError, WorkerFailedError, WorkerHungError, RunCancelledError):
        assert issubclass(kind, RunnerError)
