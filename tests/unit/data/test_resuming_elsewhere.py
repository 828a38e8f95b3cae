"""States in loaders that are not quite the one they were saved by; data that fills no batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from parquet_sets import load, numbered, one

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.errors import DatasetError, StateError


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return one(tmp_path, numbered(40))


def test_an_endless_loaders_state_ends_its_epoch_in_a_loader_of_one(
    tmp_path: Path, manifest: Manifest
) -> None:
    # A small budget, so that the endless one does not read hundreds of epochs ahead.
    arguments = {"batch_size": 4, "blocks_bytes": 30_000}
    with load(tmp_path, manifest, **arguments, num_epochs=None) as endless:
        taken = iter(endless)
        for _ in range(2 * 10 + 3):  # two epochs of ten steps, and three steps
            next(taken)
        taken.close()
        state = endless.state_dict()
        endless.set_epoch(2)
        expected = [batch["id"].tolist() for batch, _ in zip(endless, range(10), strict=False)]
    with load(tmp_path, manifest, **arguments, num_epochs=1) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(2)
        assert [batch["id"].tolist() for batch in loader] == expected[3:]


@pytest.mark.parametrize(
    "altered", [{"lanes": 0}, {"epoch": "1"}, {"step": 10**6}, {"step": True}, {"block_rows": 0}]
)
def test_an_altered_state_is_refused(
    tmp_path: Path, manifest: Manifest, altered: dict[str, object]
) -> None:
    with load(tmp_path, manifest, batch_size=4) as loader:
        state = {**loader.state_dict(), **altered}
        with pytest.raises(StateError):
            loader.load_state_dict(state)


@pytest.mark.parametrize("epoch", [-1, "1", True, 1.5])
def test_an_epoch_is_a_whole_number(tmp_path: Path, manifest: Manifest, epoch: object) -> None:
    with (
        load(tmp_path, manifest, batch_size=4) as loader,
        pytest.raises((TypeError, ValueError), match=r"epoch is .* expected"),
    ):
        loader.set_epoch(epoch)  # type: ignore[arg-type]


def test_rows_that_fill_no_batch_are_told_of(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.warns(UserWarning, match="40 rows do not fill one global batch of 64"):
        load(tmp_path, manifest, batch_size=64).close()


def test_padding_does_not_drop_a_mask(tmp_path: Path) -> None:
    lists = pa.array([[1.0, None], [2.0], [3.0, 4.0, 5.0]], pa.list_(pa.float32()))
    manifest = one(tmp_path, pa.table({"v": lists}))
    with pytest.raises(DatasetError, match="nulls='mask' cannot go with pad="):
        load(tmp_path, manifest, batch_size=1, pad={"v": 3}, nulls="mask")


def test_a_state_of_the_earlier_order_is_refused_with_the_way_on(
    tmp_path: Path, manifest: Manifest
) -> None:
    with load(tmp_path, manifest, batch_size=4) as loader:
        state = {**loader.state_dict(), "version": 1, "epoch": 3, "step": 2}
        del state["window_groups"]
        with pytest.raises(StateError, match=r"after step 2 of epoch 3.*set_epoch\(3\)"):
            loader.load_state_dict(state)
