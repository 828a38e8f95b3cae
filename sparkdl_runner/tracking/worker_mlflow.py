"""Plain MLflow calls inside a rank: rank 0's land in the run of the training, others' nowhere.

MLflow is met when it is imported, and not before: importing it takes seconds, and many functions
never do. From then on its tracking store, which every call goes through, is one of the two below.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkdl_runner.tracking.rank_run import RankRun
from sparkdl_runner.tracking.recorder import Entry, Recorder


def prepare(run: RankRun, recorder: Recorder) -> None:
    """Makes MLflow, once it is imported, speak to ``recorder``, or to nobody."""

    def meet() -> None:
        if run.rank == 0:
            _join(run, recorder)
        else:
            _stay_out(run)

    if "mlflow" in sys.modules:
        meet()
    else:
        sys.meta_path.insert(0, _OnImport("mlflow", meet))


class _OnImport(importlib.abc.MetaPathFinder):
    """Calls something right after a module has been imported for the first time."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the module as everybody would, and adds the call to its loading."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then(module: types.ModuleType) -> None:
            execute(module)
            self._then()

        spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


def _join(run: RankRun, recorder: Recorder) -> None:
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
    _make_active(known, {run.run_id})


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


def _make_active(known: Any, run_ids: set[str]) -> None:
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


def _stay_out(run: RankRun) -> None:
    """Gives MLflow a store of this rank's own, that forgets, or one that refuses."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
    from mlflow.store.model_registry.file_store import FileStore as ModelFileStore
    from mlflow.store.tracking.file_store import FileStore
    from mlflow.tracking._model_registry import utils as model_utils
    from mlflow.tracking._tracking_service import utils

    if run.other_ranks == "error":

        def refuse(*_: Any, **__: Any) -> Any:
            raise MlflowException(
                f"Rank {run.rank} on host {run.host} called MLflow; in this run only rank 0 may "
                "(Tracking(other_ranks='error')). Ask for the rank before the call."
            )

        utils._tracking_store_registry.get_store = refuse
        model_utils._get_store = refuse
        return

    class NoArtifacts(ArtifactRepository):
        """Keeps nothing."""

        def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
            return None

        def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
            return None

        def list_artifacts(self, path: str | None = None) -> list[Any]:
            return []

        def _download_file(self, remote_file_path: str, local_path: str) -> None:
            raise MlflowException(
                f"Rank {run.rank} reads an artifact; in a run, only rank 0 has MLflow's."
            )

    _artifact_repository_registry.register("sparkdl-ignored", NoArtifacts)

    class ForgettingStore(FileStore):
        """Has experiments and runs, which any call may ask for, and forgets what they hold."""

        def _get_run_info(self, run_uuid: str) -> Any:
            with contextlib.suppress(MlflowException):
                return super()._get_run_info(run_uuid)
            return super()._get_run_info(own_run.info.run_id)

        def log_metric(self, run_id: str, metric: Any) -> None:
            return None

        def log_param(self, run_id: str, param: Any) -> None:
            return None

        def set_tag(self, run_id: str, tag: Any) -> None:
            return None

        def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
            return None

        def log_inputs(self, run_id: str, datasets: Any = None, models: Any = None) -> None:
            return None

    place = str(Path(run.folder) / "ignored")
    store = ForgettingStore(place, "sparkdl-ignored:/")
    own_run = store.create_run("0", "", int(time.time() * 1000), [], "ignored")
    models = ModelFileStore(place)
    utils._tracking_store_registry.get_store = lambda *_, **__: store
    model_utils._get_store = lambda *_, **__: models
    _make_active(own_run, {run.run_id, own_run.info.run_id})
