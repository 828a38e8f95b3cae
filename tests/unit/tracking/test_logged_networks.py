"""A logged network is the whole network, for any number of rows, columns of Spark's included."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
import torchmetrics
from mlflow.models import Model
from torch import nn

from checkpoint_fixtures import _torch_has_set_itself_up
from sparkdl_runner.checkpoint import Checkpoint, CheckpointManager
from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.torch_export import NotExportableError
from sparkdl_runner.tracking.models import exported_graph
from sparkdl_runner.tracking.models import log_model as models
from sparkdl_runner.tracking.models.example import Example
from sparkdl_runner.tracking.models.requirements import own_modules, requirements
from sparkdl_runner.training.description.logged import example_of

__all__ = ["_torch_has_set_itself_up"]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """A graph adds in another order than its network, which shows where a sum is nearly zero."""
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """mlflow and torch set variables when they read a model."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


class Tokens(nn.Module):
    """Of a sequence of at most ten words, a score for each of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(10, 8)
        self.module = nn.Linear(8, 3)  # Not a wrapper's.

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.module((self.words(tokens) + self.places(places)).mean(1))


class Doubled(nn.Module):
    """What depends on the data cannot be a graph."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        total = rows.sum(1) * 2
        return total if float(total[0]) < 1e9 else -total


def save(
    network: nn.Module,
    example: torch.Tensor,
    folder: Path,
    columns: Any = None,
    dynamic_shapes: Mapping[int, Any] | None = None,
) -> tuple[Any, Any]:
    """Writes a model as ``log_model`` does; returns it as loaded, and its signature."""
    rows = Example.of(example, network)
    names = models.names_of(columns, rows)
    (folder / "parts").mkdir()
    place = folder / "parts" / "model"
    flavor = models._write(network.eval(), rows, names, dynamic_shapes, place, "m")
    saved = str(folder / "saved")
    flavor.save_model(saved, Model(), pip_requirements=requirements())
    return mlflow.pyfunc.load_model(saved), mlflow.models.get_model_info(saved).signature


class Houses(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.price, self.kind = nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, numbers: torch.Tensor, rooms: torch.Tensor) -> dict[str, torch.Tensor]:
        both = torch.cat([numbers, rooms[:, None]], 1)
        return {"price": self.price(both)[:, 0], "kind": self.kind(both)}


def test_the_train_jobs_model_of_several_inputs_takes_its_columns(tmp_path: Path) -> None:
    network = Houses()
    inputs = Inputs.of({"numbers": ["size", "age"], "rooms": "rooms"}, network)
    batch = {name: torch.rand(2) for name in ("size", "age", "rooms")}
    example, columns = example_of(inputs, batch)
    loaded, _ = save(network, example, tmp_path, columns)
    rows = pd.DataFrame({"rooms": [1.0, 2, 3], "age": [4.0, 5, 6], "size": [7.0, 8, 9]})
    found = loaded.predict(rows)
    given = torch.tensor(rows[["size", "age"]].to_numpy()).float()
    expected = network(given, torch.tensor([1.0, 2, 3]))
    assert np.allclose(found["price"], expected["price"].detach(), atol=1e-5)
    assert np.allclose(found["kind"].tolist(), expected["kind"].detach(), atol=1e-5)


def test_a_network_answers_to_sizes_that_it_was_not_exported_with(tmp_path: Path) -> None:
    network = Tokens()
    tokens = torch.randint(0, 50, (3, 11))
    # A slice, and as long as the network takes: its strides and its length must not matter.
    loaded, signature = save(network, tokens[:, :-1], tmp_path)
    assert signature.inputs.inputs[0].shape == (-1, -1)
    for rows in (tokens[:, :10].contiguous(), tokens[:1, 2:6], tokens.repeat(3, 1)[:, :7]):
        expected = network(rows).detach().numpy()
        np.testing.assert_allclose(loaded.predict(rows.numpy()), expected, rtol=1e-4)
    saved = str(tmp_path / "saved")
    assert mlflow.pytorch.load_model(saved)(tokens[:2, :4]).shape == (2, 3)
    told = Model.load(saved).flavors["python_function"]["config"]
    assert told == {"device": "cpu"}, "a graph stays where it was exported"


