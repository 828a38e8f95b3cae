"""The run of the training as the one that MLflow's own functions find active in a rank."""

from __future__ import annotations

import os
from typing import Any


def make_active(known: Any, run_ids: set[str]) -> None:
    """Makes a run the one that ``mlflow.start_run`` gives, and that is active from now on.

    Args:
        known: The run.
        run_ids: The ids by which it may be asked for.
    """
    import mlflow
    from mlflow.entities import Experiment, LifecycleStage
    from mlflow.tracking import fluent

    start_run = fluent.start_run

    class JoinedRun(fluent.ActiveRun):
        """The run as a context that, when it is left, stays active: the driver ends it."""

        def __exit__(self, *_: object) -> None:
            return None

    def join_run(
        run_id: str | None = None, *args: Any, nested: bool = False, **options: Any
    ) -> Any:
        """``mlflow.start_run``, where the training's run takes the place of a new one."""
        active = mlflow.active_run()
        is_another = active is not None and active.info.run_id != known.info.run_id
        if nested or is_another or run_id not in (None, *run_ids):
            # Else the id of the training's run in the environment would be taken for the new one's.
            outer = os.environ.pop("MLFLOW_RUN_ID", None)
            try:
                return start_run(run_id, *args, nested=nested, **options)
            finally:
                if outer is not None:
                    os.environ["MLFLOW_RUN_ID"] = outer
        if active is None:
            start_run(run_id=known.info.run_id, log_system_metrics=False)
        if tags := options.get("tags"):
            mlflow.set_tags(tags)
        return JoinedRun(known)

    def keep_experiment(experiment_name: str | None = None, *_: Any, **__: Any) -> Any:
        """``mlflow.set_experiment``, where the run has its place already."""
        return Experiment(
            experiment_id=known.info.experiment_id,
            name=experiment_name or "",
            artifact_location="",
            lifecycle_stage=LifecycleStage.ACTIVE,
        )

    # Each is in two places, and who calls one does not call the other.
    fluent.start_run = mlflow.start_run = join_run
    fluent.set_experiment = mlflow.set_experiment = keep_experiment
    join_run()
