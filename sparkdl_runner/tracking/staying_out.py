"""Plain MLflow calls on ranks other than 0: they are forgotten, or refused."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from sparkdl_runner.tracking.active_run import make_active
from sparkdl_runner.tracking.rank_run import RankRun


def stay_out(run: RankRun) -> None:
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
    make_active(own_run, {run.run_id, own_run.info.run_id})
