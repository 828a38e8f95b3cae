"""The meaning of a network's outputs: a number, a class, or several classes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

Task = Literal["regression", "binary", "multiclass", "multilabel"]
TASKS: tuple[Task, ...] = get_args(Task)
PREDICTION, PROBABILITY, RAW_PREDICTION = "prediction", "probability", "rawPrediction"


@dataclass(frozen=True)
class Output:
    """The meaning of the output for one label.

    Attributes:
        task: A number, one of two classes, one of several, or several labels at once.
        size: How many numbers it has for a row; None is one number of a regression, and any count
            of classes or labels.
    """

    task: Task
    size: int | None = None

    @property
    def columns(self) -> dict[str, bool]:
        """The columns of a prediction, and whether each holds several numbers a row."""
        several = self.task == "multilabel"
        if self.task == "regression":
            return {PREDICTION: self.size is not None and self.size > 1}
        return {RAW_PREDICTION: True, PROBABILITY: True, PREDICTION: several}


def checked(output: torch.Tensor, expected: Output, label: str) -> torch.Tensor:
    """The output, if it has the size that is expected of it.

    Raises:
        ValueError: It has another one.
    """
    output = without_last_one(output)
    wanted = None if expected.size is None else expected.size
    if expected.task == "regression" or expected.task == "binary":
        wanted = wanted or 1
    size = 1 if output.ndim == 1 else output.shape[1]
    if output.ndim > 2 or (wanted is not None and size != wanted):
        numbers = "any count of" if wanted is None else str(wanted)
        raise ValueError(
            f"The model returned {list(output.shape)} for {label!r}; expected {numbers} numbers a "
            f"row for the task {expected.task!r}."
        )
    return output


def by_label(value: Any, labels: Sequence[str]) -> dict[str, torch.Tensor]:
    """Returns the output for each label column.

    Args:
        value: What ``forward`` returned: one tensor, several in the order of the labels, or a
            mapping by label column.
        labels: The label columns.

    Raises:
        TypeError: It is none of these, or there are fewer outputs than labels.
    """
    import torch

    if isinstance(value, Mapping) and all(label in value for label in labels):
        return {label: value[label] for label in labels}
    if isinstance(value, torch.Tensor) and len(labels) == 1:
        return {labels[0]: value}
    if isinstance(value, (tuple, list)) and len(value) == len(labels):
        return dict(zip(labels, value, strict=True))
    returned = f"a {type(value).__name__}"
    if isinstance(value, (tuple, list, Mapping)):
        returned += f" of {len(value)}" + (
            f" ({', '.join(value)})" if isinstance(value, Mapping) else ""
        )
    raise TypeError(
        f"The model returned {returned}; expected a tensor for each label column "
        f"({', '.join(labels)}): one tensor, several in this order, or a dict by these names."
    )


def without_last_one(output: torch.Tensor) -> torch.Tensor:
    """``[rows, 1]`` as ``[rows]``: one number a row."""
    return output.squeeze(1) if output.ndim == 2 and output.shape[1] == 1 else output


def prediction_columns(output: torch.Tensor, task: Task) -> dict[str, torch.Tensor]:
    """Returns what a row's prediction is made of, by Spark's names for the columns.

    Args:
        output: Of the network, ``[rows]`` or ``[rows, size]``.
        task: What it means.

    Returns:
        ``prediction``: ``[rows]``, a class or a number; ``[rows, size]`` several numbers; bool
        ``[rows, labels]`` which labels are likelier than not. But for regression also
        ``rawPrediction``, the network's own scores, and ``probability``, both
        ``[rows, classes]``. All numbers are float64.
    """
    import torch

    output = without_last_one(output)
    if task == "regression":
        return {PREDICTION: output.double()}
    scores = output.double()
    if task == "multilabel":
        return {
            RAW_PREDICTION: scores,
            PROBABILITY: scores.sigmoid(),
            PREDICTION: scores > 0,
        }
    if task == "binary":
        scores = torch.stack([-scores, scores], dim=1)
        probability = scores[:, 1].sigmoid()
        probability = torch.stack([1 - probability, probability], dim=1)
    else:
        probability = scores.softmax(dim=1)
    return {
        RAW_PREDICTION: scores,
        PROBABILITY: probability,
        PREDICTION: scores.argmax(dim=1).double(),
    }
