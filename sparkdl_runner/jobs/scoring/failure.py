"""Why scoring failed, in one sentence: Spark tells it in a hundred lines of two languages."""

from __future__ import annotations

import re

from sparkdl_runner.redaction import Redactor, secrets_of

_RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): ", re.MULTILINE)
# What follows the message: Java's stack, or Spark's words between two of them.
_AFTER = re.compile(r"\n\s*(at \w[\w.$/]*\(|\.\.\. \d+ more|Caused by: |Driver stacktrace:|\n)")
# MLflow puts the rows themselves before the reason, and they may be anybody's, and hold anything.
_BEFORE_ROWS = "Failed to enforce schema of data "
_ROWS = re.compile(rf"{_BEFORE_ROWS}.*' with schema '.*?'\. Error: ", re.DOTALL)


def cause(error: Exception) -> str:
    """The innermost reason that an error of Spark's tells, without its stack and without rows."""
    told = str(error).strip()
    if rows := _ROWS.search(told):
        told = told[rows.end() :]
    else:
        told = _innermost(told.partition(_BEFORE_ROWS)[0])
    told = _AFTER.split(told, maxsplit=1)[0]
    told = " ".join(told.split()) or type(error).__name__
    return Redactor(secrets_of())(told).rstrip(".")[:500]


def _innermost(told: str) -> str:
    raised = [*_RAISED.finditer(told)]
    # Of Python's errors, the last is the one that the others led to; Java's only carry it.
    python = [one for one in raised if not one[0].startswith(("java.", "org.", "py4j."))]
    if not raised:
        return told
    innermost = (python or raised)[-1]
    return innermost[0] + told[innermost.end() :]
