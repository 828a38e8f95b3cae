"""A tracked training, with whatever MLflow is installed; ends with 0 if all is there.

Takes the number of ranks, two unless it is given. The server is the one of ``MLFLOW_TRACKING_URI``;
nothing else asks for tracking, as in a notebook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import numpy as np

from sparkdl_runner import DistributedRunner

MODEL = f"compat-{mlflow.__version__}"
STEPS = 30


def train(model_name: str) -> list[float]:
    """Trains a plane on every rank, and logs it by our calls and by MLflow's."""
    import mlflow
    import torch
    import torch.distributed as dist

    from sparkdl_runner.tracking import log_metrics, log_model

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 1)
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mlflow.start_run(run_name="compat"):
        mlflow.log_param("learning_rate", 0.1)
        for step in range(1, STEPS + 1):
            inputs = torch.randn(16, 4)
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log_metrics(step, loss=loss, samples=16)
        mlflow.log_text("a note", "note.txt")
    seen = mlflow.MlflowClient().get_run(mlflow.active_run().info.run_id).info.status
    assert seen == "RUNNING", seen
    log_model(
        model,
        input_example=torch.randn(2, 4),
        step=STEPS,
        registered_model_name=model_name,
        alias="champion",
    )
    dist.barrier()
    with torch.no_grad():
        answer: list[float] = network(torch.ones(3, 4)).flatten().tolist()
    dist.destroy_process_group()
    return answer


def main() -> int:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    runner = DistributedRunner(num_proc=-ranks, backend="torch")
    answer = runner.run(train, model_name=MODEL)
    client = mlflow.MlflowClient()
    run = client.get_run(runner.mlflow_run_id)
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
    with TemporaryDirectory() as folder:
        path = client.download_artifacts(run.info.run_id, "note.txt", folder)
        note = Path(path).read_text()
    model = mlflow.pyfunc.load_model(f"models:/{MODEL}@champion")
    predicted = np.ravel(model.predict(np.ones((3, 4), dtype=np.float32)))
    kept = {one.path for one in client.list_artifacts(run.info.run_id)}
    checks = {
        "status": run.info.status == "FINISHED",
        "name": run.info.run_name == "compat",
        "steps": steps == list(range(1, STEPS + 1)),
        "parameters": run.data.params["learning_rate"] == "0.1",
        "note": note == "a note",
        "artifacts": {"logs", "report", "note.txt"} <= kept,
        "model": bool(np.allclose(predicted, answer, atol=1e-5)),
    }
    wrong = [name for name, is_right in checks.items() if not is_right]
    print(f"MLflow {mlflow.__version__}: {f'wrong: {wrong}' if wrong else 'all is there'}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
