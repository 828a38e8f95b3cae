"""``Trainer`` in a plain process, beside loops that are written by hand."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torchmetrics import SpearmanCorrCoef
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from sparkdl_runner import Trainer
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.training.loop.early_stopping import EarlyStopping
from sparkdl_runner.training.loop.finite import NonFiniteLossError
from training_tables import LOSSES, TABLES, network, open_table, write_sklearn

Adam = partial(torch.optim.Adam, lr=0.01)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name in TABLES:
        (folder / name).mkdir()
        write_sklearn(folder / name, name)
    return folder


class Linear(nn.Module):
    """y = w x, one weight for each of two columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        nn.init.constant_(self.layer.weight, 0.5)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(features)


def rows(count: int, size: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(count, 2, generator=generator)
    label = features @ torch.tensor([1.0, -2.0])
    return [
        {"features": features[at : at + size], "label": label[at : at + size]}
        for at in range(0, count, size)
    ]


@pytest.mark.parametrize("name", TABLES)
def test_one_rank_takes_the_steps_of_a_plain_loop(tables, name):
    loss = LOSSES[name]
    losses, wanted, epoch_means = [], [], []
    with open_table(tables / name, batch_size=32, seed=5) as loader:
        torch.manual_seed(7)
        model = network(name)
        optimizer = Adam(model.parameters())
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                optimizer.zero_grad()
                output, label = model(batch["features"]), batch["label"]
                if name != "digits":
                    output, label = output.squeeze(1), label.float()
                value = loss(output, label)
                value.backward()
                optimizer.step()
                wanted.append(value.item())
            epoch_means.append(sum(wanted[-len(loader) :]) / len(loader))
    with open_table(tables / name, batch_size=32, seed=5) as loader:
        trainer = Trainer(
            partial(network, name), Adam, loss, seed=7, on_step=lambda it: losses.append(it.loss)
        )
        history = trainer.fit(loader, epochs=2)
    assert losses == wanted
    assert [one["loss"] for one in history] == pytest.approx(epoch_means)
    for name, value in model.state_dict().items():
        assert torch.equal(value, trainer.weights()[name])


def test_accumulated_batches_are_one_large_batch_and_the_last_may_be_shorter():
    small, large = rows(40, 4), rows(40, 12)
    one = Trainer(Linear(), Adam, nn.functional.mse_loss, gradient_accumulation_steps=3)
    other = Trainer(Linear(), Adam, nn.functional.mse_loss)
    steps: list[int] = []
    one.on_step = lambda it: steps.append(it.step)
    assert one.fit(small, epochs=2)[1]["loss"] == pytest.approx(
        other.fit(large, epochs=2)[1]["loss"]
    )
    assert steps == list(range(1, 9))
    assert one.weights()["layer.weight"].tolist()[0] == pytest.approx(
        other.weights()["layer.weight"].tolist()[0]
    )


def test_gradients_are_cut_to_the_norm():
    before, trainer = Linear(), None
    trainer = Trainer(
        copy.deepcopy(before),
        partial(torch.optim.SGD, lr=1.0),
        nn.functional.mse_loss,
        gradient_clip_norm=1e-3,
    )
    trainer.fit(rows(4, 4), epochs=1)
    moved = trainer.weights()["layer.weight"] - before.layer.weight
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_bf16_computes_in_bfloat16_and_compares_in_float32():
    seen = []

    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        seen.append((output.dtype, label.dtype))
        return nn.functional.mse_loss(output, label)

    trainer = Trainer(Linear(), Adam, loss, precision="bf16")
    types = []
    trainer.model.layer.register_forward_hook(lambda *it: types.append(it[2].dtype))
    trainer.fit(rows(8, 4), epochs=1)
    assert set(types) == {torch.bfloat16}
    assert set(seen) == {(torch.float32, torch.float32)}


def test_evaluation_leaves_the_mode_of_the_model_and_counts_each_row_once(tables):
    with open_table(tables / "breast_cancer", batch_size=50, shuffle=False, tail="pad") as loader:
        trainer = Trainer(
            partial(network, "breast_cancer"),
            Adam,
            LOSSES["breast_cancer"],
            metrics={"auroc": BinaryAUROC()},
        )
        trainer.network.train()
        found = trainer.evaluate(loader)
        assert trainer.network.training
        features = torch.cat([one["features"][one["row_mask"]] for one in loader])
        label = torch.cat([one["label"][one["row_mask"]] for one in loader])
    trainer.model.eval()
    with torch.no_grad():
        scores = trainer.model(features).squeeze(1)
    assert len(label) == 569
    wanted = nn.functional.binary_cross_entropy_with_logits(scores, label.float())
    assert found["loss"] == pytest.approx(wanted.item())
    assert found["auroc"] == pytest.approx(BinaryAUROC()(scores.sigmoid(), label).item())


def test_the_model_trains_again_after_it_was_evaluated():
    modes: list[tuple[int, bool]] = []
    trainer = Trainer(Linear(), Adam, nn.functional.mse_loss)
    trainer.model.layer.register_forward_hook(
        lambda *_: modes.append((trainer.epoch, trainer.model.training))
    )
    trainer.network.eval()  # As a model may come that was loaded to predict.
    trainer.fit(rows(8, 4), rows(4, 4), epochs=2)
    of_epoch = [True, True, False]
    assert modes == [(epoch, mode) for epoch in range(2) for mode in of_epoch]


@pytest.mark.parametrize("stop_at", [5, 7, 8])
def test_a_training_that_was_cut_off_goes_on_at_the_very_step(tables, in_memory, stop_at):
    """With 14 batches, two to a step, an epoch has 7 steps."""

    class CutOff(Exception):  # noqa: N818
        pass

    def trainer(folder: str, on_step=None) -> Trainer:
        return Trainer(
            partial(network, "diabetes"),
            Adam,
            LOSSES["diabetes"],
            metrics={"spearman": SpearmanCorrCoef()},
            lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1),
            gradient_accumulation_steps=2,
            early_stopping=EarlyStopping(patience=2),
            checkpoints=CheckpointManager(in_memory / folder, every_steps=1, keep_last=2),
            on_step=on_step,
        )

    def fit(it: Trainer):
        with (
            it.checkpoints,
            open_table(tables / "diabetes", batch_size=32, seed=5) as train_data,
            open_table(tables / "diabetes", batch_size=64, shuffle=False, tail="pad") as others,
        ):
            return it.fit(train_data, others, epochs=3)

    def cut_off(it: Trainer) -> None:
        if it.step == stop_at + 1:
            raise CutOff

    whole = trainer("whole")
    history = fit(whole)
    assert (len(history), whole.step) == (3, 21)
    with pytest.raises(CutOff):
        fit(trainer("cut", cut_off))
    steps: list[int] = []
    resumed = trainer("cut", lambda it: steps.append(it.step))
    assert fit(resumed) == history
    assert steps == list(range(stop_at + 1, 22))
    for name, value in whole.weights().items():
        assert torch.equal(value, resumed.weights()[name])
    again = trainer("cut", lambda it: pytest.fail("was complete"))
    assert fit(again) == history
    for name, value in whole.weights().items():
        assert torch.equal(value, again.weights()[name])


