"""Infers the task (regression, multiclass, …) of each label from its loss."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl_runner.tensors.outputs import Task

_MULTICLASS = ("cross_entropy", "nll_loss", "multi_margin_loss")
_BINARY = ("binary_cross_entropy_with_logits",)
_OF_CLASSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}


def tasks_of(
    labels: Sequence[str],
    loss: Any,
    task: str | Mapping[str, str] | None,
    lists: Sequence[str] = (),
) -> dict[str, Task]:
    """Returns the task of each label.

    Args:
        labels: The label columns.
        loss: One for all labels, or one for each by its column.
        task: What the user says, for all labels or for each; None goes by the loss:
            cross entropy and negative log likelihood are of classes, binary cross entropy with
            logits is of two classes, or of several labels at once where the label is a list.
            All else is regression.
        lists: Those of the labels that are arrays or vectors.
    """
    tasks: dict[str, Task] = {}
    for label in labels:
        said = task.get(label) if isinstance(task, Mapping) else task
        of_label = loss.get(label) if isinstance(loss, Mapping) else loss
        tasks[label] = said or _by_loss(of_label, is_list=label in lists)  # type: ignore[assignment]
    return tasks


def ignored_class(loss: Any) -> int | None:
    """The label that a loss leaves out, if any: -100 of cross entropy, unless it says another."""
    said = getattr(loss, "ignore_index", None)
    if isinstance(loss, functools.partial):
        said = loss.keywords.get("ignore_index")
    default = -100 if _name(loss) in ("cross_entropy", "nll_loss") else None
    return default if said is None else int(said)


def _by_loss(loss: Any, *, is_list: bool) -> Task:
    name = _name(loss)
    if name in _MULTICLASS:
        return "multiclass"
    if name in _BINARY:
        return "multilabel" if is_list else "binary"
    return "regression"


def _name(loss: Any) -> str:
    """The loss's name in torch.nn.functional."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    for kind in type(loss).__mro__:
        if kind.__name__ in _OF_CLASSES and kind.__module__.startswith("torch."):
            return _OF_CLASSES[kind.__name__]
    is_of_torch = str(getattr(loss, "__module__", "")).startswith("torch.")
    return str(getattr(loss, "__name__", "")) if is_of_torch else ""
