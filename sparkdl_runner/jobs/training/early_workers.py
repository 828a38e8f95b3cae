"""Workers that start while the data is converted, so that they have imported torch by the run."""

from __future__ import annotations

from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.launch.driver.calls.spares import SPARE_SECONDS
from sparkdl_runner.launch.driver.spark.spares import start_spares


def start_early(settings: TrainSettings) -> None:
    """Starts a spare worker for each rank on Spark, unless the settings want no spares.

    Call it in a thread beside the conversion, in a session that ends with the job. A run that finds
    none, or none that fits, starts its own.

    Args:
        settings: Of the training.
    """
    config = settings.run_config.build()
    seconds = SPARE_SECONDS if config.spare_seconds is None else config.spare_seconds
    if seconds:
        start_spares(settings.num_proc, settings.backend, config, seconds=seconds)