def test_a_graph_for_one_length_of_a_network_for_any_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loop(nn.Module):
        """What Python counts is a constant of the graph, as in torch's recurrent layers."""

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return sum(rows[:, place] for place in range(rows.shape[1]))

    example = Example.of(torch.ones(2, 5, 4), Loop())
    models._write(Loop(), example, None, None, tmp_path / "model", "m")
    assert "takes the sizes of its example alone (5 in dimension 1)" in capsys.readouterr().out


def test_an_array_column_may_hold_any_numbers_and_lengths(tmp_path: Path) -> None:
    network = Tokens()
    loaded, signature = save(network, torch.randint(0, 50, (2, 6)), tmp_path, "tokens")
    assert [str(one) for one in signature.inputs.inputs] == ["'tokens': Array(long) (required)"]
    assert str(signature.outputs.inputs[0]) == "Array(float) (required)"
    rows = [[1, 2, 3], [4], [5, 6, 7], [8, 9]]
    frame = pd.DataFrame({"id": range(4), "tokens": [np.array(row, np.int32) for row in rows]})
    expected = [network(torch.tensor([row]))[0].tolist() for row in rows]
    np.testing.assert_allclose(loaded.predict(frame), expected, rtol=1e-4)


class Shop(nn.Module):
    """Two arguments, of which the words and their mask have one length; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.price = nn.Embedding(50, 8), nn.Linear(3, 8)

    def forward(
        self, numbers: torch.Tensor, words: torch.Tensor, mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        found = self.price(numbers) + (self.words(words) * mask[:, :, None]).sum(1)
        return {"score": found.sum(1), "hidden": found}


SHOP = {
    "numbers": torch.rand(2, 3),
    "words": torch.randint(0, 50, (2, 6)),
    "mask": torch.ones(2, 6, dtype=torch.bool),
}


@pytest.mark.parametrize("by_name", [True, False])
def test_several_arguments_and_outputs_have_their_names(tmp_path: Path, by_name: bool) -> None:
    network = Shop()
    example = SHOP if by_name else tuple(SHOP.values())
    loaded, signature = save(network, example, tmp_path)
    assert signature.inputs.input_names() == list(SHOP)
    assert [one.shape for one in signature.inputs.inputs] == [(-1, 3), (-1, -1), (-1, -1)]
    assert signature.outputs.input_names() == ["score", "hidden"]
    # Other lengths than the example's, which the two arguments share.
    rows = {
        "numbers": torch.rand(4, 3),
        "words": torch.randint(0, 50, (4, 9)),
        "mask": torch.rand(4, 9) > 0.5,
    }
    found = loaded.predict({name: one.numpy() for name, one in rows.items()})
    for name, expected in network(**rows).items():
        np.testing.assert_allclose(found[name], expected.detach().numpy(), rtol=1e-4)


def test_several_arguments_are_made_of_columns(tmp_path: Path) -> None:
    network = Shop()
    columns = {"words": "tokens", "mask": "mask", "numbers": ["a", "b", "c"]}
    loaded, signature = save(network, SHOP, tmp_path, columns)
    assert signature.inputs.input_names() == ["a", "b", "c", "tokens", "mask"]
    assert [str(one) for one in signature.outputs.inputs] == [
        "'score': float (required)",
        "'hidden': Array(float) (required)",
    ]
    frame = pd.DataFrame(
        {
            "mask": [[True, False], [True], [True, True]],
            **{name: np.float32([1, 2, 3]) for name in "cba"},
            "tokens": [[1, 2], [3], [4, 5]],
        },
        index=[7, 8, 9],
    )
    found = loaded.predict(frame)
    assert list(found.index) == [7, 8, 9]
    for place, (_, row) in enumerate(frame.iterrows()):
        expected = network(
            torch.tensor([[row["a"], row["b"], row["c"]]]),
            torch.tensor([row["tokens"]]),
            torch.tensor([row["mask"]]),
        )
        np.testing.assert_allclose(found["score"].iloc[place], expected["score"].item(), rtol=1e-4)
        hidden = expected["hidden"][0].tolist()
        np.testing.assert_allclose(found["hidden"].iloc[place], hidden, rtol=1e-4)


def test_a_tuple_of_outputs_is_numbered(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return rows.sum(1), rows * 2

    loaded, signature = save(Both(), torch.ones(2, 3), tmp_path)
    assert signature.outputs.input_names() == ["output_0", "output_1"]
    found = loaded.predict(np.float32([[1, 2, 3]]))
    assert found["output_0"].tolist() == [6]
    assert found["output_1"].tolist() == [[2, 4, 6]]


def test_columns_of_numbers_are_taken_by_their_names(tmp_path: Path) -> None:
    network = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
    loaded, _ = save(network, torch.ones(2, 3), tmp_path, ["a", "b", "c"])
    frame = pd.DataFrame({"c": [3, 6], "x": "-", "a": [1.0, 4.0], "b": np.float32([2, 5])})
    frame["c"] = frame["c"].astype("int32")
    np.testing.assert_allclose(loaded.predict(frame), [[321], [654]])


def test_a_model_of_columns_is_not_opened_where_mlflow_may_open_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    # It opens what it has written itself, to check the answers; after that nobody's model is open.
    with pytest.raises(ValueError, match=r"can run any code.*MLFLOW_ALLOW_PICKLE_DESERIALIZATION"):
        save(nn.Linear(3, 1), torch.ones(2, 3), tmp_path, ["a", "b", "c"])
    assert (tmp_path / "saved" / "MLmodel").exists()


def test_what_cannot_be_a_graph_takes_columns_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    loaded, _ = save(Doubled(), torch.ones(2, 3), tmp_path, "features")
    assert "cannot be exported" in capsys.readouterr().out
    frame = pd.DataFrame({"features": [np.array([1.0, 2.0, 3.0])]})
    np.testing.assert_allclose(loaded.predict(frame), [12])


def test_what_answers_otherwise_than_the_network_is_no_graph(tmp_path: Path) -> None:
    calls = itertools.count()

    class Remembers(nn.Module):
        """What Python holds outside of the network is read once, while the graph is made."""

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows * next(calls)

    example = Example.of(torch.ones(2, 3), Remembers())
    with pytest.raises(NotExportableError, match="answers otherwise"):
        exported_graph.export(Remembers(), example, {(("", 0),): 3}, {}, tmp_path / "model.pt2")


def test_a_size_may_vary_where_the_network_takes_another() -> None:
    class Takes(nn.Module):
        """Rows of these sizes, and no others."""

        def __init__(self, *sizes: int) -> None:
            super().__init__()
            self.sizes = sizes

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.shape[1] not in self.sizes:
                raise ValueError
            return rows

    def others(network: nn.Module, rows: torch.Tensor) -> dict[int, int]:
        found = exported_graph.other_sizes(network, Example(tensors={"": rows}))
        return {dimension: size for ((_, dimension),), size in found.items()}

    for sizes, expected in (((4,), {0: 3}), ((3, 4), {0: 3, 1: 3}), ((4, 5), {0: 3, 1: 5})):
        assert others(Takes(*sizes), torch.ones(2, 4)) == expected
    # A size of 1 or 2 is not tried: it might be taken for one that is repeated to any other.
    assert others(nn.Identity(), torch.ones(2, 2, 3)) == {0: 3, 2: 2}
    assert others(nn.Unflatten(0, (1, 1)), torch.ones(1, 2)) == {}
    rows = Example(tensors={"": torch.tensor([[1.0], [2.0]])})
    assert rows.resized({("", 0): 3}).tensors[""].tolist() == [[2], [1], [2]]


def test_a_model_of_a_training_without_a_run_is_not_logged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (world,) = assign_ranks(
        [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
        backend="torch",
    ).values()
    monkeypatch.setattr("sparkdl_runner.rank.world._current", world)
    assert models.log_model(nn.Identity(), input_example=torch.ones(2, 3), name="net") is None
    assert "the model 'net' was not logged: this training has no MLflow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("newest", "given", "step"), [(9, None, 9), (9, 4, 4), (0, None, 0), (9, 0, 0)]
)
def test_a_model_is_of_the_step_that_is_given_or_of_the_last_that_was_told(
    monkeypatch: pytest.MonkeyPatch, newest: int, given: int | None, step: int
) -> None:
    logged: list[int] = []
    monkeypatch.setattr(models, "_write", lambda *_: SimpleNamespace(is_graph=True))
    monkeypatch.setattr(models.metrics, "newest_step", lambda: newest)
    monkeypatch.setattr(mlflow, "MlflowClient", SimpleNamespace)
    monkeypatch.setattr(Model, "log", lambda step, **_: logged.append(step))
    models.log_model(nn.Identity(), input_example=torch.ones(2, 3), step=given)
    assert logged == [step]


def test_a_checkpoints_weights_are_logged_in_place_of_the_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[nn.Module] = []
    steps: list[int] = []
    tags: dict[str, str] = {}

    def write(network: nn.Module, *_: Any) -> Any:
        written.append(network)
        return SimpleNamespace(is_graph=True)

    def log(step: int, **_: Any) -> Any:
        steps.append(step)
        return SimpleNamespace(model_id="m")

    client = SimpleNamespace(set_logged_model_tags=lambda _, told: tags.update(told))
    monkeypatch.setattr(models, "_write", write)
    monkeypatch.setattr(Model, "log", log)
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: client)
    saved, network = nn.Linear(3, 1), nn.Linear(3, 1)
    before = network.weight.clone()
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(7, saved)
        checkpoints.save(8)
    checkpoint, without_model = (Checkpoint.load(tmp_path, which=step) for step in (7, 8))
    for step in (None, 5):
        models.log_model(network, input_example=torch.ones(2, 3), checkpoint=checkpoint, step=step)
    assert all(torch.equal(one.weight, saved.weight) for one in written)
    assert torch.equal(network.weight, before)
    assert steps == [7, 5]
    assert tags["sparkdl_runner.checkpoint"] == checkpoint.path
    assert tags["sparkdl_runner.step"] == "5"
    with pytest.raises(ValueError, match="is of another network than Linear: size mismatch"):
        models.log_model(nn.Linear(4, 1), input_example=torch.ones(2, 4), checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"step-8.* holds no model"):
        models.log_model(network, input_example=torch.ones(2, 3), checkpoint=without_model)


def test_a_pickled_network_needs_the_packages_of_its_classes() -> None:
    class Measured(nn.Module):
        """Holds a metric of torchmetrics."""

        def __init__(self) -> None:
            super().__init__()
            self.metric = torchmetrics.MeanMetric()

    names = [one.partition("==")[0] for one in requirements(Measured())]
    assert names == ["torch", "torchmetrics"]
    assert requirements() == [f"torch=={torch.__version__.partition('+')[0]}"]
    assert own_modules(Measured()) == [__name__.partition(".")[0]]
    assert own_modules(nn.Linear(1, 1)) == []


def test_arguments_that_do_not_fit_are_refused() -> None:
    def log(example: Any, **options: Any) -> None:
        models.log_model(nn.Identity(), input_example=example, **options)

    with pytest.raises(ValueError, match="columns has 2 names, and a row of input_example has 3"):
        log(torch.ones(2, 3), columns=["a", "b"])
    with pytest.raises(ValueError, match="has no rows"):
        log(torch.ones(0, 3))
    with pytest.raises(ValueError, match="no registered_model_name"):
        log(torch.ones(2, 3), alias="champion")
    with pytest.raises(TypeError, match="returns a tuple that holds a str; expected a tensor"):
        Example.of(torch.ones(2), nn.Identity()).answer(lambda rows: (rows, "other"))
    with pytest.raises(ValueError, match=r"differ in their rows \(a \[2, 3\], b \[3, 3\]\)"):
        log({"a": torch.ones(2, 3), "b": torch.ones(3, 3)})
    with pytest.raises(ValueError, match="columns is of a, and input_example has a, b"):
        log({"a": torch.ones(2, 3), "b": torch.ones(2, 3)}, columns={"a": "x"})
