"""``cache_type="decoded"``: images are decoded once, and later read from the local disk."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from parquet_sets import load, one
from PIL import Image

from sparkdl_runner.data.batches import image_decoder
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.tensors.images import decode_image

pytestmark = pytest.mark.one_lane

ROWS = 30
ARGUMENTS: dict[str, Any] = {"images": {"image": (6, 8)}, "tail": "uneven", "batch_size": 7}


def png(row: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(row).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    images = [png(row) if row % 10 else None for row in range(ROWS)]
    return one(tmp_path, pa.table({"id": range(ROWS), "image": images}), 8)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many images were decoded since it was last called."""
    count = [0]

    def decode(*arguments: Any) -> None:
        count[0] += 1
        decode_image(*arguments)

    monkeypatch.setattr(image_decoder, "decode_image", decode)

    def take() -> int:
        taken, count[0] = count[0], 0
        return taken

    return take


def read(folder: Path, manifest: Manifest, **arguments: Any) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    options = {"nulls": "fill", **ARGUMENTS, "cache_location": str(folder / "cache"), **arguments}
    with load(folder, manifest, **options) as loader:
        for batch in loader:
            rows = zip(batch["id"].tolist(), batch["image"].numpy(), strict=True)
            found |= {row: pixels.tobytes() for row, pixels in rows}
    return found


def test_each_image_is_decoded_once_for_all_epochs_orders_and_ranks(
    tmp_path: Path, manifest: Manifest, decoded: Callable[[], int]
) -> None:
    expected = read(tmp_path, manifest)
    assert decoded() == ROWS - 3
    first = read(tmp_path, manifest, cache_type="decoded")
    assert (first, decoded()) == (expected, ROWS - 3)
    later = read(tmp_path, manifest, cache_type="decoded", num_epochs=2, seed=5)
    assert (later, decoded()) == (expected, 0)
    ranks: dict[int, bytes] = {}
    for rank in range(2):
        options = {"cur_shard": rank, "shard_count": 2, "batch_size": 4}
        ranks |= read(tmp_path, manifest, cache_type="decoded", **options)
    assert (ranks, decoded()) == (expected, 0)
    other = read(tmp_path, manifest, cache_type="decoded", images={"image": (3, 4)})
    assert {len(pixels) for pixels in other.values()} == {36}
    assert decoded() == ROWS - 3


def test_an_entry_that_is_damaged_is_decoded_again(
    tmp_path: Path, manifest: Manifest, decoded: Callable[[], int]
) -> None:
    expected = read(tmp_path, manifest, cache_type="decoded")
    decoded()
    entries = [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size == 144 + 4]
    assert len(entries) == ROWS - 3
    for path in entries[:5]:
        path.write_bytes(bytes(50) + path.read_bytes()[50:])
    assert read(tmp_path, manifest, cache_type="decoded") == expected
    assert decoded() == 5


def test_it_keeps_to_its_limit(
    tmp_path: Path, manifest: Manifest, decoded: Callable[[], int]
) -> None:
    limit = {"cache_size_limit": 10 * (144 + 4)}
    options: dict[str, Any] = {"cache_type": "decoded", "workers_count": 1, **limit}
    read(tmp_path, manifest, **options)
    decoded()
    read(tmp_path, manifest, **options)
    assert decoded() == ROWS - 3 - 10


def test_a_bad_image_is_told_in_each_epoch(tmp_path: Path) -> None:
    table = pa.table({"id": range(4), "image": [png(0), b"none", png(2), png(3)]})
    manifest = one(tmp_path, table, 4)
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"row 1: it is no image"):
            read(tmp_path, manifest, cache_type="decoded")


def test_without_encoded_images_it_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(ValueError, match=r"no column that is read has encoded ones"):
        read(tmp_path, manifest, cache_type="decoded", columns=["id"], images=None)


def test_a_type_of_cache_that_does_not_exist_is_refused_for_local_files_too(
    tmp_path: Path, manifest: Manifest
) -> None:
    with pytest.raises(ValueError, match=r"cache_type is 'decode'; expected one of .* decoded"):
        read(tmp_path, manifest, cache_type="decode")
