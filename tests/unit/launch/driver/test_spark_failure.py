from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import LaunchError, RunCancelledError, WorkerFailedError
from sparkdl_runner.launch.driver.spark.failure import (
    executor_loss,
    explain,
    failed_partition,
)
from sparkdl_runner.launch.wire.failure_report import UnheardFailureError
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

JAVA = "\n\n\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:572)\n"


def from_task(last_lines: str) -> Exception:
    return RuntimeError(
        "An error occurred while calling collectAndServe.\n: org.apache.spark.SparkException: Job "
        "aborted due to stage failure: Could not recover from a failed barrier ResultStage.\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n    process()\n' + last_lines + JAVA
    )


def test_an_error_of_ours_keeps_its_kind_and_its_sentence():
    text = "sparkdl_runner.errors.LaunchError: GPU 0 was given to two ranks."
    error = explain(from_task(text), python="python3")
    assert type(error) is LaunchError
    assert str(error) == "GPU 0 was given to two ranks."


WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")], backend="torch"
)[0]


@pytest.mark.parametrize("ending", ["", "\n SQLSTATE: 38000"])
def test_a_failure_that_only_spark_could_report_is_what_it_would_have_been(ending):
    outcome = Outcome(
        world=WORLD,
        status=Status.FAILED,
        ended_at=0.0,
        exception="ValueError",
        message="bad",
        traceback="Traceback (most recent call last):\n  here\nValueError: bad",
    )
    text = (
        f"sparkdl_runner.launch.wire.outcome.UnheardFailureError: {UnheardFailureError.of(outcome)}"
    )
    error = explain(from_task(text + ending), python="python3")
    assert isinstance(error, WorkerFailedError)
    assert error.rank == 0
    assert error.remote_traceback == outcome.traceback


def test_ranks_that_lost_a_peer_are_consequences_of_what_spark_says():
    lost = Outcome(
        world=WORLD,
        status=Status.FAILED,
        ended_at=0.0,
        exception="HorovodInternalError",
        is_communication_error=True,
    )
    text = "x\nExecutorLostFailure (executor 1 exited)\ny"
    said = str(explain(RuntimeError(text), python="python3", failures=[lost]))
    assert said.startswith("Spark ended the run before the ranks had finished: ExecutorLostFailure")
    assert "As a consequence:\n  rank 0 on host h lost its peers (HorovodInternalError)" in said


def test_an_executor_with_another_python_is_explained():
    error = explain(from_task("ModuleNotFoundError: No module named 'psutil'"), python="python3")
    assert isinstance(error, LaunchError)
    assert "(python3) has no module 'psutil'" in str(error)
    assert "PYSPARK_PYTHON" in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'java.io.IOException: Cannot run program "python3": error=2, No such file',
            'An executor cannot start python3: Cannot run program "python3": error=2, No such',
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than 3.11",
            "An executor starts python3, another version of Python than the driver's",
        ),
    ],
)
def test_an_executor_whose_python_does_not_serve_is_a_launch_error(text, words):
    error = explain(RuntimeError(text), python="python3")
    assert isinstance(error, LaunchError)
    assert words in str(error)
    assert "Set PYSPARK_PYTHON" in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bigger than spark.driver.maxResultSize (1024.0 MiB)", "Write large things to shared"),
        ("Job 3 cancelled as part of cancellation of all jobs", "was cancelled"),
        (
            "Job aborted: reason.\nExecutorLostFailure (executor 1 exited)\ny",
            "had finished: ExecutorLostFailure (executor 1 exited)",
        ),
    ],
)
def test_known_reasons_are_named(text, words):
    assert words in str(explain(RuntimeError(text), python="python3"))


def test_a_function_that_the_drivers_heap_cannot_hold_is_told_with_its_size():
    text = "An error occurred while calling o19.broadcast.\n: java.lang.OutOfMemoryError: Java heap"
    error = explain(RuntimeError(text), python="python3", function_bytes=450_000_000)
    assert isinstance(error, LaunchError)
    assert "its arguments take 450 MB pickled" in str(error)
    assert "spark.driver.memory" in str(error)


def test_a_task_whose_python_was_killed_is_a_lost_one_and_has_a_partition():
    error = RuntimeError(
        "Most recent failure reason: Stage failed because barrier task ResultTask(4, 1) finished "
        "unsuccessfully.\norg.apache.spark.SparkException: Python worker exited unexpectedly"
    )
    assert executor_loss(error).startswith("the Python process of its Spark task was killed")
    assert failed_partition(error) == 1
    assert failed_partition(RuntimeError("Job 0 cancelled")) is None


