"""A training that is described by values, and what each rank does with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

from sparkdl_runner.network.inputs import FeatureCols
from sparkdl_runner.rank import world

if TYPE_CHECKING:
    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.training.loop.early_stopping import EarlyStopping
    from sparkdl_runner.training.loop.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """All that a rank needs to know to train, beside the data. For the fields see ``Trainer``."""

    model: Any
    optimizer: Any
    loss: Any
    feature_cols: FeatureCols
    label_cols: Sequence[str]
    epochs: int = 1
    batch_size_per_rank: int = 32
    loss_weights: Mapping[str, float] | None = None
    class_weights: Mapping[int, float] | Mapping[str, Mapping[int, float]] | None = None
    sample_weight_col: str | None = None
    metrics: Mapping[str, Any] | None = None
    lr_scheduler: Any = None
    warmup_epochs: float = 0
    gradient_accumulation_steps: int = 1
    gradient_clip_norm: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    early_stopping: EarlyStopping | None = None
    checkpoint_dir: str | None = None
    seed: int = 0
    callbacks: Sequence[Any] = ()
    """Objects with ``on_step(trainer)``, ``on_epoch(trainer)``, or both."""
    transformation_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Changes each batch, in the loader's thread."""
    train_step: Callable[[Trainer, Mapping[str, Any]], Any] | None = None
    """Takes the place of ``Trainer.train_step``."""
    training_fn: Callable[[Trainer, Any, Any], Any] | None = None
    """Takes the place of ``Trainer.fit``: is called with the trainer and both loaders."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """How columns become tensors: ``nulls``, ``pad``, ``images`` and such, as ``ArrowLoader``."""


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
        arguments = {name: getattr(plan, name) for name in _OF_TRAINER}
        trainer = Trainer(
            checkpoints=checkpoints,
            on_step=_all_of(plan.callbacks, "on_step"),
            on_epoch=_all_of(plan.callbacks, "on_epoch"),
            **arguments,
        )
        if plan.train_step is not None:
            trainer.train_step = MethodType(plan.train_step, trainer)  # type: ignore[method-assign]
        reading: dict[str, Any] = {
            "batch_size": plan.batch_size_per_rank,
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


# Names that a plan and ``Trainer`` share.
_OF_TRAINER = (
    *("model", "optimizer", "loss", "feature_cols", "label_cols", "loss_weights"),
    *("class_weights", "sample_weight_col", "metrics", "lr_scheduler", "warmup_epochs"),
    *("gradient_accumulation_steps", "gradient_clip_norm", "precision", "strategy"),
    *("early_stopping", "seed"),
)


def columns_of(plan: TrainingPlan) -> list[str]:
    """All columns that the training reads."""
    columns: list[str] = []
    for entry in (
        plan.feature_cols.values() if isinstance(plan.feature_cols, Mapping) else plan.feature_cols
    ):
        columns += [entry] if isinstance(entry, str) else list(entry)
    columns += plan.label_cols
    columns += [] if plan.sample_weight_col is None else [plan.sample_weight_col]
    return list(dict.fromkeys(columns))


def _all_of(callbacks: Sequence[Any], name: str) -> Callable[[Trainer], None] | None:
    hooks = [getattr(one, name) for one in callbacks if hasattr(one, name)]

    def call(trainer: Trainer) -> None:
        for hook in hooks:
            hook(trainer)

    return call if hooks else None
