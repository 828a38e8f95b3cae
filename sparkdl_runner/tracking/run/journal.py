"""What a run has been told: no metric twice, no parameter changed, nothing too long."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sparkdl_runner.redaction import Redactor
from sparkdl_runner.tracking.entries import Entry

MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 8000


class Journal:
    """Looks at every entry on its way to MLflow.

    After a restart, ranks go on at their last checkpoint and say once more what was said between it
    and the end of the last attempt. Of a metric, steps up to the last one of earlier attempts are
    therefore passed over. A metric that was only ever said at step 0 has no steps, and is not.

    A parameter cannot be changed in MLflow. What a later attempt says differently is kept as
    ``attempt_N/name``.

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
        self._had: dict[str, int] = dict(last_steps)
        self._redact = redact
        self._attempt = 0
        self._noting = threading.Lock()
        self.problems: list[str] = []

    def begin_attempt(self, attempt: int) -> None:
        """Says that what follows comes from another attempt."""
        with self._noting:
            self._attempt = attempt
            self._had = dict(self._last_steps)

    def admit(self, entries: list[Entry]) -> list[Entry]:
        """The entries that MLflow is to be told, as it will take them."""
        with self._noting:
            admitted = (self._admit(entry) for entry in entries)
            return [entry for entry in admitted if entry is not None]

    def _admit(self, entry: Entry) -> Entry | None:
        kind, key, value, *more = entry
        if kind == "metric":
            step = more[1]
            if 0 < self._had.get(key, 0) >= step:
                return None
            if step > self._last_steps.get(key, -1):
                self._last_steps[key] = step
            return entry
        text = str(self._redact.value(str(value), key))
        key = self._redact(key)
        if kind == "tag":
            return [kind, key, self._cut(kind, key, text, MAX_TAG_CHARACTERS)]
        text = self._cut(kind, key, text, MAX_PARAM_CHARACTERS)
        known = self._params.get(key)
        if known is not None and known != text:
            # What changes within an attempt is refused by MLflow, whose sentence is a good one.
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
