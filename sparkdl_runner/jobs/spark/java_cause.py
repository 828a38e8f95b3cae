"""Why Spark raised, in one line: Java's own words, without its stack and without py4j's."""

from __future__ import annotations

from typing import Any

# Its message is a class's name and no sentence; what it caused says more.
_NAMES_ONLY = "java.lang.ClassNotFoundException"


def java_cause(error: Exception) -> str:
    """Returns what lies at the bottom of an exception of Spark's, without a full stop."""
    java: Any = getattr(error, "java_exception", None)
    told = str(error)
    while java is not None:
        message = java.getMessage()
        if message and java.getClass().getName() != _NAMES_ONLY:
            told = str(message)
        java = java.getCause()
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.rpartition("Exception: ")[2].rstrip(".")[:400]