def test_checkpoints_are_saved_when_they_are_due_and_at_the_end(tables, in_memory, monkeypatch):
    saved: list[tuple[int, int]] = []
    with (
        CheckpointManager(in_memory, every_steps=3) as checkpoints,
        open_table(tables / "diabetes", batch_size=88, seed=5) as train_data,
    ):
        monkeypatch.setattr(
            checkpoints, "save", lambda step, *_, epoch, **__: saved.append((step, epoch))
        )
        trainer = Trainer(
            partial(network, "diabetes"), Adam, LOSSES["diabetes"], checkpoints=checkpoints
        )
        trainer.fit(train_data, epochs=3)
    # An epoch has 5 steps, and the one of step 15 is saved with its history.
    assert saved == [(3, 0), (6, 1), (9, 1), (12, 2), (15, 3)]


def test_early_stopping_ends_the_training_and_takes_back_the_best_weights():
    weights, validation = [], iter([3.0, 1.0, 2.0, 2.0, 0.0])

    class Noisy(Trainer):
        def evaluate(self, data):
            weights.append(self.weights())
            return {"loss": next(validation)}

    trainer = Noisy(
        Linear(), Adam, nn.functional.mse_loss, early_stopping=EarlyStopping(patience=2)
    )
    assert len(trainer.fit(rows(8, 4), [], epochs=9)) == 4
    assert torch.equal(trainer.weights()["layer.weight"], weights[1]["layer.weight"])
    assert (trainer.best_step, trainer.step) == (4, 8)


