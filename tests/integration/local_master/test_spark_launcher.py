"""Positive np: barrier tasks of a real Spark application, on ``local[2]``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
import rank_functions

from processes import running, wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    HorovodRunner,
    LaunchError,
    NotPicklableError,
    RunConfig,
    RunnerError,
    WorkerDiedError,
    WorkerFailedError,
    current_world,
)
from sparkdl_runner.launch.driver.log_server import LogServer
from sparkdl_runner.launch.driver.spark import start_notices
from sparkdl_runner.launch.wire import network
from sparkdl_runner.launch.wire.channel import ChannelAddress

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("spark")]
LIGHT = pytest.mark.usefixtures("light_spark_ranks")


@pytest.mark.parametrize(
    ("backend", "train"),
    [("horovod", rank_functions.train_with_horovod), ("torch", rank_functions.train_with_ddp)],
)
def test_unmodified_training_code_ends_with_equal_weights(backend, train):
    weights, of_rank_1 = DistributedRunner(num_proc=2, backend=backend).gather(train)
    assert len(weights) == 2
    assert weights[0] == weights[1]
    assert weights == of_rank_1


def test_ranks_are_processes_below_sparks_and_know_no_secret_of_its():
    told = HorovodRunner(np=2).run(rank_functions.describe)
    assert [row[:3] for row in told["ranks"]] == [[0, 0, 2], [1, 1, 2]]
    assert os.getpid() not in {row[4] for row in told["ranks"]}
    assert told["world"]["address"] == "127.0.0.1"
    assert told["threads"] == "1"  # spark.task.cpus
    assert told["secrets"] == []
    assert "pyspark" not in told["modules"]


@LIGHT
def test_the_drivers_variables_and_module_path_reach_ranks(monkeypatch, tmp_path):
    """Set after the session has started."""

    def look():
        import os
        import subprocess
        import sys

        names = ("NCCL_DEBUG", "MY_FLAG", "MY_TOKEN")
        child = [sys.executable, "-c", "import run_time_module"]
        return [os.environ.get(name) for name in names], subprocess.run(child).returncode

    (tmp_path / "run_time_module.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    asked = RunConfig(environment={"MY_FLAG": "1"})
    runner = DistributedRunner(num_proc=1, backend="horovod", run_config=asked)
    assert runner.run(look) == (["WARN", "1", None], 0)


@LIGHT
def test_sparks_python_processes_are_left_as_they_were(spark):
    def look(_):
        import os
        import sys
        import threading

        yield (
            sorted(os.environ),
            sorted({"torch", "horovod"} & set(sys.modules)),
            os.getcwd(),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
        )

    def states():
        return spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()

    def start_what_leaves_the_group():
        import subprocess

        subprocess.Popen(["sleep", "4715"], start_new_session=True)

    # The first run loads this package's own modules.
    HorovodRunner(np=2).run(start_what_leaves_the_group)
    before = states()
    for _ in range(3):
        HorovodRunner(np=2).run(start_what_leaves_the_group)
    assert wait_until_gone("4715")
    wait_for(lambda: states() == before)
    assert all(not heavy for _, heavy, *_ in before)


def read_what_spark_sent():
    import pyspark

    in_archive = Path(pyspark.SparkFiles.get("sent-archive"), "sent.txt").read_text()
    in_folder = Path(os.environ["SPARKDL_RUNNER_SPARK_FILES"], "sent.txt").read_text()
    return Path(pyspark.SparkFiles.get("sent.txt")).read_text(), in_archive, in_folder


@LIGHT
def test_files_and_archives_that_spark_sent_are_found_in_ranks(spark, tmp_path):
    (tmp_path / "sent.txt").write_text("words")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path, "sent.txt")
    spark.sparkContext.addFile(str(tmp_path / "sent.txt"))
    spark.sparkContext.addArchive(f"{archive}#sent-archive")
    for num_proc in (1, -1):
        found = HorovodRunner(np=num_proc).run(read_what_spark_sent)
        assert found == ("words", "words", "words")


@LIGHT
def test_np_0_takes_all_slots():
    with pytest.warns(DeprecationWarning, match="np=0"):
        runner = HorovodRunner(np=0)
    assert runner.run(rank_functions.world_size) == 2


@LIGHT
def test_functions_of_a_notebook_travel():
    # What a cell defines lives in __main__ and refers to names of the cell.
    cell = {"__name__": "__main__"}
    exec("offset = 5\ndef double(x): return 2 * x\ndef main(a): return double(a) + offset", cell)
    assert HorovodRunner(np=1).run(cell["main"], a=2) == 9


@LIGHT
@pytest.mark.parametrize("verbosity", ["log_callback_only", "all"])
def test_what_reaches_the_driver_is_what_was_asked_for(verbosity, capfd):
    HorovodRunner(np=2, driver_log_verbosity=verbosity).run(rank_functions.speak)
    lines = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        assert f"[rank {rank}] message of {rank} " + "x" * 3987 in lines
        printed = [f"printed by {rank}", f"complaint of {rank}", "100%", "no newline at the end"]
        shown = [f"[rank {rank}] {text}" in lines for text in printed]
        assert shown == [verbosity == "all"] * 4


@LIGHT
@pytest.mark.one_lane
def test_output_arrives_while_the_run_is_going(capfd, tmp_path):
    has_arrived, is_over = tmp_path / "has arrived", threading.Event()

    def main():
        import time

        print("early", flush=True)
        deadline = time.monotonic() + 120
        while not has_arrived.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return has_arrived.exists()

    def watch():
        while "early" not in capfd.readouterr().out and not is_over.wait(0.05):
            pass
        if not is_over.is_set():
            has_arrived.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert HorovodRunner(np=1, driver_log_verbosity="all").run(main)
    finally:
        is_over.set()
        watcher.join()


@pytest.mark.parametrize(("backend", "rank"), [("horovod", 0), ("torch", 1)])
def test_an_exception_in_any_rank_is_raised_with_its_traceback(backend, rank, spark):
    runner = DistributedRunner(num_proc=2, backend=backend)
    with pytest.raises(WorkerFailedError) as caught:
        runner.run(rank_functions.fail_in_rank, backend, rank, how="raise")
    error = caught.value
    assert error.rank == rank
    assert error.host
    assert isinstance(error.__cause__, ValueError)
    assert f"raised ValueError: the data of rank {rank} is bad" in str(error)
    assert "in fail_in_rank" in error.remote_traceback
    assert "about to raise" in error.output_tail
    # Both slots are free again, and Spark is unharmed.
    assert spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(list).count() == 2


@LIGHT
@pytest.mark.one_lane
def test_a_failure_is_the_same_where_the_driver_cannot_be_reached(monkeypatch):
    closed = network.listen("127.0.0.1")
    address = ChannelAddress(host="127.0.0.1", port=closed.getsockname()[1], key=bytes(32))
    closed.close()
    monkeypatch.setattr(LogServer, "channel", address)
    with pytest.raises(WorkerFailedError, match="with a child") as caught:
        HorovodRunner(np=2).run(rank_functions.start_a_sleeper_and_fail)
    assert caught.value.rank == 1
    assert "in start_a_sleeper_and_fail" in caught.value.remote_traceback


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=pytest.mark.one_lane), "torch"])
def test_a_killed_rank_is_the_cause_and_its_peers_loss_the_consequence(backend):
    runner = DistributedRunner(num_proc=2, backend=backend)
    with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
        runner.run(rank_functions.fail_in_rank, backend=backend, rank=1, how="kill")
    assert caught.value.rank == 1


@LIGHT
def test_what_a_failed_rank_has_started_ends_with_it():
    with pytest.raises(WorkerFailedError, match="with a child"):
        HorovodRunner(np=2).run(rank_functions.start_a_sleeper_and_fail)
    assert wait_until_gone("4711")


def test_more_ranks_than_slots_is_told_at_once():
    runner = DistributedRunner(num_proc=3, run_config=RunConfig(slot_wait_seconds=600))
    started = time.monotonic()
    with pytest.raises(LaunchError, match=r"3 ranks need 3 task slots .* has 2 .*local\[3\]"):
        runner.run(print)
    assert time.monotonic() - started < 300, "it has waited for slots that cannot come"


@LIGHT
def test_slots_that_are_busy_are_waited_for_and_the_job_that_uses_them_is_named(
    spark, monkeypatch, capsys, tmp_path
):
    began, may_end = tmp_path / "began", tmp_path / "may-end"

    def occupy(_):
        import time

        began.touch()
        while not may_end.exists():
            time.sleep(0.05)

    told = []

    def is_told():
        told.append(capsys.readouterr().err)
        named = r"waiting until 2 slots are free at once\. .* use slots: job \d+ \(foreach at "
        return re.search(named, "".join(told))

    monkeypatch.setattr(start_notices, "FIRST_LOOK_SECONDS", 0.5)
    with ThreadPoolExecutor(2) as pool:
        busy = pool.submit(spark.sparkContext.parallelize(range(1), 1).foreach, occupy)
        try:
            wait_for(began.exists)
            waiting = pool.submit(HorovodRunner(np=2).run, rank_functions.world_size)
            wait_for(is_told)
        finally:
            may_end.touch()
        assert waiting.result() == 2
        busy.result()


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@LIGHT
def test_a_thread_other_than_the_main_one_can_run():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(HorovodRunner(np=2).run, rank_functions.world_size).result() == 2


def test_calling_from_inside_a_spark_task_is_refused(spark):
    def call(_):
        from sparkdl_runner import HorovodRunner, LaunchError

        for np in (1, -1):
            try:
                HorovodRunner(np=np).run(print)
            except LaunchError as error:
                yield str(error)

    told = spark.sparkContext.parallelize(range(1), 1).mapPartitions(call).collect()
    assert len(told) == 2
    assert all("called inside a Spark task; it must be called on the driver" in t for t in told)


def test_a_function_that_refers_to_the_session_is_told_its_name(spark):
    def main():
        return spark.range(3).count()

    with pytest.raises(NotPicklableError, match="the enclosing function's variable 'spark'"):
        HorovodRunner(np=2).run(main)


@LIGHT
@pytest.mark.one_lane
def test_a_value_that_cannot_be_pickled_is_one_sentence():
    with pytest.raises(NotPicklableError, match="rank 0 returned, a lock, cannot be pickled"):
        HorovodRunner(np=2).run(rank_functions.return_unpicklable)


@LIGHT
def test_a_large_value_arrives():
    value = HorovodRunner(np=2).run(lambda: bytes(range(256)) * 200_000)
    assert value == bytes(range(256)) * 200_000


@LIGHT
def test_values_that_would_end_the_jvm_come_by_the_channel(spark):
    heap_bytes = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
    value = HorovodRunner(np=2).run(lambda: b"end".rjust(heap_bytes // 8))
    assert value == b"end".rjust(heap_bytes // 8)
    runner = DistributedRunner(num_proc=2, backend="horovod")
    del value
    values = runner.gather(lambda: bytes([current_world().rank]) * (heap_bytes // 16))
    assert [(len(one), one[:1], one[-1:]) for one in values] == [
        (heap_bytes // 16, bytes([rank]), bytes([rank])) for rank in range(2)
    ]


@LIGHT
@pytest.mark.one_lane
def test_a_large_function_is_taken_back_from_sparks_memory(spark):
    def held_bytes():
        most_and_left = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().head()._2()
        return most_and_left._1() - most_and_left._2()

    data = os.urandom(16 << 20)
    before = held_bytes()
    assert HorovodRunner(np=2).run(lambda: len(data)) == len(data)
    wait_for(lambda: held_bytes() < before + len(data) // 2)


@LIGHT
@pytest.mark.parametrize("how", ["job group", "all jobs"])
def test_a_cancelled_run_leaves_no_process(spark, how):
    context = spark.sparkContext
    ended = []

    def run():
        context.setJobGroup("to be cancelled", "a run")
        try:
            HorovodRunner(np=2).run(rank_functions.sleep_in_ranks, seconds=600)
        except RunnerError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: len(workers()) >= 4)
    if how == "job group":
        context.cancelJobGroup("to be cancelled")
    else:
        context.cancelAllJobs()
    thread.join(300)
    assert not thread.is_alive()
    assert ended == ["The Spark job was cancelled before the ranks had finished."]
    assert wait_until_gone("sparkdl_runner.launch.worker")


@pytest.mark.parametrize(
    ("master", "number"),
    [
        ("local[2]", signal.SIGINT),
        pytest.param("local[2]", signal.SIGKILL, marks=pytest.mark.one_lane),
        pytest.param("local-cluster[2,1,1024]", signal.SIGKILL, marks=pytest.mark.one_lane),
    ],
)
def test_an_interrupted_or_killed_driver_leaves_no_process(tmp_path, master, number, no_torch):
    script = tmp_path / "script.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "from sparkdl_runner import HorovodRunner\n"
        "def main():\n"
        "    import subprocess, time\n"
        "    subprocess.Popen(['sleep', '4713'])\n"
        "    time.sleep(600)\n"
        f"SparkSession.builder.master({master!r}).getOrCreate()\n"
        "try:\n"
        "    HorovodRunner(np=2).run(main)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        env={
            **os.environ,
            "PYTHONPATH": no_torch,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        while len(running("4713")) < 2:
            assert driver.poll() is None
            time.sleep(0.05)
        driver.send_signal(number)
        # One that is interrupted ends its ranks first, so it says itself when they are to be gone.
        driver.wait(300)
        assert wait_until_gone("4713")
        assert wait_until_gone("sparkdl_runner.launch.worker")
        said = driver.stdout.read()
    assert said == ("interrupted\n" if number == signal.SIGINT else "")


@pytest.mark.one_lane
@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("local[2]", "value 2\n"),
        ("local-cluster[2,1,1024]", "RunnerError The driver was silent: rank "),
    ],
)
def test_a_driver_that_was_suspended_is_waited_for_or_told_of(tmp_path, master, said, no_torch):
    """Ranks of its own host go on. Others cannot know that it lives."""
    script, is_awake = tmp_path / "script.py", tmp_path / "is awake"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "from sparkdl_runner import DistributedRunner, RunConfig, RunnerError\n"
        "def main():\n"
        "    import os, time\n"
        f"    while not os.path.exists({str(is_awake)!r}):\n"
        "        time.sleep(0.1)\n"
        "    return 'value 2'\n"
        f"SparkSession.builder.master({master!r}).getOrCreate()\n"
        "config = RunConfig(heartbeat_timeout_seconds=8, require_collectives=False)\n"
        "try:\n"
        "    print(DistributedRunner(num_proc=2, backend='horovod', run_config=config).run(main))\n"
        "except RunnerError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        env={
            **os.environ,
            "PYTHONPATH": no_torch,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        for line in driver.stderr:
            if "2 ranks on" in line:
                break
        driver.send_signal(signal.SIGSTOP)
        if master == "local[2]":
            time.sleep(20)  # Longer than the twice as long after which others end their ranks.
        else:
            assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
        driver.send_signal(signal.SIGCONT)
        is_awake.touch()
        assert driver.communicate()[0].startswith(said)


@LIGHT
def test_the_job_keeps_its_description_and_the_caller_keeps_theirs(spark):
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", "mine")
    try:
        HorovodRunner(np=1).run(os.getpid)
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setLocalProperty("spark.job.description", None)
    assert not list(context.getJobTags())
