"""Why Spark ended a stage, in a sentence, from what is often two hundred lines of Java."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner import errors
from sparkdl_runner.launch.driver.consequences import consequences
from sparkdl_runner.launch.driver.diagnosis import to_error
from sparkdl_runner.launch.driver.spark import java
from sparkdl_runner.launch.driver.spark.context import settings_of
from sparkdl_runner.launch.driver.spark.executors import tasks_of
from sparkdl_runner.launch.driver.spark.sizes import LESS_TO_CARRY
from sparkdl_runner.launch.wire.failure_report import UnheardFailureError
from sparkdl_runner.launch.wire.outcome import Outcome

if TYPE_CHECKING:
    from pyspark import SparkContext

# As a classic session says it, and in three ways Spark Connect.
_CANCELLED = (
    r"\bcancelled\b|\[OPERATION_CANCELED\]|\[INVALID_HANDLE\.SESSION_CLOSED\]|"
    r"\[INVALID_HANDLE\.OPERATION_ABANDONED\]|StatusCode\.CANCELLED"
)
# No stage has more ranks.
MOST_TASKS = 1 << 20


def explain(
    error: Exception,
    *,
    python: str,
    failures: Sequence[Outcome] = (),
    application_end: str = "",
    host: str = "",
    function_bytes: int = 0,
) -> errors.RunnerError:
    """Makes an error that a person can act on.

    Args:
        error: What pyspark raised.
        python: The Python that Spark starts on executors.
        failures: What ranks have reported; none of it is the cause.
        application_end: See ``end_of``.
        host: Where the task ran that failed; see ``host_of_task``.
        function_bytes: How large the function is, with its arguments, pickled.

    Returns:
        The error to raise in its place. Where the reason is not a known one, it is followed by
        Spark's own words.
    """
    text = java.text_of(error)
    raised = java.raised_in_task(text)
    if raised is not None:
        name, message = raised
        if name.endswith(UnheardFailureError.__name__):
            cause = UnheardFailureError.outcome(message)
            return to_error(cause, [cause, *failures])
        if name.startswith(errors.__name__ + "."):
            kind = getattr(errors, name.rpartition(".")[2])
            if issubclass(kind, errors.LaunchError):
                return errors.LaunchError(message)
            return errors.RunnerError(message)
        missing = re.fullmatch(r"No module named '([\w.]+)'", message)
        if missing:
            return errors.LaunchError(
                f"The Python that Spark starts on executors ({python}) has no module "
                f"{missing.group(1)!r}, which sparkdl_runner needs there. Set PYSPARK_PYTHON to "
                "the Python in which sparkdl_runner is installed, before the session starts; on a "
                "cluster, install it on every host."
            )
    if found := re.search(rf'Cannot run program "{re.escape(python)}"[^\n]*', text):
        return errors.LaunchError(
            f"{_on(host)} cannot start {python}: {found[0].rstrip('.')}. Set PYSPARK_PYTHON to a "
            "Python that all hosts have, before the session starts."
        )
    if found := re.search(r"Error from python worker:\s*([^\n]+)", text):
        return errors.LaunchError(
            f"{_on(host)} cannot start Spark's worker by {python}: {found[1].rstrip('.')}. Set "
            "PYSPARK_PYTHON to the Python in which sparkdl_runner and pyspark are installed, "
            "before the session starts; on a cluster, install it on every host, or send one along "
            "(--archives with venv-pack)."
        )
    if found := re.search(r"Python in worker has different version[^\n]*", text):
        return errors.LaunchError(
            f"{_on(host)} starts {python}, another version of Python than the driver's "
            f"{platform.python_version()} ({found[0].rstrip('.')}). Set PYSPARK_PYTHON to a Python "
            "of the driver's version that all hosts have, before the session starts, or send one "
            "along (--archives with venv-pack)."
        )
    if re.search(r"calling \S+\.broadcast\b[^\n]*\s+: java\.lang\.OutOfMemoryError", text):
        return errors.LaunchError(
            f"The function and its arguments take {function_bytes / 1e6:,.0f} MB pickled, and "
            "Spark's driver has no room for them. "
            + LESS_TO_CARRY.format(setting="spark.driver.memory")
        )
    if re.search(r"Failed to get broadcast_\d+_piece\d+ of broadcast", text):
        return errors.LaunchError(
            f"{_on(host)} could not get the function and its arguments, which take "
            f"{function_bytes / 1e6:,.0f} MB pickled: probably its memory is too small for them. "
            + LESS_TO_CARRY.format(setting="spark.executor.memory")
        )
    if "spark.driver.maxResultSize" in text:
        return errors.ResultTooLargeError(
            "The value that rank 0 returned is larger than spark.driver.maxResultSize allows. "
            "Write large things to shared storage and return their path, or raise that setting."
        )
    if application_end:
        return errors.RunCancelledError(
            f"The Spark application ended before the ranks had finished: {application_end}."
        )
    if re.search(_CANCELLED, text):
        return errors.RunCancelledError(
            "The Spark job was cancelled before the ranks had finished."
        )
    return errors.RunnerError(
        "\n\n".join(
            [
                f"Spark ended the run before the ranks had finished: {_stage_failure(text)}",
                *consequences(failures),
                f"Spark's own words:\n{text}",
            ]
        )
    )


def first_task_failure(context: SparkContext, tag: str) -> str:
    """Why the first task of a job failed that did, in Spark's words; empty if none has."""
    failures = []
    with suppress(Exception):  # The session has ended.
        for task in tasks_of(context, tag):
            if task.status() == "FAILED" and task.errorMessage().isDefined():
                seconds = task.launchTime().getTime() + task.duration().get()
                failures.append((seconds, str(task.errorMessage().get())))
    return min(failures, default=(0, ""))[1]


