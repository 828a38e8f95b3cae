"""The MLflow run of a call of ``run``: whether one is wanted, which one, and who may end it.

MLflow and what belongs to it are imported here only where a run is wanted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.config import RunConfig
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.script.script import Script
from sparkdl_runner.script.tags import script_tags
from sparkdl_runner.tracking.run.opening.store import is_set_up
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.wire.function import refers_to

if TYPE_CHECKING:
    from sparkdl_runner.driver.stop_request import StopRequest
    from sparkdl_runner.tracking.run.opening.named import NamedRun, Work
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun


def wanted_tracking(config: RunConfig, main: Any) -> Tracking | None:
    """Which MLflow run is wanted, if one is; a script's has tags that say what it is.

    A function that calls MLflow gets one. Without it, each rank would make a run of its own.
    """
    wanted = config.tracking
    if wanted is False or (wanted is None and not is_set_up(is_used=_calls_mlflow(main))):
        return None
    settings = wanted if isinstance(wanted, Tracking) else Tracking()
    if not isinstance(main, Script):
        return settings
    return replace(settings, tags={**script_tags(main), **settings.tags})


def _calls_mlflow(main: Any) -> bool:
    return main.imports("mlflow") if isinstance(main, Script) else refers_to(main, "mlflow")


def named_run(config: RunConfig, settings: Tracking | None, main: Any) -> NamedRun | None:
    """The run of a training that has a name.

    Raises:
        LaunchError: There is no MLflow to keep the name; or as of ``NamedRun``.
    """
    if config.name is None:
        return None
    if settings is None:
        raise LaunchError(
            f"The training has the name {config.name!r}, which an MLflow run keeps, and MLflow is "
            "not set up here: set MLFLOW_TRACKING_URI to a server or a database that every process "
            "of this training sees, or tracking=Tracking(tracking_uri=...); or leave the name out."
        )
    from sparkdl_runner.tracking.run.opening.named import NamedRun

    rerun = config.rerun_finished
    return NamedRun(settings, config.name, work_of(main), rerun_finished=rerun)


def work_of(main: Any) -> Work:
    """The identity of a function or script, as a training with a name keeps it."""
    from sparkdl_runner.tracking.run.opening.named import Work

    return Work(function=main.name, code=None) if isinstance(main, Script) else Work.of(main)


def open_run(settings: Tracking | None, main: Any, named: NamedRun | None) -> TrackedRun | None:
    """Opens the run, where one is wanted; a script's has its name."""
    if settings is None:
        return None
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun

    return TrackedRun.open(settings, main.name if isinstance(main, Script) else None, named)


def watched(tracked: TrackedRun | None, stop: StopRequest) -> AbstractContextManager[Any]:
    """Looks for the tag by which a person ends a tracked training."""
    if tracked is None:
        return nullcontext()
    from sparkdl_runner.tracking.stop_tag import StopTag

    return StopTag(tracked.client, tracked.run_id, stop.make)
