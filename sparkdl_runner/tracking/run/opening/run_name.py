"""The name of a run that nobody has named: its function's and a number, such as ``train-3``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.tracking.run.opening.store import Store

# Numbers grow with time, except for runs that began at once.
_NEWEST = 50
_NEWEST_FIRST = ["attributes.start_time DESC"]


@dataclass(frozen=True, kw_only=True)
class RunName:
    """How to call a run, unless its user gives it a name."""

    text: str
    is_numbered: bool = True
    """Whether a number follows, as for runs that would all have one name."""
    source: str | None = None
    """Where the function is from; None for the program or notebook that runs."""
    below: Any = None
    """The MLflow run above it, where the thread that starts it has none active."""

    def redacted(self, redact: Redactor) -> RunName:
        """The same without secrets."""
        return replace(self, text=redact(self.text))

    def in_store(self, store: Store) -> str:
        """The name of the next run.

        Args:
            store: Where the run will be made. Its experiment's runs are counted.

        Raises:
            LaunchError: MLflow does not answer.
        """
        if not self.is_numbered:
            return self.text
        # A filter cannot hold both.
        quotation = '"' if "'" in self.text else "'"
        base = self.text.replace(quotation, "")
        wanted = f"attributes.run_name LIKE {quotation}{base}-%{quotation}"
        runs = store.call(
            partial(_newest, store, wanted), f"count the runs of experiment {store.experiment_id}"
        )
        # Signs such as ``_`` stand for any in the filter.
        numbered = re.compile(re.escape(base) + r"-(\d{1,9})")
        matches = (numbered.fullmatch(run.info.run_name or "") for run in runs)
        return f"{base}-{max((int(match[1]) for match in matches if match), default=0) + 1}"


def _newest(store: Store, wanted: str) -> Sequence[Any]:
    """The newest runs of a filter. A number is all that needs them: where MLflow refuses, none."""
    from mlflow.exceptions import MlflowException

    try:
        runs: Sequence[Any] = store.client.search_runs(
            [store.experiment_id], wanted, max_results=_NEWEST, order_by=_NEWEST_FIRST
        )
    except MlflowException:
        return []
    return runs