def test_hooks_are_called_and_may_end_the_training():
    called = []

    def on_epoch(trainer: Trainer) -> None:
        called.append(("epoch", trainer.epoch, len(trainer.history)))
        trainer.should_stop = trainer.epoch == 1

    trainer = Trainer(
        Linear(),
        Adam,
        nn.functional.mse_loss,
        on_step=lambda it: called.append(("step", it.step)),
        on_epoch=on_epoch,
    )
    trainer.fit(rows(8, 4), epochs=5)
    assert called == [
        ("step", 1), ("step", 2), ("epoch", 0, 1), ("step", 3), ("step", 4), ("epoch", 1, 2)
    ]  # fmt: skip


def test_train_step_may_be_another():
    class Absolute(Trainer):
        def train_step(self, batch):
            return (self.forward(self.network, batch).squeeze(1) - batch["label"]).abs().mean()

    ours = Absolute(Linear(), Adam, nn.functional.mse_loss).fit(rows(8, 4), epochs=2)
    theirs = Trainer(Linear(), Adam, nn.functional.l1_loss).fit(rows(8, 4), epochs=2)
    assert ours == theirs


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (1.0, "a float"),
        (torch.ones(2, requires_grad=True), r"a tensor \[2\]"),
        (torch.ones(()), r"a tensor \[\] without gradient"),
    ],
)
def test_train_step_must_return_a_loss(returned, message):
    trainer = Trainer(Linear(), Adam, nn.functional.mse_loss)
    trainer.train_step = lambda batch: returned
    with pytest.raises(TypeError, match=f"train_step returned {message}; expected a tensor of one"):
        trainer.fit(rows(8, 4), epochs=1)


def test_a_loss_that_is_nan_ends_the_training_before_the_optimizer_uses_it():
    data = rows(12, 4)
    data[1]["features"][2, 0] = torch.nan
    trainer = Trainer(Linear(), Adam, nn.functional.mse_loss)
    with pytest.raises(NonFiniteLossError) as caught:
        trainer.fit(data, epochs=1)
    text = str(caught.value)
    assert "The loss of step 2 is nan on rank 0" in text
    assert "features: float32 [4, 2], from" in text
    assert "1 of 8 NaN or infinite" in text
    assert trainer.weights()["layer.weight"].isfinite().all()


def test_what_does_not_fit_the_model_is_told_with_shapes_and_columns():
    data = [{"features": torch.ones(4, 3), "label": torch.ones(4)}]
    with pytest.raises(RuntimeError) as caught:
        Trainer(Linear(), Adam, nn.functional.mse_loss).fit(data, epochs=1)
    assert "features: float32 [4, 3]" in "".join(caught.value.__notes__)


def test_data_without_a_whole_batch_are_refused(tables):
    trainer = Trainer(Linear(), Adam, nn.functional.mse_loss)
    with pytest.raises(ValueError, match="train_data has no whole batch"):
        trainer.fit([], epochs=1)
    with (
        open_table(tables / "diabetes", batch_size=1000) as loader,
        pytest.raises(ValueError, match="no whole batch of 1000 rows"),
    ):
        trainer.fit(loader, epochs=1)


def test_checkpoints_need_a_loader_that_has_a_state(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        trainer = Trainer(Linear(), Adam, nn.functional.mse_loss, checkpoints=checkpoints)
        with pytest.raises(TypeError, match="train_data is a list, which has no state to save"):
            trainer.fit(rows(8, 4), epochs=1)


def test_a_loader_of_torchs_own_will_do():
    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, at: int):
            return {"features": torch.full((2,), float(at)), "label": at % 2}

    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    model = nn.Linear(2, 2)
    trainer = Trainer(
        model, Adam, nn.CrossEntropyLoss(), metrics={"accuracy": MulticlassAccuracy(2)}
    )
    history = trainer.fit(loader, loader, epochs=3)
    assert set(history[-1]) == {"loss", "val_loss", "val_accuracy"}
