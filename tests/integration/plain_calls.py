"""Plain MLflow calls as ranks of one training, without ranks: prints what each saw, as JSON.

Takes an empty folder, in which it keeps two stores. Runs with any MLflow that is supported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
os.environ["MLFLOW_ENABLE_ASYNC_LOGGING"] = "false"

import mlflow
import mlflow.sklearn
import numpy as np
from mlflow.entities import Metric
from mlflow.tracking._model_registry.registry import ModelRegistryStoreRegistry
from mlflow.tracking._tracking_service.registry import TrackingStoreRegistry
from sklearn.linear_model import LinearRegression

from sparkdl_runner.tracking.models.flavor_arguments import taken_by
from sparkdl_runner.tracking.rank.rank_tracking import set_up_mlflow
from sparkdl_runner.tracking.rank.recorder import Recorder
from sparkdl_runner.tracking.rank_run import RankRun

FOLDER = Path(sys.argv[1])
STORE, ELSEWHERE = (FOLDER / "store").as_uri(), (FOLDER / "elsewhere").as_uri()
# The training's store as the function's source has it, for the driver's working folder.
AS_WRITTEN = "file:store"


def read(ours: str, other: str) -> dict[str, Any]:
    """What every rank may ask."""
    client = mlflow.MlflowClient()
    experiment_id = client.get_run(other).info.experiment_id
    mlflow.artifacts.download_artifacts(run_id=other, artifact_path="note.txt")
    return {
        "param": client.get_run(other).data.params["depth"],
        "runs": len(client.search_runs([experiment_id])),
        "registered": client.get_registered_model("known").name,
        "own": client.get_run(ours).data.params,
        "active": mlflow.active_run().info.run_id == ours,
        "artifacts": [one.path for one in client.list_artifacts(other)],
        "experiment": mlflow.get_experiment_by_name("training").name,
    }


def write(rank: int, other: str) -> None:
    """What somebody's code does on every rank, without asking which one it is."""
    client = mlflow.MlflowClient()
    with mlflow.start_run(run_name="named in the function", description="by hand"):
        mlflow.log_metric("plain", rank, step=5)
        mlflow.log_params({"rate": 0.1})
        mlflow.log_text(f"by rank {rank}", "by.txt")
    mlflow.end_run()
    mlflow.set_tag("said_by", f"rank {rank}")
    mlflow.log_param("later", rank, synchronous=False)
    ours = mlflow.active_run().info.run_id
    client.log_metric(ours, "by_client", rank)
    mlflow.MlflowClient(tracking_uri=f"{STORE}/").log_metric(ours, "by_uri", rank)
    client.log_metric(other, f"from_{rank}", 1.0)
    client.log_batch(other, metrics=[Metric(f"batch_from_{rank}", 1.0, 0, 0)])
    there = mlflow.MlflowClient(tracking_uri=ELSEWHERE)
    there.set_tag(there.create_run("0").info.run_id, "rank", str(rank))


def keep_model() -> str:
    """Logs a model and registers it. Returns its version."""
    rows = np.ones((4, 2))
    mlflow.sklearn.autolog(log_models=False)
    network = LinearRegression().fit(rows, rows[:, 0])
    mlflow.sklearn.autolog(disable=True)
    log = mlflow.sklearn.log_model
    options = {"name": "model", "pip_requirements": ["scikit-learn"]}
    info = log(network, **taken_by(log, options))
    version = mlflow.register_model(info.model_uri, "new")
    mlflow.MlflowClient().set_registered_model_alias("new", "champion", version.version)
    return str(version.version)


def choose(ours: str, other: str) -> dict[str, Any]:
    """Runs of rank 0's own choice, as a notebook on Databricks makes them."""
    found = {}
    with mlflow.start_run(run_id=other) as reopened:
        mlflow.log_metric("reopened", 1.0)
        found["reopened"] = reopened.info.run_id == other
    found["then"] = mlflow.active_run().info.run_id == ours
    with mlflow.start_run(nested=True) as child:
        found["child"] = child.data.tags["mlflow.parentRunId"] == ours
    mlflow.set_tracking_uri(ELSEWHERE)
    mlflow.log_metric("elsewhere", 1.0)
    found["elsewhere"] = mlflow.active_run().info.run_id != ours
    mlflow.end_run()
    mlflow.set_tracking_uri(AS_WRITTEN)
    found["home"] = mlflow.active_run().info.run_id == ours
    mlflow.set_experiment("chosen")
    mlflow.log_metric("chosen", 1.0)
    chosen = mlflow.active_run().info
    found["chosen"] = chosen.run_id != ours
    mlflow.end_run()
    name = mlflow.get_experiment(chosen.experiment_id).name
    mlflow.set_experiment("training")
    found["back"] = mlflow.active_run().info.run_id == ours
    return {**found, "name": name}


