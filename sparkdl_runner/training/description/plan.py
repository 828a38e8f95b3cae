"""The function that trains in each rank, as a plan says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from sparkdl_runner.rank import world
from sparkdl_runner.training.description.options import OPTIONS, TrainingPlan, columns_of

if TYPE_CHECKING:
    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.training.loop.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training, which rank 0 returns."""

    weights: bytes
    """The model's state, as a file of safetensors."""
    history: list[dict[str, float]]
    steps: int
    weights_step: int
    """The steps that were done when the model had these weights."""


def train(
    plan: TrainingPlan,
    train_data: SparkDatasetConverter,
    validation_data: SparkDatasetConverter | None = None,
) -> Trained | None:
    """Trains on this rank's shard. Returns what was trained, on rank 0."""
    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.training.loop.trainer import Trainer

    with ExitStack() as stack:
        checkpoints = None
        if plan.checkpoint_dir is not None:
            best: dict[str, Any] = {}
            if (watched := plan.early_stopping) is not None:
                best = {"best_metric": watched.metric, "best_mode": watched.mode}
            checkpoints = stack.enter_context(
                CheckpointManager(plan.checkpoint_dir, every_seconds=60, **best)
            )
        arguments = OPTIONS.keys() & inspect.signature(Trainer).parameters.keys()
        trainer = Trainer(
            checkpoints=checkpoints,
            on_step=_all_of(plan.callbacks, "on_step"),
            on_epoch=_all_of(plan.callbacks, "on_epoch"),
            **{name: getattr(plan, name) for name in arguments},
        )
        if plan.train_step is not None:
            trainer.train_step = MethodType(plan.train_step, trainer)  # type: ignore[method-assign]
        reading: dict[str, Any] = {
            "batch_size": plan.batch_size,
            "num_epochs": 1,
            "columns": columns_of(plan),
            "transform": plan.transformation_fn,
            **plan.reading,
        }
        train_loader = stack.enter_context(
            train_data.make_torch_dataloader(seed=plan.seed, tail="drop", **reading)
        )
        validation_loader = None
        if validation_data is not None:
            validation_loader = stack.enter_context(
                validation_data.make_torch_dataloader(shuffle=False, tail="pad", **reading)
            )
        if plan.training_fn is not None:
            plan.training_fn(trainer, train_loader, validation_loader)
        else:
            trainer.fit(train_loader, validation_loader, epochs=plan.epochs)
        weights = trainer.weights()
        if trainer.ranks.rank:
            return None
        from safetensors.torch import save

        whole = {name: value.contiguous() for name, value in weights.items()}
        return Trained(
            weights=save(whole),
            history=trainer.history,
            steps=trainer.step,
            weights_step=trainer.best_step if trainer.best_weights else trainer.step,
        )


def train_with_parameters(
    plan: TrainingPlan,
    train_data: SparkDatasetConverter,
    validation_data: SparkDatasetConverter | None,
    parameters: Sequence[tuple[str, str]],
) -> Trained | None:
    """Trains as ``train`` does; before that rank 0 logs parameters to the MLflow run, if any.

    They come as pairs: of a mapping, the runner would log each entry by another name as well.
    """
    from sparkdl_runner.tracking.rank.metrics import log_parameters

    if world.in_worker() and world.current_world().rank == 0:
        log_parameters(dict(parameters))
    return train(plan, train_data, validation_data)


def _all_of(callbacks: Sequence[Any], name: str) -> Callable[[Trainer], None] | None:
    hooks = [getattr(callback, name) for callback in callbacks if hasattr(callback, name)]

    def call(trainer: Trainer) -> None:
        for hook in hooks:
            hook(trainer)

    return call if hooks else None
