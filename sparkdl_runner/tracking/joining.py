"""Plain MLflow calls on rank 0: they land in the run of the training, by way of the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from sparkdl_runner.tracking.active_run import make_active
from sparkdl_runner.tracking.rank_run import RankRun
from sparkdl_runner.tracking.recorder import Entry, Recorder


def join(run: RankRun, recorder: Recorder) -> None:
    """Makes the run the active one, for good, and its store tell the recorder."""
    from mlflow.entities import LifecycleStage, Run, RunData, RunInfo
    from mlflow.tracking._tracking_service import utils

    artifact_uri = run.artifact_uri
    if run.store_is_elsewhere:
        artifact_uri = _offer_nowhere(run)
    known = Run(
        RunInfo(
            run_id=run.run_id,
            experiment_id=run.experiment_id,
            user_id="",
            status="RUNNING",
            start_time=int(time.time() * 1000),
            end_time=None,
            lifecycle_stage=LifecycleStage.ACTIVE,
            artifact_uri=artifact_uri,
            run_name=run.run_name,
        ),
        RunData(),
    )
    registry = utils._tracking_store_registry
    open_store = registry.get_store
    opened: list[Any] = []
    lock = threading.Lock()

    def get_store(store_uri: str | None = None, artifact_uri: str | None = None) -> Any:
        with lock:
            if not opened:
                store = _Nowhere(run) if run.store_is_elsewhere else open_store(run.tracking_uri)
                opened.append(_telling(store, run.run_id, known, recorder))
        return opened[0]

    registry.get_store = get_store
    make_active(known, {run.run_id})


def _telling(store: Any, ours: str, known: Any, recorder: Recorder) -> Any:
    """The store, but with what is logged to the run going to the recorder."""
    from mlflow.utils.async_logging.run_operations import RunOperations

    kind: Any = type(store)

    class TellingStore(kind):
        """Sends metrics, parameters and tags of one run by way of the driver."""

        def get_run(self, run_id: str) -> Any:
            return known if run_id == ours else super().get_run(run_id)

        def update_run_info(self, run_id: str, *args: Any, **options: Any) -> Any:
            # How the run ends, and when, is for the driver to say.
            if run_id == ours:
                return known.info
            return super().update_run_info(run_id, *args, **options)

        def log_metric(self, run_id: str, metric: Any) -> None:
            if run_id != ours:
                super().log_metric(run_id, metric)
                return
            recorder.add([_metric(metric)])

        def log_param(self, run_id: str, param: Any) -> None:
            if run_id != ours:
                super().log_param(run_id, param)
                return
            recorder.add([["param", str(param.key), str(param.value)]])

        def set_tag(self, run_id: str, tag: Any) -> None:
            if run_id != ours:
                super().set_tag(run_id, tag)
                return
            recorder.add([["tag", str(tag.key), str(tag.value)]])

        def log_batch(
            self,
            run_id: str,
            metrics: Sequence[Any] = (),
            params: Sequence[Any] = (),
            tags: Sequence[Any] = (),
        ) -> None:
            if run_id != ours:
                super().log_batch(run_id, metrics=metrics, params=params, tags=tags)
                return
            entries: list[Entry] = [_metric(metric) for metric in metrics]
            entries += [["param", str(param.key), str(param.value)] for param in params]
            entries += [["tag", str(tag.key), str(tag.value)] for tag in tags]
            recorder.add(entries)

        def log_metric_async(self, run_id: str, metric: Any) -> Any:
            self.log_metric(run_id, metric)
            return RunOperations(operation_futures=[])

        def log_param_async(self, run_id: str, param: Any) -> Any:
            self.log_param(run_id, param)
            return RunOperations(operation_futures=[])

        def set_tag_async(self, run_id: str, tag: Any) -> Any:
            self.set_tag(run_id, tag)
            return RunOperations(operation_futures=[])

        def log_batch_async(
            self,
            run_id: str,
            metrics: Sequence[Any] = (),
            params: Sequence[Any] = (),
            tags: Sequence[Any] = (),
        ) -> Any:
            self.log_batch(run_id, metrics, params, tags)
            return RunOperations(operation_futures=[])

    store.__class__ = TellingStore
    return store


def _metric(metric: Any) -> Entry:
    extra = {
        name: value
        for name in ("model_id", "dataset_name", "dataset_digest")
        if (value := getattr(metric, name, None)) is not None
    }
    timestamp, step = int(metric.timestamp), int(metric.step or 0)
    return ["metric", str(metric.key), float(metric.value), timestamp, step, extra]


class _Nowhere:
    """In place of a store that is a file on another host: refuses all but what the driver tells."""

    def __init__(self, run: RankRun) -> None:
        self._run = run

    def _refuse(self, *_: Any, **__: Any) -> Any:
        from mlflow.exceptions import MlflowException

        raise MlflowException(
            f"Rank 0 runs on host {self._run.host}, and MLflow's store is a file on the driver's. "
            "Metrics, parameters and tags reach it by way of the driver; for artifacts and models, "
            "set a tracking server (MLFLOW_TRACKING_URI=http://…)."
        )

    get_run = update_run_info = log_metric = log_param = set_tag = log_batch = _refuse

    def shut_down_async_logging(self) -> None:
        """There is nothing that runs beside."""

    flush_async_logging = end_async_logging = shut_down_async_logging

    def __getattr__(self, name: str) -> Any:
        return self._refuse


def _offer_nowhere(run: RankRun) -> str:
    """Makes artifacts of a store that is elsewhere an error. Returns their URI."""
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry

    class NoWay(ArtifactRepository):
        """Refuses everything."""

        def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
            _Nowhere(run)._refuse()

        def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
            _Nowhere(run)._refuse()

        def list_artifacts(self, path: str | None = None) -> list[Any]:
            return []

        def _download_file(self, remote_file_path: str, local_path: str) -> None:
            _Nowhere(run)._refuse()

    _artifact_repository_registry.register("sparkdl-elsewhere", NoWay)
    return "sparkdl-elsewhere:/artifacts"
