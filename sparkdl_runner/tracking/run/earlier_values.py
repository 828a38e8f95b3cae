"""What a run was told before this driver opened it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.run.opening import ATTEMPT_TAG, Opened
from sparkdl_runner.tracking.run.server_calls import Asking

# Of one metric there may be millions of points, which come page by page.
_PAGES = 10
# What is said at every look has steps of its own, and is never said again.
_NOT_STEPS_OF_TRAINING = "system/"


@dataclass(frozen=True, kw_only=True)
class Past:
    """Parameters, the last step of each metric, and how many attempts there were."""

    params: dict[str, str]
    last_steps: dict[str, int]
    attempts: int

    @classmethod
    def of(cls, opened: Opened, waiting: Sequence[Entry]) -> Past:
        """Asks MLflow, and looks at what it has still to be told.

        Args:
            opened: The run.
            waiting: What an earlier driver left in the spool.

        Raises:
            LaunchError: MLflow does not say.
        """
        ask = Asking(uri=opened.uri, timeout_seconds=_PAGES * opened.timeout_seconds)
        run_id = opened.run.info.run_id
        attempts = opened.first_attempt
        params = dict(opened.run.data.params)
        last_steps: dict[str, int] = {}
        if attempts or waiting:
            for name in opened.run.data.metrics:
                if not name.startswith(_NOT_STEPS_OF_TRAINING):
                    history = ask(
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
        return cls(params=params, last_steps=last_steps, attempts=attempts)