def host_of_task(context: SparkContext, error: Exception) -> str:
    """The host of the barrier task whose failure ended a stage; empty if Spark does not say."""
    found = re.search(r"\bResultTask\((\d+), (\d+)\)", java.text_of(error))
    if found is None:
        return ""
    stage, partition = map(int, found.groups())
    try:
        tasks = context._jsc.sc().statusStore().taskList(stage, 0, MOST_TASKS)
        task = next(
            candidate
            for i in range(tasks.size())
            if (candidate := tasks.apply(i)).index() == partition
        )
        return str(task.host())
    except Exception:  # Spark has forgotten the stage, or has ended.
        return ""


def _on(host: str) -> str:
    return f"The executor on host {host}" if host else "An executor"


def failed_partition(error: Exception) -> int | None:
    """The partition of the task whose failure ended a barrier stage, if Spark says."""
    found = re.search(r"\bbarrier task ResultTask\(\d+, (\d+)\)", java.text_of(error))
    return None if found is None else int(found[1])


def executor_loss(error: Exception, context: SparkContext | None = None) -> str:
    """Why Spark ended a stage if it lost an executor or a task's Python; else empty.

    Args:
        error: What pyspark raised.
        context: Whose settings say how large an executor's container is.
    """
    text = java.text_of(error)
    if "Python worker exited unexpectedly" in text:
        return "the Python process of its Spark task was killed, perhaps for want of memory"
    # Kubernetes' reasons begin with an empty line.
    pattern = r"ExecutorLostFailure \(([^)\n]*)\)(?: Reason: \s*([^\n]*))?"
    found = re.search(pattern, text)
    if found is None:
        return ""
    reason = (found[2] or "").rstrip(". ")
    loss = found[1] + (f" ({reason})" if reason else "")
    # Of the container's state, which Kubernetes tells below.
    if "termination reason: OOMKilled" in text:
        loss += (
            f". Its container was over its memory limit{_container_memory(context)}: raise "
            "spark.executor.memoryOverhead, or use less: smaller batches, a smaller "
            "memory_budget_bytes"
        )
    return loss


def _container_memory(context: SparkContext | None) -> str:
    """The settings by which an executor's container is as large as it is, to follow its limit."""
    if context is None:
        return ""
    heap = "spark.executor.memory"
    overhead = "spark.executor.memoryOverhead"
    settings = settings_of(context)
    try:
        return f" ({heap}={settings.get(heap, '1g')}, {overhead}={settings.get(overhead, 'unset')})"
    except Exception:  # The JVM has ended.
        return ""


def _stage_failure(text: str) -> str:
    for reason in ("ExecutorLostFailure", "Job aborted", "Lost task"):
        found = re.search(rf"{reason}[^\n]*", text)
        if found:
            return found.group(0)
    return text.strip().partition("\n")[0]
