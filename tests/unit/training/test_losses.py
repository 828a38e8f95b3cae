"""What losses and metrics are given, and the errors for what does not fit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from sparkdl_runner.training.loop.loss_kinds import loss_kind
from sparkdl_runner.training.loop.losses import Losses

SCORES = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2])


def test_classes_may_be_doubles():
    losses = Losses(F.cross_entropy, ["label"])
    assert losses(SCORES, {"label": CLASSES.double()}) == F.cross_entropy(SCORES, CLASSES)


@pytest.mark.parametrize("output", [torch.randn(6), torch.randn(6, 1)])
def test_numbers_are_compared_in_one_shape(output):
    label = torch.arange(6)
    value = Losses(F.mse_loss, ["label"])(output, {"label": label})
    assert value == F.mse_loss(output.reshape(6), label.float())


def test_several_labels_at_once_are_compared_number_by_number():
    truth = torch.tensor([[1, 0, 1]] * 6)
    value = Losses(nn.BCEWithLogitsLoss(), ["label"])(SCORES, {"label": truth})
    assert value == F.binary_cross_entropy_with_logits(SCORES, truth.float())


def test_quantiles_have_labels_that_are_no_classes():
    def pinball(output, label):
        return (output - label[:, None]).abs().mean()

    label = torch.full((6,), 0.5)
    assert Losses(pinball, ["label"])(SCORES, {"label": label}) == (SCORES - 0.5).abs().mean()


@given(weights=st.lists(st.floats(0, 10), min_size=6, max_size=6), cut=st.integers(1, 5))
def test_the_weighted_mean_is_the_same_in_any_batches(weights, cut):
    batch = {"label": CLASSES, "weight": torch.tensor(weights)}
    losses = Losses(F.cross_entropy, ["label"], class_weights={1: 2.0}, sample_weight_col="weight")
    each = F.cross_entropy(SCORES, CLASSES, reduction="none")
    of_class = torch.tensor([1.0, 1.0, 2.0, 2.0, 1.0, 1.0])
    wanted = (each * batch["weight"] * of_class).sum() / 6
    assert losses(SCORES, batch).item() == pytest.approx(wanted.item(), rel=1e-5)
    parts = [
        losses(SCORES[rows], {name: one[rows] for name, one in batch.items()}).item() * size
        for rows, size in ((slice(cut), cut), (slice(cut, None), 6 - cut))
    ]
    assert sum(parts) / 6 == pytest.approx(wanted.item(), rel=1e-5)


def test_rows_that_fill_up_a_batch_count_nothing():
    mask = torch.tensor([True, True, False, True, False, True])
    batch = {"label": CLASSES, "weight": torch.arange(6.0), "row_mask": mask}
    kept = {"label": CLASSES[mask], "weight": torch.arange(6.0)[mask]}
    losses = Losses(nn.CrossEntropyLoss(), ["label"], sample_weight_col="weight")
    assert losses(SCORES, batch) == losses(SCORES[mask], kept)


def test_a_batch_of_nothing_is_no_error():
    """A sharded model takes part in evaluation also where a rank has no rows."""
    batch = {"label": CLASSES, "weight": torch.ones(6), "row_mask": torch.zeros(6, dtype=bool)}
    losses = Losses(F.cross_entropy, ["label"], sample_weight_col="weight")
    assert losses(SCORES, batch).isnan()


def test_several_labels_have_losses_and_weights_of_their_own():
    losses = Losses(
        {"kind": F.cross_entropy, "size": F.mse_loss},
        ["kind", "size"],
        loss_weights={"size": 0.5},
        class_weights={"kind": {0: 3.0}},
    )
    size = torch.arange(6.0)
    outputs = {"size": torch.zeros(6, 1), "kind": SCORES}
    each = F.cross_entropy(SCORES, CLASSES, reduction="none")
    wanted = (each * torch.where(CLASSES == 0, 3.0, 1.0)).mean() + 0.5 * (size**2).mean()
    value = losses(outputs, {"kind": CLASSES, "size": size})
    assert value.item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(
    ("loss", "output", "label", "classes"),
    [
        (F.cross_entropy, SCORES, CLASSES, 3),
        (nn.BCEWithLogitsLoss(), SCORES[:, :1], CLASSES.clamp(max=1), 2),
    ],
)
def test_a_weight_of_a_class_that_the_model_lacks_is_told(loss, output, label, classes):
    with pytest.raises(ValueError, match=f"the class {classes} .*'label', .* 0 to {classes - 1}"):
        Losses(loss, ["label"], class_weights={0: 1.0, classes: 2.0})(output, {"label": label})
    with pytest.raises(ValueError, match="the class -1; classes are numbered from 0"):
        Losses(loss, ["label"], class_weights={-1: 2.0})
    weighed = Losses(loss, ["label"], class_weights={0: 1.0, classes - 1: 1.0})
    plain = Losses(loss, ["label"])
    assert weighed(output, {"label": label}).isclose(plain(output, {"label": label}))


@pytest.mark.parametrize(
    ("loss", "output", "label", "message"),
    [
        (F.cross_entropy, SCORES, CLASSES + 1, "'label' are classes from 1 to 3, .* scores for 3"),
        (F.cross_entropy, SCORES, CLASSES - 1, "'label' are classes from -1 to 1, .* 0 to 2"),
        (F.cross_entropy, SCORES, CLASSES + 0.5, "'label' are not whole numbers"),
        (F.binary_cross_entropy_with_logits, SCORES[:, 0], CLASSES, "from 0 to 2; .* 0 and 1"),
    ],
)
def test_labels_out_of_range_are_told(loss, output, label, message):
    losses = Losses(loss, ["label"])
    with pytest.raises(ValueError, match=message):
        losses.check_labels({"label": (output, label)})


def test_a_class_that_is_ignored_may_be_any():
    losses = Losses(partial(F.cross_entropy, ignore_index=9), ["label"])
    label = torch.where(CLASSES == 1, 9, CLASSES)
    losses.check_labels({"label": (SCORES, label)})
    assert losses(SCORES, {"label": label}) == F.cross_entropy(SCORES, label, ignore_index=9)


def test_a_label_that_is_out_of_range_later_is_told_as_well():
    with pytest.raises(ValueError, match="'label' are classes from 0 to 5"):
        Losses(F.cross_entropy, ["label"])(SCORES, {"label": torch.tensor([0, 1, 5, 2, 2, 2])})


@pytest.mark.parametrize(
    ("loss", "output", "label"),
    [
        (F.mse_loss, torch.zeros(6, 6), torch.zeros(6)),  # torch would broadcast it
        (F.cross_entropy, torch.zeros(6), CLASSES),
        (F.cross_entropy, torch.zeros(6, 1), CLASSES),
        (lambda output, label: output.mean(), torch.zeros(5), torch.zeros(6)),
    ],
)
def test_shapes_that_do_not_fit_are_told_with_the_column(loss, output, label):
    with pytest.raises(ValueError, match=r"The model returned float32 \[.*column 'label', .*\[6\]"):
        Losses(loss, ["label"])(output, {"label": label})


def test_a_loss_that_cannot_be_weighted_is_told():
    losses = Losses(lambda output, label: output.mean(), ["label"], class_weights={0: 2.0})
    with pytest.raises(
        TypeError, match="cannot be weighted by row: it has no argument 'reduction'"
    ):
        losses(SCORES[:, 0], {"label": CLASSES})


def test_metrics_get_probabilities_of_torchs_scores_and_else_what_there_is():
    scores = torch.tensor([0.2, 0.8])  # torchmetrics would take these for probabilities.
    kind = loss_kind(F.binary_cross_entropy_with_logits)
    assert torch.equal(kind.probabilities(scores), scores.sigmoid())
    assert torch.equal(loss_kind(nn.CrossEntropyLoss()).probabilities(SCORES), SCORES.softmax(1))
    assert torch.equal(loss_kind(F.mse_loss).probabilities(scores), scores)
    assert torch.equal(loss_kind(lambda output, label: 0).probabilities(scores), scores)
