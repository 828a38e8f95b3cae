"""``log_metrics`` outside of a rank: straight to MLflow's active run, if there is one."""

from __future__ import annotations

import atexit
import sys
import tempfile
from pathlib import Path
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.run.delivery import Delivery, TrackingServer
from sparkdl_runner.tracking.run.journal import Journal
from sparkdl_runner.tracking.run.spool import Spool

CLOSE_SECONDS = 30.0


class _CheckingRecorder(Recorder):
    """Checks what is logged, and drops it."""

    def __init__(self) -> None:
        super().__init__(0, send=lambda _: None)

    def start(self) -> None:
        """There is nothing to send."""

    def log_metrics(self, *args: Any, **options: Any) -> None:
        """See ``Recorder.log_metrics``."""
        super().log_metrics(*args, **options)
        self._logged.clear()


_without_run = _CheckingRecorder()
_by_run: dict[str, Recorder] = {}


def recorder() -> Recorder:
    """The recorder of MLflow's active run; one that drops everything if there is none."""
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None else None
    if mlflow is None or active is None:
        return _without_run
    run_id = active.info.run_id
    if run_id not in _by_run:
        _by_run[run_id] = _record(mlflow.get_tracking_uri(), run_id)
    return _by_run[run_id]


def _record(uri: str, run_id: str) -> Recorder:
    """Makes a recorder that ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="sparkdl_runner-mlflow-"))
    spool = Spool(folder / "entries.jsonl")  # The name of a run is its server's.
    delivery = Delivery(spool, TrackingServer(uri, run_id))
    journal = Journal({}, {}, Redactor())

    def send(report: dict[str, Any]) -> None:
        spool.put(journal.admit(report["entries"]))
        for problem in report["problems"]:
            tell(f"{problem}.")

    run_recorder = Recorder(0, send)

    def close() -> None:
        run_recorder.close()
        if left := delivery.close(CLOSE_SECONDS):
            tell(f"{left} metrics were not delivered; they are in {spool.path}.")
        else:
            folder.rmdir()

    atexit.register(close)
    return run_recorder
