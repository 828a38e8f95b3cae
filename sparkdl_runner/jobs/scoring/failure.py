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
    told = str(error).strip()
    if rows := _ROWS.search(told):
        told = told[rows.end() :]
    else:
        told = java.innermost(told.partition(_BEFORE_ROWS)[0])
    told = " ".join(java.without_stack(told).split()) or type(error).__name__
    return Redactor(secrets_of())(told).rstrip(".")[:500]
