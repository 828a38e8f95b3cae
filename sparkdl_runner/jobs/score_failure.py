"""Why scoring failed, in one sentence: Spark tells it in a hundred lines of two languages."""

from __future__ import annotations

import re

from sparkdl_runner.redaction import Redactor, secrets_of

_RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): ", re.MULTILINE)
# What follows the message: Java's stack, or Spark's words between two of them.
_AFTER = re.compile(r"\n\s*(at \w[\w.$/]*\(|\.\.\. \d+ more|Caused by: |Driver stacktrace:|\n)")
# MLflow puts the rows themselves before the reason, and they may be anybody's.
_ROWS = re.compile(r"Failed to enforce schema of data .*?\. Error: ", re.DOTALL)


def cause(error: Exception) -> str:
    """The innermost reason that an error of Spark's tells, without its stack and without rows."""
    told = str(error).strip()
    raised = [*_RAISED.finditer(told)]
    if raised:
        # Of Python's errors, the last is the one that the others led to; Java's only carry it.
        python = [one for one in raised if not one[0].startswith(("java.", "org.", "py4j."))]
        innermost = (python or raised)[-1]
        told = innermost[0] + told[innermost.end() :]
    told = _AFTER.split(told, maxsplit=1)[0]
    if _ROWS.search(told):
        told = _ROWS.split(told)[-1]
    told = " ".join(told.split()) or type(error).__name__
    return Redactor(secrets_of())(told).rstrip(".")[:500]
