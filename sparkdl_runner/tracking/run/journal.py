"""Entries as MLflow will take them: no metric twice, no parameter changed, nothing too long."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.tracking.entries import ATTEMPT_TAG, Entry
from sparkdl_runner.tracking.run.server_calls import ServerCalls

if TYPE_CHECKING:
    from sparkdl_runner.tracking.run.opening.opened import Opened

MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 8000
# A metric may have millions of points, which come page by page.
_PAGES = 10
# System metrics count their own steps, and each value is sent once.
_NOT_STEPS_OF_TRAINING = "system/"


def earlier_values(
    opened: Opened, waiting: Sequence[Entry]
) -> tuple[dict[str, str], dict[str, int], int]:
    """The content of a run before this driver opened it.

    Args:
        opened: The run.
        waiting: What an earlier driver left in the spool.

    Returns:
        Its parameters, the last step of each metric, and the number of attempts.

    Raises:
        LaunchError: MLflow raises something, or gives no answer in time.
    """
    call = ServerCalls(uri=opened.uri, timeout_seconds=_PAGES * opened.timeout_seconds)
    run_id = opened.run.info.run_id
    attempts = opened.first_attempt
    params = dict(opened.run.data.params)
    last_steps: dict[str, int] = {}
    if attempts or waiting:
        for name in opened.run.data.metrics:
            if not name.startswith(_NOT_STEPS_OF_TRAINING):
                history = call(
                    partial(opened.client.get_metric_history, run_id, name),
                    f"tell the metric {name} of run {run_id}",
                )
                last_steps[name] = max((point.step for point in history), default=0)
    for kind, key, value, *more in waiting:
        if kind == "metric" and not key.startswith(_NOT_STEPS_OF_TRAINING):
            last_steps[key] = max(last_steps.get(key, 0), more[1])
        elif kind == "param":
            params.setdefault(key, value)
        elif kind == "tag" and key == ATTEMPT_TAG and value.isdecimal():
            attempts = max(attempts, int(value) + 1)
    return params, last_steps, attempts


class Journal:
    """Checks every entry on its way to MLflow.

    After a restart, ranks go on at their last checkpoint and log the steps after it again. So a
    metric's steps up to the last one of earlier attempts are dropped, unless it was only ever
    logged at step 0, which means without steps.

    A system metric begins with its first value that is not zero: many a one has no other.

    A parameter cannot be changed in MLflow. Where a later attempt logs another value, that is kept
    as ``attempt_N/name``.

    Args:
        params: The parameters that the run has.
        last_steps: By metric, the last step that the run has.
        redact: Hides secrets.
    """

    def __init__(
        self, params: Mapping[str, str], last_steps: Mapping[str, int], redact: Redactor
    ) -> None:
        self._params = dict(params)
        self._last_steps = dict(last_steps)
        self._earlier_steps: dict[str, int] = dict(last_steps)
        self._redact = redact
        self._attempt = 0
        self._lock = threading.Lock()
        self.problems: list[str] = []

    def begin_attempt(self, attempt: int) -> None:
        """Takes the entries that follow as those of another attempt."""
        with self._lock:
            self._attempt = attempt
            self._earlier_steps = dict(self._last_steps)

    def is_set(self, entry: Entry) -> bool:
        """Whether it is a parameter that this run's first attempt has set already."""
        return entry[0] == "param" and entry[1] in self._params and not self._attempt

    def admit(self, entries: list[Entry]) -> list[Entry]:
        """Returns the entries to be logged, redacted and cut."""
        with self._lock:
            admitted = (self._admit(entry) for entry in entries)
            return [entry for entry in admitted if entry is not None]

    def _admit(self, entry: Entry) -> Entry | None:
        kind, name, value, *more = entry
        # MLflow's names have no brackets.
        key = self._redact.name(name)
        if kind == "metric":
            at, step, extra = more
            is_of_system = key.startswith(_NOT_STEPS_OF_TRAINING)
            if is_of_system and not value and key not in self._last_steps:
                return None
            if 0 < self._earlier_steps.get(key, 0) >= step:
                return None
            if step > self._last_steps.get(key, -1):
                self._last_steps[key] = step
            return [kind, key, value, at, step, self._redact.value(extra)]
        text = str(self._redact.value(str(value), name))
        if kind == "tag":
            return [kind, key, self._cut(kind, key, text, MAX_TAG_CHARACTERS)]
        text = self._cut(kind, key, text, MAX_PARAM_CHARACTERS)
        known = self._params.get(key)
        if known is not None and known != text:
            # Within an attempt, MLflow itself refuses the change, with a good message.
            if not self._attempt:
                return [kind, key, text]
            self.problems.append(
                f"the parameter {key!r} was {known:.50} and is now {text:.50}; the new value is "
                f"kept as 'attempt_{self._attempt}/{key}'"
            )
            key = f"attempt_{self._attempt}/{key}"
            if self._params.get(key) == text:
                self.problems.pop()
                return None
        elif known == text:
            return None
        self._params[key] = text
        return [kind, key, text]

    def _cut(self, kind: str, key: str, text: str, most: int) -> str:
        if len(text) <= most:
            return text
        self.problems.append(
            f"the {kind} {key!r} is longer than the {most} characters that MLflow takes: it was cut"
        )
        return text[: most - 1] + "…"
