"""torch's own losses: what they compare, and how scores become probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

Truth = Literal["classes", "numbers", "share"]
"""Labels are the numbers of classes; any numbers; or numbers between 0 and 1."""


@dataclass(frozen=True)
class LossKind:
    """The outputs and labels that a loss compares.

    Attributes:
        truth: What its labels are; None for a loss that is not torch's.
        scores: How outputs become probabilities; None if they are probabilities, or unknown.
    """

    truth: Truth | None = None
    scores: Literal["softmax", "sigmoid", "exp"] | None = None

    def probabilities(self, output: Tensor) -> Tensor:
        """The input of metrics: probabilities of scores, other outputs unchanged, in float32.

        torchmetrics would guess from each batch whether it has scores or probabilities, and could
        guess otherwise for the next.
        """
        output = output.float()
        if self.scores == "softmax":
            return output.softmax(dim=1)
        if self.scores == "sigmoid":
            return output.sigmoid()
        return output.exp() if self.scores == "exp" else output


_CLASS_SCORES, _SHARE_SCORES = LossKind("classes", "softmax"), LossKind("share", "sigmoid")
_KINDS = {
    ("CrossEntropyLoss", "cross_entropy"): _CLASS_SCORES,
    ("MultiMarginLoss", "multi_margin_loss"): LossKind("classes"),
    ("NLLLoss", "nll_loss"): LossKind("classes", "exp"),
    ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits"): _SHARE_SCORES,
    ("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss"): _SHARE_SCORES,
    ("BCELoss", "binary_cross_entropy"): LossKind("share"),
    ("MSELoss", "mse_loss"): LossKind("numbers"),
    ("L1Loss", "l1_loss"): LossKind("numbers"),
    ("SmoothL1Loss", "smooth_l1_loss"): LossKind("numbers"),
    ("HuberLoss", "huber_loss"): LossKind("numbers"),
    ("PoissonNLLLoss", "poisson_nll_loss"): LossKind("numbers"),
}
_BY_NAME = {name: kind for names, kind in _KINDS.items() for name in names}


def loss_kind(loss: Any) -> LossKind:
    """The kind of a loss of torch's own; of any other loss nothing is assumed."""
    while isinstance(loss, partial):
        loss = loss.func
    of_module = isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn.")
    name = type(loss).__name__ if of_module else getattr(loss, "__name__", "")
    is_torchs = of_module or loss is getattr(nn.functional, name, None)
    return _BY_NAME.get(name, LossKind()) if is_torchs else LossKind()


def ignored_class(loss: Any) -> int:
    """The number of a class whose rows a loss leaves out."""
    given = loss.keywords if isinstance(loss, partial) else vars(loss) if loss else {}
    return int(given.get("ignore_index", -100))


def labels_problem(loss: Any, output: Tensor, truth: Tensor) -> str | None:
    """Why this loss cannot compare the labels, or None.

    Args:
        loss: One for this label.
        output: Of the network.
        truth: The labels, as they were read: ``[rows, …]``.
    """
    expected = loss_kind(loss).truth
    if not truth.numel() or expected in (None, "numbers"):
        return None
    if expected == "share":
        low, high = (float(bound) for bound in truth.aminmax())
        if low < 0 or high > 1:
            return f"are numbers from {low:g} to {high:g}; expected numbers between 0 and 1"
        return None
    if output.ndim == truth.ndim:
        return None  # Of each class its probability.
    counted = truth[truth != ignored_class(loss)]
    if not counted.numel():
        return None
    low, high = (float(bound) for bound in counted.aminmax())
    classes = output.shape[1]
    if low < 0 or high >= classes:
        return (
            f"are classes from {low:g} to {high:g}, and the model has scores for {classes}: "
            f"expected 0 to {classes - 1}"
        )
    if truth.is_floating_point() and not torch.equal(truth, truth.trunc()):
        return "are not whole numbers; expected the numbers of classes"
    return None
