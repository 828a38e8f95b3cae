"""Brings ranks' logs to MLflow while they grow, so that the page of a running run shows them."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.server import is_databricks

UPLOAD_SECONDS = 10.0
# By this tag of the experiment Databricks' page of a run shows its logs. No document says so: AI
# Runtime's own client sets it.
SHOWS_LOGS_TAG = "air-show-logs"


class LogUploads(threading.Thread):
    """Uploads the chunks that have changed, one after another. Nobody waits for it.

    Args:
        opened: The run.
        folder: The run's files; the logs are below ``logs``.
    """

    def __init__(self, opened: Opened, folder: Path) -> None:
        super().__init__(name="sparkdl-logs", daemon=True)
        self._opened, self._folder = opened, folder
        self._uploaded: dict[Path, int] = {}
        """The bytes of each chunk that MLflow has."""
        self._uploading: Path | None = None
        self._stopped = threading.Event()

    def stop(self, seconds: float) -> None:
        """Ends within so long, and removes the chunks that MLflow has: only the rest is to go."""
        self._stopped.set()
        if self.is_alive():
            self.join(seconds)
        if self.is_alive() and seconds and (path := self._uploading) is not None:
            with suppress(OSError):  # What it uploads may come after the whole, and in its place.
                path.rename(path.with_name(path.name.replace(".chunk.", "-whole.chunk.")))
        for path, size in [] if self.is_alive() else self._uploaded.items():
            with suppress(OSError):
                if path.stat().st_size == size:
                    path.unlink()

    def run(self) -> None:
        """Uploads every ten seconds."""
        while not self._stopped.wait(UPLOAD_SECONDS):
            with suppress(Exception):  # The end of the run tells if files are not in MLflow.
                self._upload()

    def _upload(self) -> None:
        client, info = self._opened.client, self._opened.run.info
        for path in sorted(self._folder.glob("logs/*/*.chunk.txt")):
            size = path.stat().st_size
            if self._stopped.is_set() or self._uploaded.get(path) == size:
                continue
            if not self._uploaded and is_databricks(self._opened.uri):
                with suppress(Exception):  # It may be for the experiment's owner alone.
                    client.set_experiment_tag(info.experiment_id, SHOWS_LOGS_TAG, "true")
            self._uploading = path
            with tempfile.TemporaryDirectory() as folder:  # Its length is sent before its bytes.
                copy = Path(shutil.copyfile(path, Path(folder) / path.name))
                size = copy.stat().st_size
                client.log_artifact(info.run_id, str(copy), f"logs/{path.parent.name}")
            self._uploading = None
            self._uploaded[path] = size
