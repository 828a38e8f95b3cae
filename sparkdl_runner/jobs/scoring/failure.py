"""Why scoring failed, in one sentence and without the rows that it failed on."""

from __future__ import annotations

import re

from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.launch.driver.spark import java

# MLflow writes the rows themselves before the reason. They may be confidential, so they are cut.
_BEFORE_ROWS = "Failed to enforce schema of data "
_ROWS = re.compile(rf"{_BEFORE_ROWS}.*' with schema '.*?'\. Error: ", re.DOTALL)


def cause(error: Exception) -> str:
    """The innermost reason that an error of Spark's tells, without its stack and without rows."""
    message = str(error).strip()
    if rows := _ROWS.search(message):
        message = message[rows.end() :]
    else:
        message = java.innermost(message.partition(_BEFORE_ROWS)[0])
    message = " ".join(java.without_stack(message).split()) or type(error).__name__
    return Redactor(secrets_of())(message).rstrip(".")[:500]
