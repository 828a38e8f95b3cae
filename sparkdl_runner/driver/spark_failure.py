"""Why Spark ended a stage, in a sentence, from what is often two hundred lines of Java."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sparkdl_runner import errors
from sparkdl_runner.wire.outcome import LOST, Outcome, UnheardFailureError, consequences, to_error


def explain(
    error: Exception,
    *,
    python: str,
    failures: Sequence[Outcome] = (),
    application_end: str = "",
) -> errors.RunnerError:
    """Makes an error that a person can act on.

    Args:
        error: What pyspark raised.
        python: The Python that Spark starts on executors.
        failures: What ranks have reported; none of it is the cause.
        application_end: Words on how the application ended; empty if it has not.

    Returns:
        The error to raise in its place. Where the reason is not a known one, it is followed by
        Spark's own words.
    """
    text = _text(error)
    raised = _raised_in_task(text)
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
    if "spark.driver.maxResultSize" in text:
        return errors.ResultTooLargeError(
            "The value that rank 0 returned is larger than spark.driver.maxResultSize allows. "
            "Write large things to shared storage and return their path, or raise that setting."
        )
    if application_end:
        return errors.RunCancelledError(
            f"The Spark application ended before the ranks had finished: {application_end}."
        )
    if re.search(r"\bcancelled\b", text):
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


_EXECUTOR_LOSS = re.compile(r"ExecutorLostFailure \(([^)\n]*)\)(?: Reason: ([^\n]*))?")


def is_executor_loss(error: Exception) -> bool:
    """Whether Spark ended a stage because an executor was lost."""
    return _EXECUTOR_LOSS.search(_text(error)) is not None


def with_lost_executors(failures: Sequence[Outcome], error: Exception) -> list[Outcome]:
    """Adds, to ranks that were lost, what Spark says of the loss of an executor."""
    found = _EXECUTOR_LOSS.search(_text(error))
    if found is None:
        return list(failures)
    reason = found.group(1) + (f" ({found.group(2)})" if found.group(2) else "")
    return [
        replace(failure, message=f"is lost: {reason}.") if failure.status == LOST else failure
        for failure in failures
    ]


def _text(error: Exception) -> str:
    """The error's text. Py4J asks the JVM for it, and the JVM may be gone."""
    try:
        return str(error)
    except Exception as problem:
        return f"{type(error).__name__} ({problem})"


def _raised_in_task(text: str) -> tuple[str, str] | None:
    """The type and message of the exception that ended the Python task, if one did."""
    found = re.search(r"Traceback \(most recent call last\):\n(.*?)\n\n?\tat ", text, re.DOTALL)
    if found is None:
        return None
    # The exception's own lines follow the last frame, whose lines are indented.
    last = re.split(r"^  .*\n", found.group(1), flags=re.MULTILINE)[-1]
    name, _, message = last.partition(": ")
    # Spark 4 adds a line of its own.
    return name.strip(), re.sub(r"\n\s*SQLSTATE: \w+\s*$", "", message).strip()


def _stage_failure(text: str) -> str:
    for reason in ("ExecutorLostFailure", "Job aborted", "Lost task"):
        found = re.search(rf"{reason}[^\n]*", text)
        if found:
            return found.group(0)
    return text.strip().partition("\n")[0]
