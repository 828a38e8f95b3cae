"""What a network is called with, for columns of all kinds, in a training that is whole."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sparkdl_runner import Trainer
from sparkdl_runner.tensors.inputs import Inputs

SGD = partial(torch.optim.SGD, lr=0.1)


class Recorder(nn.Module):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: dict[str, torch.Tensor] = {}

    def note(self, **seen: torch.Tensor) -> torch.Tensor:
        self.seen = seen
        return self.weight.expand(len(next(iter(seen.values()))))


class Sequences(Recorder):
    def forward(self, tokens, tokens_mask, tokens_length):
        return self.note(tokens=tokens, mask=tokens_mask, length=tokens_length)


class One(Recorder):
    def forward(self, pixels):
        return self.note(pixels=pixels)


def trained(model: Recorder, feature_cols, **columns: torch.Tensor) -> dict[str, torch.Tensor]:
    data = [{**columns, "label": torch.zeros(2)}]
    Trainer(model, SGD, nn.functional.mse_loss, feature_cols=feature_cols).fit(data, epochs=1)
    return model.seen


def test_decoded_images_become_what_torchvision_makes_of_them():
    image = torch.randint(0, 256, (2, 4, 5, 3), dtype=torch.uint8)
    pixels = trained(One(), ["image"], image=image)["pixels"]
    assert pixels.shape == (2, 3, 4, 5)
    assert pixels.is_contiguous()
    assert torch.equal(pixels, image.permute(0, 3, 1, 2).float() / 255)


def test_padded_columns_come_with_mask_and_length():
    tokens, length = torch.tensor([[4, 5, 0], [7, 0, 0]]), torch.tensor([2, 1])
    seen = trained(Sequences(), ["tokens"], tokens=tokens, tokens_length=length)
    assert torch.equal(seen["tokens"], tokens)
    assert torch.equal(seen["length"], length)
    assert seen["mask"].tolist() == [[True, True, False], [True, False, False]]


def test_numbers_and_lists_are_joined_to_one_matrix_of_floats():
    columns = {"age": torch.tensor([1, 2]), "sizes": torch.tensor([[3, 4], [5, 6]])}
    pixels = trained(One(), ["age", "sizes"], **columns)["pixels"]
    assert pixels.dtype == torch.float32
    assert pixels.tolist() == [[1, 3, 4], [2, 5, 6]]


def test_one_column_is_given_as_it_is():
    tokens = torch.tensor([[1, 2], [3, 4]])
    assert torch.equal(trained(One(), ["tokens"], tokens=tokens)["pixels"], tokens)


def test_one_column_of_fractions_is_a_matrix_of_one_column():
    fractions, whole = torch.tensor([0.5, 1.5]), torch.tensor([1, 2])
    assert torch.equal(trained(One(), ["age"], age=fractions)["pixels"], fractions[:, None])
    # A model that has embeddings takes numbers of rows.
    assert torch.equal(trained(One(), ["user"], user=whole)["pixels"], whole)
    # By the name of the argument it is the column itself.
    assert torch.equal(trained(One(), {"pixels": "age"}, age=fractions)["pixels"], fractions)


def test_what_a_network_was_called_with_is_told_with_columns():
    batch = {"age": torch.ones(2), "size": torch.ones(2), "tokens": torch.ones(2, 3)}
    one = Inputs.of(["age", "size"], One())
    assert one.shown(batch) == "The model was called with float32 [2, 2] (column age, size)."
    named = Inputs.of({"pixels": "tokens"}, One())
    assert named.shown(batch) == "The model was called with pixels: float32 [2, 3] (column tokens)."


@pytest.mark.parametrize(
    ("feature_cols", "message"),
    [
        ([], "feature_cols is empty"),
        ({"pictures": "image"}, "the argument 'pictures', and One.forward takes pixels"),
    ],
)
def test_columns_that_fit_no_argument_are_refused(feature_cols, message):
    with pytest.raises(ValueError, match=message):
        Inputs.of(feature_cols, One())