def apart() -> list[str]:
    """What a rank does on a host that the store, a file, is not on."""
    mlflow.log_param("apart", "yes")
    told = []
    calls = (
        lambda: mlflow.log_text("text", "apart.txt"),
        lambda: mlflow.MlflowClient().search_runs(["0"]),
        lambda: mlflow.MlflowClient().get_registered_model("known"),
    )
    for call in calls:
        try:
            call()
            told.append("")
        except mlflow.MlflowException as error:
            told.append(str(error))
    return told


def as_rank(
    rank: int, other_ranks: str, then: Callable[[], Any], *, is_apart: bool = False
) -> tuple[Any, list[Any]]:
    """Does something in a process of its own that MLflow takes for a rank's."""
    ours = (FOLDER / "ours").read_text()
    result, told = os.pipe()
    if not (child := os.fork()):
        os.close(result)
        run = RankRun(
            run_id=ours,
            run_name="ours",
            experiment_id=mlflow.get_experiment_by_name("training").experiment_id,
            artifact_uri=mlflow.get_run(ours).info.artifact_uri,
            tracking_uri=STORE,
            given_uri=AS_WRITTEN,
            is_named=False,
            store_is_elsewhere=is_apart,
            other_ranks=other_ranks,
            rank=rank,
            host="h",
            folder=str(FOLDER),
        )
        # As the rank's worker has them.
        os.environ |= {"MLFLOW_RUN_ID": ours, "MLFLOW_EXPERIMENT_ID": run.experiment_id}
        entries: list[Any] = []
        recorder = Recorder(rank, lambda report: entries.extend(report["entries"]))
        try:
            # In a rank, nobody has used a store before.
            for registry in (TrackingStoreRegistry, ModelRegistryStoreRegistry):
                registry._get_store_with_resolved_uri.cache_clear()
            set_up_mlflow(run, recorder)
            found = then()
            recorder.flush()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
            if other_ranks != "error":
                sys.excepthook(type(error), error, error.__traceback__)
        with os.fdopen(told, "w") as file:
            json.dump([found, entries], file)
        os._exit(0)
    os.close(told)
    with os.fdopen(result) as file:
        answer = json.load(file)
    os.waitpid(child, 0)
    return answer


def main() -> None:
    mlflow.set_tracking_uri(STORE)
    client = mlflow.MlflowClient()
    experiment_id = client.create_experiment("training")
    mlflow.MlflowClient(tracking_uri=ELSEWHERE)
    ours, other = (client.create_run(experiment_id).info.run_id for _ in range(2))
    (FOLDER / "ours").write_text(ours)
    client.log_param(ours, "given", "1")
    client.log_param(other, "depth", "3")
    client.log_text(other, "hello", "note.txt")
    client.create_registered_model("known")
    told: dict[str, Any] = {"mlflow": mlflow.__version__}

    def plain(rank: int) -> dict[str, Any]:
        found = {"reads": read(ours, other)}
        write(rank, other)
        found["version"] = keep_model()
        if rank != 0:
            found["experiment"] = mlflow.set_experiment("for rank 0 to make").experiment_id
        return found | ({"chooses": choose(ours, other)} if rank == 0 else {})

    for rank in (1, 0):
        told[f"rank {rank}"], told[f"entries {rank}"] = as_rank(
            rank, "ignore", lambda rank=rank: plain(rank)
        )
        told[f"apart {rank}"] = as_rank(rank, "ignore", apart, is_apart=True)
    told["refused"], _ = as_rank(1, "error", lambda: read(ours, other) and write(1, other))
    run, there = client.get_run(ours), mlflow.MlflowClient(tracking_uri=ELSEWHERE)
    told["ours"] = {**run.data.metrics, **run.data.params, "status": run.info.status}
    outputs = getattr(run, "outputs", None)
    told["steps"] = [one.step for one in outputs.model_outputs] if outputs else None
    told["text"] = Path(client.download_artifacts(ours, "by.txt")).read_text()
    told["other"] = client.get_run(other).data.metrics
    told["runs"] = len(client.search_runs([experiment_id]))
    told["experiments"] = sorted(one.name for one in client.search_experiments())
    told["experiment"] = experiment_id
    told["versions"] = [one.version for one in client.search_model_versions("name='new'")]
    told["elsewhere"] = sorted(str(one.data.tags.get("rank")) for one in there.search_runs(["0"]))
    print(json.dumps(told))


main()
