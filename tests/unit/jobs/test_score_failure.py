"""What is told of a failed scoring: the reason alone, of what Spark says around it."""

from __future__ import annotations

import pytest

from sparkdl_runner.jobs.scoring.failure import cause

OF_SPARK = """An error occurred while calling o99.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 1.0: o.a.s.api.python.PythonException: \
Traceback (most recent call last):
  File "models/utils.py", line 1054, in _reshape
ValueError: all the input array dimensions must match

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "pyfunc/__init__.py", line 744, in _validate
mlflow.exceptions.MlflowException: Failed to enforce schema of data '             0
0  [a secret row]
1  [another one]' with schema '[Tensor ('float32', (-1, 3))]'. Error: The column
cannot be brought into (-1, 3).

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
\t... 1 more
"""


def test_the_innermost_reason_is_told_without_rows_and_stacks():
    assert cause(RuntimeError(OF_SPARK)) == "The column cannot be brought into (-1, 3)"


@pytest.mark.parametrize("count", [1, 3, 61, 200])
def test_no_row_is_told_however_many_there_are(count):
    import pandas as pd

    # pandas shows a blank line and how many there are below more than 60.
    rows = pd.DataFrame({"v": ["secret. Error: '"] * count, "w": [[7.0, 7.0]] * count})
    before, shown, after = OF_SPARK.partition("             0\n0  [a secret row]\n1  [another one]")
    assert shown
    said = cause(RuntimeError(f"{before}{rows}{after}"))
    assert said == "The column cannot be brought into (-1, 3)"


def test_no_row_is_told_where_the_reason_is_missing():
    said = cause(RuntimeError(OF_SPARK.partition("' with schema")[0]))
    assert "secret" not in said


def test_a_reason_of_javas_is_told_where_no_python_failed():
    told = (
        "An error occurred\norg.apache.hadoop.AccessException: no right to /x\n\tat a.B.c(D.java:1)"
    )
    assert cause(RuntimeError(told)).endswith("no right to /x")


def test_an_error_without_words_has_its_name():
    assert cause(KeyError()) == "KeyError"
