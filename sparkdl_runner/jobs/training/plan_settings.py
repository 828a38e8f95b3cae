"""The settings of a training that has no function: its model, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from sparkdl_runner.jobs.settings import Settings, settings_like
from sparkdl_runner.jobs.training.named_things import check_form, is_named
from sparkdl_runner.training.loop.early_stopping import EarlyStopping

REQUIRED = ("model", "loss", "optimizer")


def _each(value: Any) -> Any:
    if isinstance(value, list) and value:
        return [check_form(one) for one in value]
    return check_form(value)


def _by_name(value: Any) -> Any:
    """Several by their names, and these again by label; or one."""
    if is_named(value) or not isinstance(value, Mapping) or not value:
        return check_form(value)
    return {name: _by_name(one) for name, one in value.items()}


# Only their form is checked here: their arguments are checked when the objects are made.
_Named = Annotated[Any, pydantic.AfterValidator(check_form)]
_Several = Annotated[Any, pydantic.AfterValidator(_each)]
_ByName = Annotated[Any, pydantic.AfterValidator(_by_name)]


class EarlyStoppingSettings(settings_like(EarlyStopping, without=["best", "best_epoch"])):  # type: ignore[misc]
    """The fields of ``EarlyStopping`` that a person chooses."""


class PlanSettings(Settings):
    """The settings of a training without a function: the fields of ``TrainingPlan``."""

    model: _Several = pydantic.Field(
        None,
        description="in place of a function: the model to train, as module:name of a class or "
        "function that makes it, or {class: module:name, argument: value}; or a list of layers",
    )
    loss: _ByName = pydantic.Field(
        None, description="compares an output and a label; in YAML also one for each label column"
    )
    optimizer: _Named = pydantic.Field(
        None, description="makes the optimizer: {class: torch.optim:Adam, lr: 1e-3}"
    )
    feature_cols: list[str] | dict[str, str | list[str]] = pydantic.Field(
        ["features"], description="the columns that the model takes; or those of each argument"
    )
    label_cols: list[str] = pydantic.Field(
        ["label"], description="the columns of what is to be predicted"
    )
    validation: float | str | None = pydantic.Field(
        None,
        description="a share of train_data's rows, or the column that is true for them, where "
        "there is no data.validation_data",
    )
    metrics: _ByName = pydantic.Field(None, description="torchmetrics by name")
    epochs: int = pydantic.Field(1, ge=1, description="passes over the rows")
    batch_size_per_rank: int = pydantic.Field(32, ge=1, description="rows in a batch of one rank")
    lr_scheduler: _Named = pydantic.Field(
        None, description="makes the scheduler of the optimizer; it takes a step after each epoch"
    )
    warmup_epochs: float = pydantic.Field(
        0, ge=0, description="epochs in which the learning rate grows to num_proc times"
    )
    early_stopping: EarlyStoppingSettings | None = pydantic.Field(
        None, description="fields of EarlyStopping, such as metric=val_loss patience=3"
    )
    gradient_accumulation_steps: int = pydantic.Field(
        1, ge=1, description="batches to a step of the optimizer"
    )
    gradient_clip_norm: float | None = pydantic.Field(
        None, gt=0, description="to what norm gradients are cut"
    )
    precision: Literal["fp32", "bf16"] = pydantic.Field("fp32", description="of computing")
    strategy: Literal["ddp", "fsdp2"] = pydantic.Field(
        "ddp", description="whether a rank has the whole model, or a part"
    )
    sample_weight_col: str | None = pydantic.Field(
        None, description="the column that says what a row counts"
    )
    class_weights: dict[int, float] | dict[str, dict[int, float]] | None = pydantic.Field(
        None, description="what a row counts, by its class"
    )
    loss_weights: dict[str, float] | None = pydantic.Field(
        None, description="what the loss of each label column counts"
    )
    seed: int = pydantic.Field(0, description="of the first weights and of the order of rows")
    nulls: str | dict[str, Any] | None = pydantic.Field(
        None, description="error, fill, nan or mask, for all columns or by column"
    )
    fill_value: Any = pydantic.Field(None, description="what nulls become")
    pad: int | dict[str, Any] | None = pydantic.Field(
        None, description="to what length lists are filled up, for all or by column"
    )
    images: dict[str, Any] | None = pydantic.Field(
        None, description="to what size encoded images are brought, by column"
    )
    transformation_fn: _Named = pydantic.Field(
        None, description="a function that changes each batch before the model"
    )
    train_step: _Named = pydantic.Field(
        None, description="a function that returns the loss of a batch: train_step(trainer, batch)"
    )
    training_fn: _Named = pydantic.Field(
        None, description="a function that trains: training_fn(trainer, train, validation)"
    )
    callbacks: _Several = pydantic.Field(
        None, description="objects with on_step(trainer) or on_epoch(trainer)"
    )