def test_a_function_that_an_executor_cannot_get_is_told_with_its_size():
    text = "[INTERNAL_ERROR_BROADCAST] Failed to get broadcast_0_piece36 of broadcast_0"
    error = explain(RuntimeError(text), python="python3", host="h7", function_bytes=450_000_000)
    assert isinstance(error, LaunchError)
    assert str(error).startswith("The executor on host h7 could not get the function and its arg")
    assert "take 450 MB pickled" in str(error)
    assert "spark.executor.memory" in str(error)


def test_an_application_that_has_ended_is_named_whatever_py4j_says():
    error = RuntimeError("Job 0 cancelled because SparkContext was shut down")
    said = str(explain(error, python="python3", application_end="its session was stopped"))
    assert said.endswith("ended before the ranks had finished: its session was stopped.")


def test_an_error_whose_text_only_a_dead_jvm_knows():
    class Py4JJavaError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    assert executor_loss(Py4JJavaError()) == ""
    said = explain(Py4JJavaError(), python="python3", application_end="its JVM died")
    assert type(said) is RunCancelledError
    assert str(said).endswith("had finished: its JVM died.")


def test_an_unknown_reason_keeps_sparks_own_words():
    assert "something new\nin two lines" in str(
        explain(RuntimeError("something new\nin two lines"), python="python3")
    )


def test_the_loss_of_an_executor_is_told_in_sparks_words_without_its_stack():
    text = (
        "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited caused by one of "
        "the running tasks) Reason: Command exited with code 137\n"
        "Driver stacktrace:\n\tat org.apache.spark.DAGScheduler(DAGScheduler.scala:2856)\n"
    )
    assert executor_loss(RuntimeError(text)) == (
        "executor 1 exited caused by one of the running tasks (Command exited with code 137)"
    )
    of_kubernetes = text.replace(
        "Command exited with code 137",
        "\nThe executor with id 1 exited with exit code 137(SIGKILL, possible container OOM).\n\n",
    )
    assert executor_loss(RuntimeError(of_kubernetes)).endswith(
        "(The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM))"
    )
    assert executor_loss(RuntimeError("something else")) == ""


def test_a_pod_over_its_memory_is_told_with_its_limit_and_the_setting():
    text = (
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: \n"
        "The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM).\n\n"
        "The API gave the following container statuses:\n\n\n\t container state: terminated\n"
        "\t exit code: 137\n\t termination reason: OOMKilled\n      \n"
        "Driver stacktrace:\n\tat org.apache.spark.DAGScheduler(DAGScheduler.scala:2856)\n"
    )
    given = {"spark.executor.memory": "600m", "spark.executor.memoryOverhead": "1500m"}
    context = SimpleNamespace(_conf=given)
    assert executor_loss(RuntimeError(text), context).endswith(
        "(The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM)). Its "
        "container was over its memory limit (spark.executor.memory=600m, "
        "spark.executor.memoryOverhead=1500m): raise spark.executor.memoryOverhead, or use less: "
        "smaller batches, a smaller memory_budget_bytes"
    )
    del given["spark.executor.memoryOverhead"]
    assert "memoryOverhead=unset)" in executor_loss(RuntimeError(text), context)


def test_a_jvm_that_has_ended_is_not_asked_why_an_executor_was_lost():
    class Ended:
        def get(self, *_: str) -> str:
            raise ConnectionRefusedError

    context = SimpleNamespace(_conf=Ended())
    assert executor_loss(ConnectionResetError("Answer from Java side is empty"), context) == ""
    lost = "ExecutorLostFailure (executor 1 exited) Reason: termination reason: OOMKilled"
    assert "memory limit: raise" in executor_loss(RuntimeError(lost), context)


def test_a_python_without_pyspark_is_named():
    text = (
        "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. "
        "Most recent failure reason: Stage failed because barrier task ResultTask(0, 0) finished "
        "unsuccessfully.\norg.apache.spark.SparkException: \nError from python worker:\n"
        "  /usr/bin/python3: No module named pyspark\nPYTHONPATH was:\n  /jars/spark-core.jar\n"
    )
    error = explain(RuntimeError(text), python="/usr/bin/python3", host="one")
    assert type(error) is LaunchError
    assert str(error).startswith(
        "The executor on host one cannot start Spark's worker by /usr/bin/python3: "
        "/usr/bin/python3: No module named pyspark. Set PYSPARK_PYTHON to the Python in which "
    )
