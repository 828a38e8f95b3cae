from __future__ import annotations

import pytest

from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.spark_failure import explain

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


def test_a_worker_failure_that_only_spark_could_report_keeps_all_its_lines():
    text = (
        "sparkdl_runner.errors.WorkerFailedError: Rank 1 raised X\n\nTraceback of rank 1:\n  here"
    )
    error = explain(from_task(text), python="python3")
    assert type(error) is RunnerError
    assert "Rank 1 raised X" in str(error)
    assert "Traceback of rank 1:" in str(error)


def test_an_executor_with_another_python_is_explained():
    error = explain(from_task("ModuleNotFoundError: No module named 'psutil'"), python="python3")
    assert isinstance(error, LaunchError)
    assert "(python3) has no module 'psutil'" in str(error)
    assert "PYSPARK_PYTHON" in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bigger than spark.driver.maxResultSize (1024.0 MiB)", "Write large things to shared"),
        ("Job 3 cancelled as part of cancellation of all jobs", "was cancelled"),
        (
            "x\nExecutorLostFailure (executor 1 exited)\ny",
            "had finished: ExecutorLostFailure (executor 1 exited)",
        ),
    ],
)
def test_known_reasons_are_named(text, words):
    assert words in str(explain(RuntimeError(text), python="python3"))


def test_an_unknown_reason_keeps_sparks_own_words():
    assert "something new\nin two lines" in str(
        explain(RuntimeError("something new\nin two lines"), python="python3")
    )
