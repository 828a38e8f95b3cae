"""Checks of a fit before it takes slots: settings, rows and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.launch.driver.calls.call import pack
from sparkdl_runner.training.description.options import TrainingPlan, columns_of
from sparkdl_runner.training.description.plan import train
from sparkdl_runner.training.fitting.footers import extremes
from sparkdl_runner.training.fitting.tasks import ignored_class

if TYPE_CHECKING:
    from sparkdl_runner.training.fitting.conversions import FitData


def check_settings(plan: TrainingPlan, *, backend: str, has_validation: bool) -> None:
    """Checks how the options of a ``checked`` plan fit together in a fit.

    Raises:
        ValueError: Two do not fit together.
        NotPicklableError: One cannot be sent to the ranks.
    """
    both = set(plan.label_cols) & set(_features(plan))
    if both:
        raise ValueError(
            f"{min(both)!r} is in feature_cols and in label_cols: a model that is given what it "
            "is to predict learns nothing."
        )
    if plan.strategy == "fsdp2" and backend == "horovod":
        raise ValueError("strategy='fsdp2' needs backend='torch', and backend is 'horovod'.")
    metrics = _metric_names(plan.metrics or {})
    if metrics and not has_validation:
        raise ValueError(
            "metrics are of validation data, and there are none: give validation=0.2, or the "
            "name of a column."
        )
    _check_early_stopping(plan, metrics, has_validation)
    # Without a module: it is large, and the code that copies it checks whether it can be sent.
    is_module = hasattr(plan.model, "state_dict")
    pack(train, **vars(replace(plan, model=None if is_module else plan.model)))


def check_rows(data: FitData, plan: TrainingPlan, num_proc: int) -> None:
    """Checks the rows by the conversion's manifest.

    Raises:
        ValueError: There are nulls or lists of several lengths without a rule for them, weights
            below 0, or too few rows.
    """
    pad, images = plan.reading.get("pad"), plan.reading.get("images", {})
    nulls = plan.reading.get("nulls", "error")
    for converter in (data.train, data.validation):
        if converter is None:
            continue
        for column in converter.open()[0].columns:
            name, count = column.name, column.null_count
            how = nulls.get(name, "error") if isinstance(nulls, Mapping) else nulls
            if count and how == "error":
                raise ValueError(
                    f"The column {name!r} has {count:,} null{'s' * (count > 1)}, and a tensor has "
                    f"none: drop or fill them in the DataFrame, or say nulls={{{name!r}: 'fill'}}, "
                    "'nan' or 'mask'."
                )
            is_sized = name in images or (name in pad if isinstance(pad, Mapping) else bool(pad))
            if None in column.list_lengths[:1] and not is_sized:
                raise ValueError(
                    f"The column {name!r} holds lists of several lengths: say to which one they "
                    f"are cut or filled up, by pad={{{name!r}: …}}."
                )
        if weight := plan.sample_weight_col:
            lowest, _ = extremes(converter, [weight]).get(weight, (0, 0))
            if lowest < 0:
                raise ValueError(
                    f"sample_weight_col {weight!r} holds {lowest:g}; weights must be 0 or more."
                )
    rows, batch = len(data.train), abs(num_proc) * plan.batch_size
    if not rows:
        raise ValueError("There are no rows to train with: the table is empty.")
    if rows < batch and plan.training_fn is None:
        ranks, size = abs(num_proc), plan.batch_size
        raise ValueError(
            f"There are {rows} rows to train with, and a step takes {batch} ({ranks} ranks, "
            f"batch_size={size}), so there would be no step: take "
            f"batch_size={max(1, rows // max(1, ranks))} or less."
        )


def check_labels(data: FitData, labels: Mapping[str, tuple[str, int]], losses: Any) -> None:
    """Checks that labels are those of classes, by the statistics in the files' footers.

    Args:
        data: The data sets.
        labels: By label column, its task and the number of classes that the model has for it.
        losses: The loss of all labels, or of each.

    Raises:
        ValueError: One is out of range.
    """
    for converter in (data.train, data.validation):
        if converter is None or not labels:
            continue
        for name, (low, high) in extremes(converter, list(labels)).items():
            task, classes = labels[name]
            loss = losses.get(name) if isinstance(losses, Mapping) else losses
            allowed = low >= 0 or (task == "multiclass" and low == ignored_class(loss))
            if allowed and high < classes:
                continue
            has = f"{classes} outputs, which are the classes 0 to {classes - 1}"
            if task == "binary":
                has = "one output, whose label is 0 or 1"
            elif classes == 1:
                has = "one output"
            raise ValueError(
                f"The label column {name!r} holds values from {low:g} to {high:g}, and the model "
                f"has {has}: give the model as many outputs as there are classes, and number "
                "these from 0."
            )


def _features(plan: TrainingPlan) -> list[str]:
    return columns_of(replace(plan, label_cols=(), sample_weight_col=None))


def _metric_names(metrics: Mapping[str, Any]) -> list[str]:
    """The names that metrics have in a history, without ``val_``."""
    names = []
    for name, metric in metrics.items():
        inner = metric if isinstance(metric, Mapping) else None
        names += [name] if inner is None else [f"{name}_{key}" for key in inner]
    return names


def _check_early_stopping(plan: TrainingPlan, metrics: Sequence[str], has_validation: bool) -> None:
    if plan.early_stopping is None or plan.training_fn is not None:
        return
    watched = plan.early_stopping.metric
    there = ["loss"]
    if has_validation:
        there += [f"val_{name}" for name in ("loss", *metrics)]
    if watched in there:
        return
    hint = ""
    if watched.startswith("val_") and not has_validation:
        hint = " Give validation=0.2, or the name of a column."
    raise ValueError(
        f"early_stopping watches {watched!r}, and an epoch has {', '.join(there)}.{hint}"
    )
