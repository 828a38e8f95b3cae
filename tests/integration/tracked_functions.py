"""Functions that ranks run in the tests of tracking."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkdl_runner import current_world
from sparkdl_runner.tracking import log_metrics


def join() -> Any:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist


def plain_mlflow(secret: str | None = None) -> str:
    """What somebody's code does on every rank, without asking which one it is."""
    dist = join()
    rank = current_world().rank
    assert ("MLFLOW_TRACKING_PASSWORD" in os.environ) == (secret is not None)
    import mlflow

    experiment = mlflow.get_run(mlflow.active_run().info.run_id).info.experiment_id
    mlflow.set_experiment(mlflow.get_experiment(experiment).name)
    mlflow.log_param("learning_rate", 0.1)
    with mlflow.start_run(run_name="not a run of its own"):
        for epoch in range(3):
            mlflow.log_metric("plain", epoch + rank, step=epoch)
    mlflow.end_run()
    mlflow.set_tag("said_by", f"rank {rank}")
    mlflow.log_text(f"text of rank {rank}", "note.txt")
    client = mlflow.MlflowClient()
    client.log_metric(mlflow.active_run().info.run_id, "by_client", 1.0)
    print(f"rank {rank} says {secret}")
    dist.barrier()
    return mlflow.active_run().info.run_id


def log_parameter() -> None:
    """The same, in short."""
    import mlflow

    mlflow.log_param("learning_rate", 0.1)


def in_an_experiment_of_its_own(experiment: str) -> None:
    """What a function does that was made for one process."""
    import mlflow

    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name="its own"):
        mlflow.log_metric("plain", 1.0)


def in_an_experiment_that_no_source_tells(*names: str) -> None:
    """The same, with a name that the driver cannot know."""
    import mlflow

    mlflow.set_experiment("-".join(names))
    with mlflow.start_run(run_name="its own"):
        mlflow.log_metric("plain", 1.0)


def nested() -> list[str]:
    """A child on rank 0, which is asked for, is a run of its own."""
    import mlflow

    outer = mlflow.active_run().info.run_id
    with mlflow.start_run(nested=True, run_name="child") as child:
        mlflow.log_param("of_the_child", "yes")
    mlflow.log_param("of_the_parent", "yes")
    return [outer, child.info.run_id]


def autologged() -> None:
    """MLflow logs by itself, on every rank."""
    import mlflow
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    mlflow.autolog()
    pixels, labels = load_digits(return_X_y=True)
    LogisticRegression(max_iter=5).fit(pixels / 16, labels)


def only_log(steps: int, pause_seconds: float = 0.0) -> int:
    for step in range(1, steps + 1):
        time.sleep(pause_seconds)
        log_metrics(step, loss=1 / step, samples=4, total_steps=steps)
    return current_world().attempt


def log_and_wait_in_the_middle(steps: int, folder: Path) -> None:
    """Logs half of the steps, and the others once somebody says so."""
    for step in range(1, steps + 1):
        time.sleep(0.01)
        log_metrics(step, loss=1 / step, samples=4, total_steps=steps)
        if step == steps // 2:
            (folder / "half").touch()
            while not (folder / "go on").exists():
                time.sleep(0.05)


def fail_late() -> None:
    log_metrics(1, loss=1.0)
    if current_world().rank == 1:
        raise ValueError("the data are bad: token=sesame-open-you")
    time.sleep(600)


def wait_for_ever() -> None:
    time.sleep(600)


def odd_metrics() -> None:
    log_metrics(1, loss=float("nan"), norm=float("inf"))
    log_metrics(2, loss=0.5, norm=1.0)
    import mlflow

    mlflow.log_param("long", "x" * 9000)
    mlflow.log_param("attempt_dependent", current_world().attempt)


def train_with_checkpoints(url: str, steps: int, every: int, die_at: Sequence[int] = ()) -> Any:
    """A training whose weights tell whether it was disturbed; returns them, and its attempt.

    Each attempt dies at its own step of ``die_at``; one that has none there ends.
    """
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    dist = join()
    world = current_world()
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(100 + world.rank)
    with CheckpointManager(url, every_steps=every) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        first = restored.step if restored else 0
        for step in range(first + 1, steps + 1):
            loss = model(torch.randn(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            log_metrics(step, loss=loss, samples=16)
            if checkpoints.due(step):
                checkpoints.save(step, model, optimizer)
            if world.rank == 1 and (step,) == tuple(die_at[world.attempt : world.attempt + 1]):
                # On a busy machine the checkpoint before may still be on its way.
                before = (step - 1) // every * every
                while before and before not in {name.step for name in checkpoints.list()}:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return {"weights": weights, "first_step": first, "attempt": world.attempt}


def asked_to_end(url: str) -> Any:
    """Rank 1's host says that it is about to go, at step 7 of attempt 0."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager

    join()
    world = current_world()
    model = torch.nn.Linear(2, 1)
    with CheckpointManager(url) as checkpoints:
        restored = checkpoints.restore(model)
        first = restored.step if restored else 0
        for step in range(first + 1, 30):
            time.sleep(0.02)
            log_metrics(step, loss=1.0)
            if step == 7 and world.rank == 1 and world.attempt == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            if checkpoints.due(step):
                checkpoints.save(step, model)
    return {"first_step": first, "attempt": world.attempt}


def traced(steps: int) -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    for step in range(1, steps + 1):
        hvd.allreduce(torch.ones(100), name="x")
        log_metrics(step, loss=1.0)
    hvd.barrier() if hasattr(hvd, "barrier") else hvd.allreduce(torch.ones(1), name="end")


class Unreadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def return_what_is_no_number() -> Unreadable:
    return Unreadable()


def says_and_waits(sign: str) -> None:
    """Prints a line, and another once a file is there."""
    print("first words", flush=True)
    while not Path(sign).exists():
        time.sleep(0.05)
    print("<b>last words", flush=True)
    log_metrics(1, {"loss": 0.5})
    log_metrics(2, {"loss": 0.25})
