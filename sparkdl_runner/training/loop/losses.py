"""The loss of a batch: of one output or several, with or without weights of rows."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparkdl_runner.tensors.outputs import by_label
from sparkdl_runner.training.loop.loss_kinds import LossKind, labels_problem, loss_kind

Loss = Callable[[Any, Any], Tensor]
ClassWeights = Mapping[int, float] | Mapping[str, Mapping[int, float]]
Pairs = dict[str, tuple[Tensor, Tensor]]
"""The outputs and the labels of each label column, both ``[rows, …]``."""


class Losses:
    """The losses of a network's outputs, and their sum.

    A row weighs its sample weight times its class's weight. The mean is the sum of weight times
    loss, divided by the number of rows and not by the sum of the weights, so that it is the same
    for any number of ranks and in any number of steps (as in Keras; ``cross_entropy(weight=…)``
    divides by the weights). It is the same in training and in evaluation.

    Args:
        loss: One for all labels, or one for each by its column. Returns the mean of the rows.
        labels: The label columns.
        loss_weights: What each label counts; 1 by default.
        class_weights: What a row counts, by the class that is its label; 1 by default. Of several
            labels, by label and class.
        sample_weight_col: The column that says what a row counts.
    """

    def __init__(
        self,
        loss: Loss | Mapping[str, Loss],
        labels: Sequence[str],
        *,
        loss_weights: Mapping[str, float] | None = None,
        class_weights: ClassWeights | None = None,
        sample_weight_col: str | None = None,
    ) -> None:
        self.labels = tuple(labels)
        self.loss_weights = dict(loss_weights or {})
        self.sample_weight_col = sample_weight_col
        self._losses = {
            label: loss[label] if isinstance(loss, Mapping) else loss for label in self.labels
        }
        self._kinds = {label: loss_kind(of_label) for label, of_label in self._losses.items()}
        self._class_weights = {
            label: _table(_of_label(class_weights, label)) for label in self.labels
        }

    def __call__(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean loss of the batch's rows, without those that only fill it up.

        Args:
            outputs: What the network returned for the batch.
            batch: Holds the labels ``[rows, …]``, and perhaps ``row_mask``.

        Raises:
            TypeError: There is not one output for each label, or the loss cannot be weighted.
            ValueError: A label does not fit its output.
        """
        return self.of_pairs(self.pairs(outputs, batch), batch)

    def pairs(self, outputs: Any, batch: Mapping[str, Tensor]) -> Pairs:
        """Each label's output and truth, in types and shapes that its loss compares."""
        mask = batch.get("row_mask")
        pairs = {}
        for label, output in by_label(outputs, self.labels).items():
            truth = batch[label]
            if mask is not None:
                output, truth = output[mask], truth[mask]
            pairs[label] = self._comparable(label, output, truth)
        return pairs

    def of_pairs(self, pairs: Pairs, batch: Mapping[str, Tensor]) -> Tensor:
        """The same mean, of what ``pairs`` returned for the batch."""
        total: Tensor | None = None
        for label, (output, truth) in pairs.items():
            value = self._of(label, output, truth, batch)
            if label in self.loss_weights:
                value = value * self.loss_weights[label]
            total = value if total is None else total + value
        assert total is not None  # noqa: S101 - there is a label
        return total

    def probabilities(self, pairs: Pairs) -> Pairs:
        """The pairs as metrics take them; see ``LossKind.probabilities``."""
        return {
            label: (self._kinds[label].probabilities(output), truth)
            for label, (output, truth) in pairs.items()
        }

    def check_labels(self, pairs: Pairs) -> None:
        """Raises ValueError where labels are none that their losses can compare."""
        for label, (output, truth) in pairs.items():
            problem = labels_problem(self._losses[label], output, truth)
            if problem is not None:
                raise ValueError(f"The labels of column {label!r} {problem}.")

    def _of(self, label: str, output: Tensor, truth: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        loss, weights = self._losses[label], self._weights(label, output, truth, batch)
        try:
            if weights is None:
                value = loss(output, truth)
                return value.mean() if value.ndim else value
            each = per_row(loss)(output, truth)
        except (IndexError, RuntimeError, ValueError) as error:
            if not truth.is_cuda:  # There, all that is asked would raise the same error.
                self.check_labels({label: (output, truth)})
            error.add_note(
                f"The loss of column {label!r} was given outputs {_described(output)} and labels "
                f"{_described(truth)}."
            )
            raise
        each = each.flatten(1).mean(dim=1) if each.ndim > 1 else each
        return (each * weights).mean()

    def _weights(
        self, label: str, output: Tensor, truth: Tensor, batch: Mapping[str, Tensor]
    ) -> Tensor | None:
        weights = None
        if self.sample_weight_col is not None:
            weights = batch[self.sample_weight_col].to(torch.float32)
            if "row_mask" in batch:
                weights = weights[batch["row_mask"]]
        table = self._class_weights[label]
        if table is not None:
            if truth.ndim != 1:
                raise ValueError(
                    f"class_weights need one class a row, and column {label!r} has labels "
                    f"{_described(truth)}. Leave them out, or give the loss weights of its own."
                )
            classes = _classes(output, truth, self._kinds[label])
            if classes is not None and len(table) - 1 > classes:
                raise ValueError(
                    f"class_weights name the class {len(table) - 2} of column {label!r}, and the "
                    f"model has the classes 0 to {classes - 1}."
                )
            if table.device != truth.device:
                table = self._class_weights[label] = table.to(truth.device)
            # The last entry, also by -1, is for classes without a weight, and those left out.
            of_class = table[truth.long().clamp(min=-1, max=len(table) - 1)]
            weights = of_class if weights is None else weights * of_class
        return weights

    def _comparable(self, label: str, output: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """A label in the type that losses expect beside its output.

        An output with one dimension more has a score for each class, so that the label is the
        number of a class. In any other case both are numbers, of one shape.
        """
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()  # Labels would lose digits, and so would the loss.
        has_classes = output.ndim == truth.ndim + 1 and output.shape[1] > 1
        expected = self._kinds[label].truth
        if has_classes and expected == "classes":
            return output, truth.long()
        if has_classes and expected is None:
            # Classes may be floats, as Spark's StringIndexer makes them; quantiles have such labels
            # that are none.
            is_number = truth.is_floating_point() and not torch.equal(truth, truth.trunc())
            return output, truth if is_number else truth.long()
        if not has_classes and expected != "classes":
            if output.ndim == truth.ndim + 1 and output.shape[1] == 1:
                output = output.squeeze(1)
            elif truth.ndim == output.ndim + 1 and truth.shape[1] == 1:
                truth = truth.squeeze(1)
            if output.shape == truth.shape:
                return output, truth.to(output.dtype)
        elif output.shape == truth.shape and output.ndim > 1:
            return output, truth.to(output.dtype)  # The probability of each class.
        wanted = "one score for each class, [rows, classes], for labels [rows]"
        if expected != "classes":
            wanted = "the same shape" + ("" if expected else f", or {wanted}")
        raise ValueError(
            f"The model returned {_described(output)} for the labels of column {label!r}, "
            f"{_described(truth)}; its loss expects {wanted}."
        )


def per_row(loss: Any) -> Loss:
    """The loss as one that returns a value for each row instead of their mean.

    Raises:
        TypeError: It cannot be told to.
    """
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        module: Any = copy.copy(loss)
        module.reduction = "none"
        return cast(Loss, module)
    try:
        if "reduction" in inspect.signature(loss).parameters:
            return functools.partial(loss, reduction="none")
    except (TypeError, ValueError):
        pass  # Some built-in callables have no signature.
    name = getattr(loss, "__name__", type(loss).__name__)
    raise TypeError(
        f"The loss {name} cannot be weighted by row: it has no argument 'reduction'. Take one of "
        "torch.nn.functional, or give it def "
        f"{name}(output, label, reduction='mean') that returns a value a row for 'none'."
    )


def _of_label(class_weights: ClassWeights | None, label: str) -> Mapping[int, float] | None:
    if class_weights and all(isinstance(key, str) for key in class_weights):
        return class_weights.get(label)  # type: ignore[call-overload]
    return class_weights or None  # type: ignore[return-value]


def _classes(output: Tensor, truth: Tensor, kind: LossKind) -> int | None:
    """The number of classes of the outputs ``[rows, …]``; None where they are plain numbers."""
    if output.ndim > truth.ndim:
        return int(output.shape[1])
    return 2 if kind.truth == "share" else None


def _table(weights: Mapping[int, float] | None) -> Tensor | None:
    """Weights by class; the last is that of all classes that are not named."""
    if weights is None:
        return None
    if weights and min(weights) < 0:
        raise ValueError(
            f"class_weights name the class {min(weights)}; classes are numbered from 0."
        )
    table = torch.ones(max(weights) + 2)
    for number, weight in weights.items():
        table[number] = weight
    return table


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
