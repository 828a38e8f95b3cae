"""torchdata's ``StatefulDataLoader``, and Lightning with it: a training goes on after any batch.

``make frameworks`` installs both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from docs_blocks import ROOT
from sparkdl_runner.data import SparkDatasetConverter
from training_tables import converter_of, write_table

FRAMEWORKS = ROOT / "build" / "frameworks"
ROWS, BATCH = 96, 8

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


@pytest.fixture(autouse=True)
def _frameworks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (FRAMEWORKS / "torchdata").exists():
        pytest.fail("build/frameworks has no torchdata: run make frameworks.")
    monkeypatch.syspath_prepend(str(FRAMEWORKS))
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # As importing Lightning does.


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> SparkDatasetConverter:
    folder = tmp_path_factory.mktemp("rows")
    write_table(folder, {"id": np.arange(ROWS), "x": np.arange(ROWS, dtype=np.float32)})
    return converter_of(folder)


@contextmanager
def stateful(converter: SparkDatasetConverter, num_workers: int, **arguments: Any) -> Iterator[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = converter.make_iterable_dataset(BATCH, num_workers=num_workers, tail="drop")
    with closing(dataset):
        yield StatefulDataLoader(dataset, None, num_workers=num_workers, **arguments)


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("num_workers", "arguments"),
    [
        (0, {}),
        (2, {}),
        (2, {"persistent_workers": True}),
    ],
    ids=["no workers", "workers", "persistent workers"],
)
def test_epochs_differ_and_a_state_of_any_place_goes_on_exactly(
    converter: SparkDatasetConverter, num_workers: int, arguments: dict[str, Any]
) -> None:
    states, found = [], []
    with stateful(converter, num_workers, **arguments) as loader:
        for _ in range(2):
            found.append([])
            for batch in loader:
                found[-1].append(batch["id"].tolist())
                states.append(json.dumps(loader.state_dict()))  # Plain values.
            states[-1] = json.dumps(loader.state_dict())
        assert len(loader) == len(found[0]) == ROWS // BATCH
    for epoch in found:
        assert sorted(row for batch in epoch for row in batch) == list(range(ROWS))
    assert found[0] != found[1]
    steps = ROWS // BATCH
    places = (0, 4, steps - 1) if num_workers else range(steps)
    for place in places:
        with stateful(converter, num_workers, **arguments) as again:
            again.load_state_dict(json.loads(states[place]))
            if place < steps - 1:
                assert ids(again) == found[0][place + 1 :], place
            assert ids(again) == found[1], place


def test_lightning_goes_on_in_the_middle_of_an_epoch(
    converter: SparkDatasetConverter, tmp_path: Path
) -> None:
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Line(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any) -> torch.Tensor:
            self.seen.append(batch["id"].tolist())
            return self.layer(batch["x"][:, None]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    def train(max_steps: int, resume_from: str | None = None) -> Line:
        model = Line()
        trainer = L.Trainer(
            accelerator="cpu",
            logger=False,
            max_steps=max_steps,
            callbacks=[ModelCheckpoint(tmp_path, every_n_train_steps=17, save_last=True)],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with stateful(converter, 0) as loader:
            trainer.fit(model, loader, ckpt_path=resume_from)
        return model

    whole, first = train(30), train(20)
    second = train(30, str(tmp_path / "last.ckpt"))
    assert first.seen[:17] + second.seen == whole.seen
    assert len(whole.seen) == 30
