"""Checks the kinds of a training's parts before any rank starts.

Needs torch, and neither data nor other ranks, so that a driver can ask as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.training.loop.early_stopping import EarlyStopping
from sparkdl_runner.training.loop.ranks import STRATEGIES

PRECISIONS = ("fp32", "bf16")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Checks the parts of a training, and its numbers.

    Args:
        arguments: Those of ``Trainer``, by name: ``vars(plan)`` of a ``TrainingPlan``.

    Raises:
        TypeError: One is of another kind.
        ValueError: One is out of range, or names a label column that there is not.
    """
    check_model(arguments["model"])
    check_optimizer(arguments["optimizer"])
    if arguments["lr_scheduler"] is not None:
        _require_maker("lr_scheduler", arguments["lr_scheduler"], _SCHEDULERS, "the optimizer")
    labels = arguments["label_cols"]
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise TypeError(f"label_cols is {labels!r}; expected a list of columns.")
    _check_loss(arguments["loss"], labels)
    _require_labels("loss_weights", arguments["loss_weights"] or {}, labels)
    weights = arguments["class_weights"] or {}
    if any(isinstance(key, str) for key in weights):
        _require_labels("class_weights", weights, labels)
    _check_metrics(arguments["metrics"], labels)
    stopping = arguments["early_stopping"]
    if stopping is not None and not isinstance(stopping, EarlyStopping):
        raise TypeError(
            f"early_stopping is {_shown(stopping)}; expected EarlyStopping(patience=…)."
        )
    _check_values(arguments)


def made(model: Any) -> nn.Module:
    """The module, or what the function makes.

    Raises:
        TypeError: That is no module.
    """
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise TypeError(f"model() returned {_shown(module)}; expected a torch.nn.Module.")
    return module


def check_model(model: Any) -> None:
    """Raises TypeError for what is neither a module nor can make one."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise TypeError(
            f"model is {_shown(model)}; expected a torch.nn.Module, or a function that makes one."
        )


def check_optimizer(optimizer: Any) -> None:
    """Raises TypeError for what cannot make an optimizer."""
    _require_maker("optimizer", optimizer, _OPTIMIZERS, "the model's parameters")


def check_precision(precision: Any) -> None:
    """Raises ValueError for what is no precision."""
    _require_known("precision", precision, PRECISIONS)


def _check_loss(loss: Any, labels: Sequence[str]) -> None:
    losses = loss if isinstance(loss, Mapping) else dict.fromkeys(labels, loss)
    _require_labels("loss", losses, labels)
    missing = [label for label in labels if label not in losses]
    if missing:
        raise ValueError(
            f"loss has none for the label column {missing[0]!r}: give one for each, "
            f"{{{missing[0]!r}: …}}."
        )
    for one in losses.values():
        if isinstance(one, type):
            raise TypeError(f"loss is the class {one.__name__}; expected {one.__name__}().")
        if not callable(one):
            raise TypeError(
                f"loss is {_shown(one)}; expected a function of an output and a label, such as "
                "torch.nn.functional.cross_entropy, or one for each label column."
            )


def _check_values(arguments: Mapping[str, Any]) -> None:
    require_whole("gradient_accumulation_steps", arguments["gradient_accumulation_steps"], least=1)
    require_whole("seed", arguments["seed"], least=0)
    warmup_epochs, clip_norm = arguments["warmup_epochs"], arguments["gradient_clip_norm"]
    if not 0 <= warmup_epochs < math.inf:
        raise ValueError(f"warmup_epochs is {warmup_epochs}; expected 0 or more.")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"gradient_clip_norm is {clip_norm}; expected more than 0.")
    check_precision(arguments["precision"])
    _require_known("strategy", arguments["strategy"], STRATEGIES)


def _require_known(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, known))}.")


_OPTIMIZERS = (torch.optim.Optimizer,)
_SCHEDULERS = (
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.lr_scheduler.ReduceLROnPlateau,
)


def _require_maker(name: str, value: Any, kinds: tuple[type, ...], of: str) -> None:
    if callable(value) and not isinstance(value, kinds):
        return
    hint = ""
    if isinstance(value, kinds):
        kind = type(value)
        module = kind.__module__.removesuffix(f".{kind.__name__.lower()}")
        hint = f", such as functools.partial({module}.{kind.__name__}, …): each rank makes its own"
    raise TypeError(f"{name} is {_shown(value)}; expected a function that makes one of {of}{hint}.")


def _require_labels(name: str, given: Mapping[str, Any], label_cols: Sequence[str]) -> None:
    unknown = [label for label in given if label not in label_cols]
    if unknown:
        raise ValueError(
            f"{name} names {unknown[0]!r}, and the label columns are {', '.join(label_cols)}."
        )


def _check_metrics(metrics: Any, label_cols: Sequence[str]) -> None:
    if metrics is None:
        return
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics is {_shown(metrics)}; expected metrics of torchmetrics by name.")
    nested = {key: one for key, one in metrics.items() if isinstance(one, Mapping)}
    _require_labels("metrics", nested, label_cols)
    plain = {key: one for key, one in metrics.items() if key not in nested}
    if plain and (len(label_cols) > 1 or nested):
        raise ValueError(
            f"metrics names {next(iter(plain))!r}, and there are {len(label_cols)} label columns: "
            f"expected {{label: {{name: metric}}}} with {', '.join(label_cols)}."
        )
    for name, one in [*plain.items(), *(pair for some in nested.values() for pair in some.items())]:
        if isinstance(one, type) or not all(
            hasattr(one, wanted) for wanted in ("update", "compute", "reset", "update_count")
        ):
            raise TypeError(
                f"metrics[{name!r}] is {_shown(one)}; expected a metric of torchmetrics, such as "
                "torchmetrics.MeanSquaredError()."
            )


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    return f"of type {type(value).__name__}"
