"""A training whose model is logged to its MLflow run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.rank import world
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tracking.models.log_checks import check_can_log
from sparkdl_runner.training.description.options import TrainingPlan, columns_of
from sparkdl_runner.training.description.plan import Trained, train

if TYPE_CHECKING:
    import torch

    from sparkdl_runner.data import SparkDatasetConverter


def train_and_log(
    plan: TrainingPlan,
    train_data: SparkDatasetConverter,
    validation_data: SparkDatasetConverter | None = None,
    checkpoint_url: str | None = None,
) -> dict[str, float] | None:
    """Trains on this rank's shard, and logs the model.

    Returns:
        On rank 0 the losses and metrics of the epoch whose weights were kept, and how many epochs
        and steps there were.
    """
    if checkpoint_url is not None:
        plan = dataclasses.replace(plan, checkpoint_dir=checkpoint_url)
    if not world.in_worker() or world.current_world().rank == 0:
        check_can_log(_bytes_of(plan.model))
    trained = train(plan, train_data, validation_data)
    if trained is None:
        return None
    _log_model(plan, trained, train_data)
    history, kept = trained.history, -1
    if plan.early_stopping is not None and history:
        kept = plan.early_stopping.best_epoch(history)
    return {**(history[kept] if history else {}), "epochs": len(history), "steps": trained.steps}


def _bytes_of(model: Any) -> int:
    """The size of a network's weights; 0 of one that is yet to be made."""
    weights: dict[str, Any] = getattr(model, "state_dict", dict)()
    return sum(tensor.nbytes for tensor in weights.values() if hasattr(tensor, "nbytes"))


def _log_model(plan: TrainingPlan, trained: Trained, data: SparkDatasetConverter) -> None:
    """Logs it so that it takes the columns of the training by their names, where it can."""
    from safetensors.torch import load
    from torch import nn

    from sparkdl_runner.tracking import log_model

    network = plan.model if isinstance(plan.model, nn.Module) else plan.model()
    network.load_state_dict(load(trained.weights))
    inputs = Inputs.of(plan.feature_cols, network)
    if inputs.extra:
        tell(
            f"the model was not logged: it takes {', '.join(inputs.extra)}, which "
            "is no column of a table. Train it by TorchEstimator, and log it by log_torch_model.",
            sys.stdout,
        )
        return
    example, columns = read_example(plan, inputs, data)
    saved: dict[str, Any] = {"step": trained.weights_step}
    if trained.weights_step != trained.steps:
        saved["checkpoint"] = ""  # The newest one holds other weights.
    log_model(network, input_example=example, columns=columns, **saved)


def read_example(plan: TrainingPlan, inputs: Inputs, data: SparkDatasetConverter) -> Any:
    """Reads two rows of a training's data; see ``example_of``."""
    reading: dict[str, Any] = {
        "columns": columns_of(plan),
        "transform": plan.transformation_fn,
        **plan.reading,
    }
    with data.make_torch_dataloader(
        2, num_epochs=1, shuffle=False, cur_shard=0, shard_count=1, **reading
    ) as loader:
        batch = next(iter(loader))
    return example_of(inputs, batch)


def example_of(inputs: Inputs, batch: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
    """The network's arguments for a batch, and its columns, as ``log_model`` takes them."""
    positional, named = inputs(batch)
    if positional:
        return positional[0], inputs.columns
    return named, {name: list(columns) for name, columns in inputs.arguments.items()}
