"""The differences between a call and the last run of the same training: arguments and rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.tracking.run import datasets
from sparkdl_runner.tracking.run.parameters_and_tags import parameters

_OF_ATTEMPT = re.compile(r"attempt_(\d+)/(.+)", re.DOTALL)


def changes(
    run: Any, arguments: Mapping[str, Any], converters: Mapping[str, Any], redact: Redactor
) -> list[str]:
    """Compares a call with a run's last attempt.

    Args:
        run: The ``mlflow.entities.Run``.
        arguments: Of the function, by name.
        converters: The conversions that the function uses, by what it calls them.
        redact: Hides secrets, as they are hidden in the run.

    Returns:
        A clause for each argument and each conversion that is another one.
    """
    known = _last_values(run.data.params)
    clauses = []
    for _, name, text in parameters(arguments):
        now, then = str(redact.value(text, name)), known.get(name)
        if then not in (None, now):
            clauses.append(f"{name!r} was {then:.50} and is now {now:.50}")
    differences = (datasets.difference(run, name, converters[name]) for name in converters)
    return clauses + [text for text in differences if text is not None]


def _last_values(params: Mapping[str, str]) -> dict[str, str]:
    """The parameters of the last attempt that set them: a changed one is ``attempt_N/name``."""
    last = {name: (0, text) for name, text in params.items() if not _OF_ATTEMPT.fullmatch(name)}
    for name, text in params.items():
        if (of_attempt := _OF_ATTEMPT.fullmatch(name)) is not None:
            attempt, base = int(of_attempt[1]), of_attempt[2]
            if base in last and attempt > last[base][0]:
                last[base] = (attempt, text)
    return {name: text for name, (_, text) in last.items()}
