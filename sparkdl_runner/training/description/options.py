"""The options of a training, each described in one place.

A field of ``TrainingPlan`` says what an option means, what it may be, and its default. All else
follows: ``checked`` refuses a value in the same words wherever it is given, and the Params of
``TorchEstimator``, the keys and flags of a job and the reference are made of these fields.
"""

# ruff: noqa: RUF009 - what _option returns is a field, made anew for each name.

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, TypeVar

from sparkdl_runner.tensors.inputs import FeatureCols
from sparkdl_runner.tensors.outputs import TASKS
from sparkdl_runner.training.description import kinds
from sparkdl_runner.training.description.kinds import Kind
from sparkdl_runner.training.loop.early_stopping import EarlyStopping


def _option(text: str, kind: Kind, default: Any = MISSING, *, is_key: bool = True) -> Any:
    """A field.

    Args:
        text: What it means, in a line.
        kind: What it may be.
        default: Its value where none is given; None is allowed only as the default.
        is_key: Whether it is a key of a job's settings. If not, the job has it from elsewhere.
    """
    return field(default=default, metadata={"text": text, "kind": kind, "is_key": is_key})


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The options of a training: all that a rank needs to know of it, beside the data."""

    model: Any = _option("a torch.nn.Module, or a function or class that makes one", kinds.model)
    optimizer: Any = _option(
        "makes the optimizer of the model's parameters",
        kinds.Factory("the model's parameters", "functools.partial(torch.optim.Adam, lr=1e-3)"),
    )
    loss: Any = _option(
        "compares an output and a label; one for all label columns, or one for each by its name",
        kinds.loss,
    )
    feature_cols: FeatureCols = _option(
        "the columns that the model takes; or the columns of each of its arguments",
        kinds.columns_of_arguments,
        ("features",),
    )
    label_cols: Sequence[str] = _option(
        "the columns of what is to be predicted; a model with several has an output for each",
        kinds.columns,
        ("label",),
    )
    task: str | Mapping[str, str] | None = _option(
        "what the outputs mean: regression, binary, multiclass or multilabel; for all label "
        "columns or by name; by default as the loss has it",
        kinds.by_name(kinds.choice(*TASKS)),
        None,
        is_key=False,
    )
    validation: float | str | None = _option(
        "a share of the rows, or the column that is true for the rows to validate with",
        kinds.share_or_column,
        None,
    )
    metrics: Mapping[str, Any] | None = _option(
        "metrics of torchmetrics by name; of several labels, by label and name. They get "
        "probabilities where the loss takes scores",
        kinds.metrics,
        None,
    )
    epochs: int = _option("passes over the rows", kinds.whole(1), 1)
    batch_size: int = _option("rows in a batch of one rank", kinds.whole(1), 32)
    lr_scheduler: Any = _option(
        "makes the scheduler of the optimizer, which takes a step after each epoch",
        kinds.Factory(
            "the optimizer", "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)"
        ),
        None,
    )
    warmup_epochs: float = _option(
        "over so many epochs the learning rate grows from the optimizer's own to that times the "
        "number of ranks, where it stays",
        kinds.not_negative,
        0,
    )
    early_stopping: EarlyStopping | None = _option(
        "an EarlyStopping, which ends the training and takes back the best weights",
        kinds.instance(EarlyStopping),
        None,
    )
    gradient_accumulation_steps: int = _option(
        "batches of a rank to a step of the optimizer. The last step of an epoch may have fewer, "
        "and takes their mean all the same",
        kinds.whole(1),
        1,
    )
    gradient_clip_norm: float | None = _option(
        "to what norm gradients are cut", kinds.positive, None
    )
    precision: Literal["fp32", "bf16"] = _option(
        "'bf16' computes in bfloat16 where torch's autocast does so",
        kinds.choice("fp32", "bf16"),
        "fp32",
    )
    strategy: Literal["ddp", "fsdp2"] = _option(
        "'ddp': each rank has the whole model; 'fsdp2': a part of it, with backend torch",
        kinds.choice("ddp", "fsdp2"),
        "ddp",
    )
    sample_weight_col: str | None = _option(
        "the column that says what a row counts in the loss", kinds.text, None
    )
    class_weights: Mapping[int, float] | Mapping[str, Mapping[int, float]] | None = _option(
        "what a row counts in the loss, by the class that is its label, and 1 where none is given; "
        "of several labels, by label and class",
        kinds.weights,
        None,
    )
    loss_weights: Mapping[str, float] | None = _option(
        "what the loss of each label column counts", kinds.weights, None
    )
    seed: int = _option(
        "of the model's first weights, the order of rows, and which rows a share is",
        kinds.whole(0),
        0,
    )
    checkpoint_dir: str | None = _option(
        "the folder in which a fit that was cut off finds its checkpoints and goes on; each other "
        "fit has a folder of its own in there",
        kinds.text,
        None,
        is_key=False,  # It is the key checkpoint_url.
    )
    nulls: str | Mapping[str, Any] = _option(
        "'error', 'fill', 'nan' or 'mask', for all columns or by column",
        kinds.by_name(kinds.choice("error", "fill", "nan", "mask")),
        "error",
    )
    fill_value: Any = _option("what nulls become", kinds.checked_by_loader, None)
    pad: int | Mapping[str, Any] | None = _option(
        "to what length lists are cut or filled up, for all columns or by column",
        kinds.by_name(kinds.length),
        None,
    )
    images: Mapping[str, Any] | None = _option(
        "(height, width), (height, width, mode) or a dict with exif, to which encoded images are "
        "brought, by column",
        kinds.mapping,
        None,
    )
    transformation_fn: Callable[..., Any] | None = _option(
        "changes each batch, a dict of tensors, in training and validation, not in transform",
        kinds.Function(("the batch",)),
        None,
    )
    train_step: Callable[..., Any] | None = _option(
        "returns the loss of a batch, in place of the Trainer's own: train_step(trainer, batch)",
        kinds.Function(("the trainer", "the batch")),
        None,
    )
    training_fn: Callable[..., Any] | None = _option(
        "trains, in place of the Trainer's own loop: training_fn(trainer, train_data, "
        "validation_data)",
        kinds.Function(("the trainer", "train_data", "validation_data")),
        None,
    )
    callbacks: Sequence[Any] = _option(
        "objects with on_step(trainer) or on_epoch(trainer)", kinds.callbacks, ()
    )

    @property
    def reading(self) -> dict[str, Any]:
        """How columns become tensors, as ``ArrowLoader`` takes it."""
        given = {name: getattr(self, name) for name in READING}
        return {name: value for name, value in given.items() if value is not None}


Taker = TypeVar("Taker")

READING = ("nulls", "fill_value", "pad", "images")
OPTIONS: dict[str, Field[Any]] = {option.name: option for option in fields(TrainingPlan)}
REQUIRED = tuple(name for name, option in OPTIONS.items() if option.default is MISSING)


def text_of(name: str) -> str:
    """The text of an option. If its value is a function, the text ends with an example."""
    text, kind = (OPTIONS[name].metadata[part] for part in ("text", "kind"))
    return f"{text}: {kind.example}" if isinstance(kind, kinds.Factory) else str(text)


def documented(taker: type[Taker]) -> type[Taker]:
    """Adds the options that a class takes to the arguments in its docstring."""
    lines = ""
    for name in inspect.signature(taker).parameters:
        if name in OPTIONS:
            text, default = text_of(name), OPTIONS[name].default
            if default not in (None, MISSING):
                text += f"; by default {checked_option(name, default)!r}"
            lines += f"        {name}: {text[:1].upper()}{text[1:]}.\n"
    taker.__doc__ = (taker.__doc__ or "").replace("    Args:\n", f"    Args:\n{lines}", 1)
    return taker


def checked(given: Mapping[str, Any]) -> TrainingPlan:
    """The plan of a training, whose options are all of their kinds and name the same labels.

    Args:
        given: Options by name. Other names are passed over.

    Raises:
        TypeError: One is of another kind.
        ValueError: One is out of range, or names a label column that there is not.
    """
    options = {
        name: checked_option(name, given.get(name, option.default))
        for name, option in OPTIONS.items()
        if name in given or name not in REQUIRED
    }
    labels = options["label_cols"]
    for name in ("loss", "loss_weights"):
        if isinstance(options.get(name), list):
            options[name] = _by_label(name, options[name], labels)
    if isinstance(weights := options["class_weights"], list):
        options["class_weights"] = dict(enumerate(weights))
    plan = TrainingPlan(**options)
    of_labels = [key for key in plan.class_weights or {} if isinstance(key, str)]
    _check_labels("class_weights", of_labels, labels, each=False)
    for name in ("loss", "task", "loss_weights"):
        if isinstance(value := getattr(plan, name), Mapping):
            _check_labels(name, value, labels, each=name != "loss_weights")
    _check_metrics(plan.metrics or {}, labels)
    return plan


def checked_option(name: str, value: Any) -> Any:
    """The value of an option in one form. None stays None where that is the default.

    Raises:
        TypeError: It is of another kind.
        ValueError: It is out of range.
    """
    option = OPTIONS[name]
    if value is None and option.default is None:
        return None
    return option.metadata["kind"](name, value)


def columns_of(plan: TrainingPlan) -> list[str]:
    """All columns that the training reads."""
    features = plan.feature_cols
    columns: list[str] = []
    for entry in features.values() if isinstance(features, Mapping) else features:
        columns += [entry] if isinstance(entry, str) else list(entry)
    columns += plan.label_cols
    columns += [] if plan.sample_weight_col is None else [plan.sample_weight_col]
    return list(dict.fromkeys(columns))


def _by_label(name: str, values: Sequence[Any], labels: Sequence[str]) -> dict[str, Any]:
    """A list of one value for each label, by label."""
    if len(values) != len(labels):
        raise ValueError(
            f"{name} is a list of {len(values)}, and label_cols has {len(labels)} "
            f"({', '.join(labels)}): give one for each."
        )
    return dict(zip(labels, values, strict=True))


def _check_labels(name: str, given: Collection[str], labels: Sequence[str], *, each: bool) -> None:
    unknown = [label for label in given if label not in labels]
    missing = [label for label in labels if label not in given] if each else []
    if unknown or missing:
        what = f"names {unknown[0]!r}" if unknown else f"has nothing for {missing[0]!r}"
        raise ValueError(f"{name} {what}, and label_cols are {', '.join(labels)}.")


def _check_metrics(metrics: Mapping[str, Any], labels: Sequence[str]) -> None:
    of_labels = [name for name, metric in metrics.items() if isinstance(metric, Mapping)]
    _check_labels("metrics", of_labels, labels, each=False)
    plain = [name for name in metrics if name not in of_labels]
    if plain and (of_labels or len(labels) > 1):
        raise ValueError(
            f"metrics names {plain[0]!r} for all of {', '.join(labels)}: give them by label, such "
            f"as {{{labels[0]!r}: {{{plain[0]!r}: …}}}}."
        )
