"""Negative np: processes of this host, without Spark and without Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
import rank_functions

from processes import still_running, wait_until_gone
from sparkdl_runner import (
    DistributedRunner,
    HorovodRunner,
    LaunchError,
    NotPicklableError,
    RunConfig,
    WorkerDiedError,
    WorkerFailedError,
    current_world,
    log_to_driver,
)
from sparkdl_runner.data import SparkDatasetConverter
from sparkdl_runner.data.dataset.describe import describe_parquet

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]
LIGHT = pytest.mark.usefixtures("light_ranks")


def run_script(tmp_path, code, **environment):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_rank_0s_value_is_returned_and_the_driver_stays_without_spark_and_java(tmp_path):
    done = run_script(
        tmp_path,
        """
        import functools, sys
        from sparkdl_runner import HorovodRunner

        offset = 100

        def main(a, b):
            import horovod.torch as hvd
            hvd.init()
            return offset + a + b + hvd.rank() + 10 * hvd.size()

        if __name__ == "__main__":
            print(HorovodRunner(np=-2).run(main, a=1, b=2))
            print(HorovodRunner(np=-1).run(functools.partial(main, 1), b=2))
            print(HorovodRunner(np=-1).run(lambda: offset))
            print([m for m in ("pyspark", "torch", "horovod") if m in sys.modules])
        """,
        PATH="/nonexistent",
        JAVA_HOME="/nonexistent",
    )
    assert done.stderr.splitlines() == [
        "sparkdl_runner: 2 ranks on 1 host started",
        *["sparkdl_runner: 1 rank on 1 host started"] * 2,
    ]
    assert done.stdout.splitlines() == ["123", "113", "100", "[]"]


@pytest.mark.parametrize(
    ("backend", "train"),
    [("horovod", rank_functions.train_with_horovod), ("torch", rank_functions.train_with_ddp)],
)
def test_unmodified_training_code_ends_with_equal_weights(backend, train):
    weights, of_rank_1 = DistributedRunner(num_proc=-2, backend=backend).gather(train)
    assert len(weights) == 2
    assert weights[0] == weights[1]
    assert weights == of_rank_1


def test_each_rank_knows_its_world(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told = HorovodRunner(np=-2).run(rank_functions.describe)
    assert [row[:3] for row in told["ranks"]] == [[0, 0, 2], [1, 1, 2]]
    (template,) = {row[4] for row in told["ranks"]}
    assert template != os.getpid()
    assert told["world"]["size"] == told["world"]["local_size"] == 2
    assert told["world"]["backend"] == "horovod"
    assert told["modules"] == ["horovod", "torch"]
    # A child of the function must not inherit the lines to the agent, not even by os.system.
    assert told["inheritable"] == []
    assert told["threads"] == str(max(1, len(os.sched_getaffinity(0)) // 2))


@LIGHT
def test_all_that_ranks_print_is_shown_whatever_the_verbosity(capfd):
    HorovodRunner(np=-2).run(rank_functions.speak)
    lines = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        assert f"[rank {rank}] printed by {rank}" in lines
        assert f"[rank {rank}] complaint of {rank}" in lines
        assert f"[rank {rank}] 100%" in lines
        assert f"[rank {rank}] no newline at the end" in lines
        assert f"[rank {rank}] message of {rank} " + "x" * 3987 in lines


@pytest.mark.parametrize(("backend", "rank"), [("horovod", 1), ("torch", 0)])
def test_an_exception_in_any_rank_is_raised_with_its_traceback(backend, rank):
    with pytest.raises(WorkerFailedError) as caught:
        DistributedRunner(num_proc=-2, backend=backend).run(
            rank_functions.fail_in_rank, backend, rank, how="raise"
        )
    error = caught.value
    assert error.rank == rank
    assert isinstance(error.__cause__, ValueError)
    assert f"raised ValueError: the data of rank {rank} is bad" in str(error)
    first_frame = error.remote_traceback.splitlines()[1]
    assert first_frame.endswith("in fail_in_rank"), "no frames of what called it"
    assert "about to raise" in error.output_tail


@pytest.mark.parametrize(
    ("backend", "how", "words"),
    [("horovod", "kill", "SIGKILL"), ("torch", "exit", "exited with code 7")],
)
def test_a_death_in_any_rank_is_told_apart_from_what_it_does_to_the_others(backend, how, words):
    with pytest.raises(WorkerDiedError, match=words) as caught:
        DistributedRunner(num_proc=-2, backend=backend).run(
            rank_functions.fail_in_rank, backend=backend, rank=1, how=how
        )
    assert caught.value.rank == 1


@LIGHT
def test_what_a_failed_rank_has_started_ends_with_it():
    with pytest.raises(WorkerFailedError, match="with a child"):
        HorovodRunner(np=-2).run(rank_functions.start_a_sleeper_and_fail)
    assert wait_until_gone("4711")


@LIGHT
@pytest.mark.parametrize("start_new_session", [False, True])
def test_what_a_rank_that_returned_has_started_ends_with_it_too(start_new_session):
    def main():
        import subprocess

        subprocess.Popen(["sleep", "4714"], start_new_session=start_new_session)

    HorovodRunner(np=-1).run(main)
    assert wait_until_gone("4714")


@LIGHT
def test_the_value_of_a_rank_that_lingers_counts(capfd):
    def main():
        import atexit
        import threading
        import time

        def upload():
            time.sleep(600)

        if current_world().rank == 0:
            threading.Thread(target=upload, name="uploader").start()
        else:
            atexit.register(upload)
        return "value"

    # It has returned, so that it is no hang either.
    config = RunConfig(hang_timeout_seconds=6, shutdown_grace_seconds=9)
    runner = HorovodRunner(np=-2, run_config=config)
    assert runner.run(main) == "value"
    notes = capfd.readouterr().err
    for rank, culprit in ((0, "the thread 'uploader'"), (1, "upload, which is registered with")):
        assert f"rank {rank} returned its value, but its process then was ended" in notes
        assert culprit in notes


def test_a_rank_that_reads_in_an_order_of_its_own_ends_the_run(tmp_path):
    pq.write_table(pa.table({"id": range(64)}), tmp_path / "0.parquet", row_group_size=8)
    local = pyarrow.fs.LocalFileSystem()
    describe_parquet(local, str(tmp_path), ["0.parquet"]).write(local, str(tmp_path))
    converter = SparkDatasetConverter(f"file://{tmp_path}", [], 64)

    def read():
        rank = current_world().rank
        if rank == 0:  # What it reads by itself is nobody else's business.
            with converter.make_torch_dataloader(2, num_epochs=1) as first_look:
                next(iter(first_look))
            with converter.make_torch_dataloader(
                32, num_epochs=1, cur_shard=0, shard_count=1
            ) as validation:
                assert sum(len(batch["id"]) for batch in validation) == 64
        with converter.make_torch_dataloader(4, num_epochs=1, seed=rank) as training:
            return len(list(training))

    with pytest.raises(WorkerFailedError, match="never: seed is 0 on rank 0, 1 on rank 1"):
        DistributedRunner(num_proc=-2, backend="torch").run(read)


@LIGHT
def test_loaders_that_each_rank_makes_on_a_line_of_its_own_are_compared_at_the_end():
    def main():
        from sparkdl_runner.rank import loader_plans

        seed = {"seed": current_world().rank}
        loader_plans.tell("/x", f"train.py:{seed['seed']}", order=seed, arguments=seed)

    with pytest.raises(WorkerFailedError, match="never: seed is 0 on rank 0, 1 on rank 1"):
        HorovodRunner(np=-2).run(main)


def test_an_exception_of_a_class_from_main_is_the_same_class_on_the_driver(tmp_path, no_torch):
    (tmp_path / "types.py").touch()  # Beside a script this does no harm: nor in its ranks.
    done = run_script(
        tmp_path,
        """
        from sparkdl_runner import HorovodRunner, WorkerFailedError

        class DataError(Exception):
            pass

        def main():
            raise DataError("mine")

        try:
            HorovodRunner(np=-1).run(main)
        except WorkerFailedError as error:
            print(type(error.__cause__) is DataError, error.__cause__)
        """,
        PYTHONPATH=no_torch,
    )
    assert done.stdout == "True mine\n"


@LIGHT
def test_a_value_that_cannot_be_pickled_is_one_sentence():
    with pytest.raises(NotPicklableError, match="rank 0 returned, a lock, cannot be pickled"):
        HorovodRunner(np=-2).run(rank_functions.return_unpicklable)


@LIGHT
def test_an_exception_without_a_text_is_still_the_functions():
    class Wordless(Exception):  # noqa: N818
        def __str__(self):
            raise RuntimeError

    def main():
        raise Wordless

    with pytest.raises(WorkerFailedError, match=r"raised Wordless: .*its __str__ raised"):
        HorovodRunner(np=-1).run(main)


@LIGHT
@pytest.mark.parametrize("child_raises", [False, True])
def test_only_the_rank_speaks_for_the_rank(child_raises, capfd):
    def main():
        import os

        child = os.fork()
        if child == 0:
            if child_raises:
                raise ValueError("in the child")
            return "the child's value"
        os.waitpid(child, 0)
        return "the rank's value"

    assert HorovodRunner(np=-1).run(main) == "the rank's value"
    assert ("ValueError: in the child" in capfd.readouterr().out) == child_raises


@LIGHT
def test_sys_exit_with_0_is_a_return_and_with_another_code_a_failure():
    assert HorovodRunner(np=-1).run(sys.exit) is None
    with pytest.raises(WorkerFailedError, match="SystemExit: 3"):
        HorovodRunner(np=-1).run(lambda: sys.exit(3))


@LIGHT
def test_running_inside_a_rank_is_refused():
    def nested():
        HorovodRunner(np=-1).run(log_to_driver, message="never")

    with pytest.raises(WorkerFailedError, match="called inside rank 0 of another run"):
        HorovodRunner(np=-1).run(nested)


def test_without_horovod_the_command_that_provides_it_is_named(tmp_path):
    """A real Python without Horovod: one whose path leaves site-packages out, but for the rest."""
    done = run_script(
        tmp_path,
        """
        import sys
        from importlib.machinery import PathFinder

        class WithoutHorovod(PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                return None if name == "horovod" else super().find_spec(name, path, target)

        sys.meta_path = [f for f in sys.meta_path if f is not PathFinder] + [WithoutHorovod]
        from sparkdl_runner import DistributedRunner, HorovodRunner
        try:
            HorovodRunner(np=-1).run(print)
        except Exception as error:
            print(type(error).__name__, error)
        print(DistributedRunner(num_proc=-1, backend="torch").run(lambda: "works"))
        """,
    )
    assert "LaunchError Horovod is not installed here: run sparkdl-runner build" in done.stdout
    assert done.stdout.endswith("works\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_driver_leaves_no_process(tmp_path, number, no_torch):
    script = tmp_path / "script.py"
    script.write_text(
        "import rank_functions\nfrom sparkdl_runner import HorovodRunner\n"
        "def main():\n"
        "    import subprocess\n"
        "    subprocess.Popen(['sleep', '4712'])\n"
        "    print('started')\n"
        "    rank_functions.sleep_in_ranks(600)\n"
        "HorovodRunner(np=-2).run(main)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([no_torch, *sys.path])}
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    assert {driver.stdout.readline()[-9:-1] for _ in range(2)} == {" started"}
    processes = psutil.Process(driver.pid).children(recursive=True)
    assert len(processes) >= 4
    driver.send_signal(number)
    driver.wait(300)
    driver.stdout.close()
    assert not still_running(processes)
    assert wait_until_gone("4712")


@LIGHT
def test_lambda_travels_from_a_thread_of_its_own():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(HorovodRunner(np=-1).run, lambda: 42).result() == 42


def test_launch_error_is_a_runner_error():
    assert issubclass(LaunchError, RuntimeError)
