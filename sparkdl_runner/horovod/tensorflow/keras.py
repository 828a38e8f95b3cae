"""``LogCallback``: Keras training progress on the driver. Importing this module imports Keras."""

from __future__ import annotations

import time
from typing import Any

try:
    import keras
except ImportError:
    from tensorflow import keras  # TensorFlow before 2.16 carries its own.

from sparkdl_runner.launch.worker.driver_log import log_to_driver


class LogCallback(keras.callbacks.Callback):
    """Streams the events of a Keras training to the driver.

    Args:
        per_batch_log: Whether to also send the metrics of every batch.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says that an epoch begins."""
        self._epoch, self._epoch_started = epoch, time.monotonic()
        log_to_driver(f"Epoch {epoch} begins at {time.strftime('%Y-%m-%d %H:%M:%S')}.")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sends a batch's metrics, if asked to."""
        if self.per_batch_log:
            log_to_driver(f"Epoch {self._epoch} batch {batch}: {_metrics(logs)}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Sends an epoch's metrics."""
        seconds = time.monotonic() - self._epoch_started
        log_to_driver(f"Epoch {epoch} ended after {seconds:.1f} s: {_metrics(logs)}")


def _metrics(logs: dict[str, Any] | None) -> str:
    return ", ".join(f"{name}={float(value):.6g}" for name, value in (logs or {}).items())
