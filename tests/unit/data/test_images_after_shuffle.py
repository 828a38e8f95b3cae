"""Images stay encoded while rows are shuffled, and are decoded in their batch."""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from parquet_sets import load, one
from PIL import Image

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.read.costs import open_group_bytes
from sparkdl_runner.rank import rank_facts
from sparkdl_runner.tensors.images import CHANNELS, ImageSize, decode_image


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Something like a photograph: large soft shapes, sharp edges, and grain."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    pixels = soft.astype(np.int16) + random.normal(0, 8, (height, width, 1)).astype(np.int16)
    pixels[height // 3 : height // 2, width // 4 : width // 3] = (250, 10, 40)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, image_format: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=image_format, **options)
    return stream.getvalue()


def decoded(value: bytes, height: int, width: int, mode: str = "RGB") -> npt.NDArray[np.uint8]:
    out = np.full((height, width, CHANNELS[mode]), 77, dtype=np.uint8)
    decode_image(value, mode, out)
    return out


@pytest.mark.parametrize(("height", "width"), [(600, 800), (450, 450), (901, 1207), (1800, 230)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_scaled_decoding_is_close_to_full_decoding(height: int, width: int, mode: str) -> None:
    value = encoded(photo(height, width))
    small = decoded(value, 112, 112, mode).astype(np.float64)
    full = Image.open(io.BytesIO(value)).convert(mode).resize((112, 112), Image.Resampling.BILINEAR)
    difference = small - np.asarray(full, dtype=np.float64).reshape(small.shape)
    assert np.abs(difference).mean() < 0.6
    assert (difference**2).mean() < 255**2 / 10**4.6  # 46 dB


def test_an_image_is_never_decoded_smaller_than_it_is_asked_for(monkeypatch: Any) -> None:
    sizes = []
    load = Image.Image.resize

    def resize(image: Image.Image, *arguments: Any, **more: Any) -> Image.Image:
        sizes.append(image.size)
        return load(image, *arguments, **more)

    monkeypatch.setattr(Image.Image, "resize", resize)
    for width, height in ((1344, 1008), (672, 504), (336, 252), (335, 252), (223, 168), (112, 84)):
        decoded(encoded(Image.new("RGB", (width, height))), 84, 112)
    assert sizes == [(168, 126), (168, 126), (168, 126), (335, 252), (223, 168)]


@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP", "WEBP", "TIFF", "MPO"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_other_formats(image_format: str, mode: str) -> None:
    image = photo(90, 120)
    options = {"lossless": True} if image_format == "WEBP" else {}
    if image_format == "MPO":
        options = {"save_all": True, "append_images": [image]}
    found = decoded(encoded(image, image_format, **options), 30, 40, mode).astype(np.int16)
    expected = image.convert(mode).resize((40, 30), Image.Resampling.BILINEAR)
    assert np.abs(found - np.asarray(expected).reshape(found.shape)).mean() < 6


def test_rows_keep_their_images(tmp_path: Path) -> None:
    """Each picture is of one grey, which is its row's number."""
    count = 60
    images = [encoded(Image.new("L", (12, 9), 4 * row), "PNG") for row in range(count)]
    table = pa.table({"id": np.arange(count), "image": images})
    manifest = one(tmp_path, table, 7)
    for shards in (1, 2):
        seen: list[int] = []
        for shard in range(shards):
            with load(
                tmp_path,
                manifest,
                global_batch_size=8,
                tail="uneven",
                cur_shard=shard,
                shard_count=shards,
                images={"image": (3, 4, "L")},
            ) as loader:
                for batch in loader:
                    assert batch["image"].shape[1:] == (3, 4, 1)
                    assert batch["image"].dtype == torch.uint8
                    assert (batch["image"][:, 1, 1, 0] == 4 * batch["id"]).all()
                    seen += batch["id"].tolist()
        assert sorted(seen) == list(range(count))


def test_nulls_and_rows_that_fill_up_are_black(tmp_path: Path) -> None:
    white = encoded(Image.new("L", (4, 4), 255), "PNG")
    table = pa.table({"id": np.arange(10), "image": [white, None] * 5})
    manifest = one(tmp_path, table, 4)
    wanted: dict[str, Any] = {"images": {"image": (4, 4, "L")}, "batch_size": 4, "tail": "pad"}
    for nulls in ("mask", "fill"):
        with load(tmp_path, manifest, nulls={"image": nulls}, **wanted) as loader:
            batches = list(loader)
        assert [int(batch["row_mask"].sum()) for batch in batches] == [4, 4, 2]
        for batch in batches:
            is_white = batch["row_mask"] & (batch["id"] % 2 == 0)
            assert (batch["image"].amax((1, 2, 3)) == 255 * is_white).all()
            if nulls == "mask":
                assert (batch["image_mask"] == is_white).all()


def damaged(tmp_path: Path) -> Any:
    """40 rows in groups of 6; those of numbers 11 and 31 do not decode."""
    images = [encoded(photo(40, 40, row)) for row in range(40)]
    images[11] = images[11][: len(images[11]) // 2]
    images[31] = b"\x89PNG\r\n\x1a\n broken"
    return one(tmp_path, pa.table({"id": np.arange(40), "image": images}), 6)


def test_an_image_that_does_not_decode_stops_the_loader_and_is_named(tmp_path: Path) -> None:
    manifest = damaged(tmp_path)
    for seed in range(3):  # Whichever of the two comes first.
        with (
            load(tmp_path, manifest, batch_size=8, images={"image": (8, 8)}, seed=seed) as loader,
            pytest.raises(
                DatasetError,
                match=r"part-00000\.parquet, row group (1, column 'image', row 5: .*\(.+\)"
                r"|5, column 'image', row 1: it is no image).*on_bad_image='skip'",
            ),
        ):
            list(loader)


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
def test_bad_images_are_masked_counted_and_told_of(tmp_path: Path, tail: str) -> None:
    manifest = damaged(tmp_path)
    before = rank_facts.current().get("skipped_images", 0)
    steps, masked, told = [], [], []
    for shard in range(2):
        with (
            load(
                tmp_path,
                manifest,
                global_batch_size=8,
                cur_shard=shard,
                shard_count=2,
                tail=tail,
                images={"image": (8, 8)},
                on_bad_image="skip",
                num_epochs=2,
            ) as loader,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            batches = list(loader)
        steps.append(len(batches))
        for batch in batches:
            bad = ~batch["row_mask"]
            masked += batch["id"][bad].tolist()
            assert not batch["image"][bad].any()
            assert batch["image"][~bad].flatten(1).any(1).all()
        told += [str(one.message) for one in caught if "skipped" in str(one.message)]
    assert steps == [10, 10]
    assert sorted(masked) == [11, 11, 31, 31]
    at_once = [one for one in told if "column 'image', row" in one]
    at_the_end = [int(one.split()[0]) for one in told if "do not decode" in one]
    assert 1 <= len(at_once) <= 2
    assert sum(at_the_end) == 4
    assert rank_facts.current()["skipped_images"] - before == 4, "of all passes of this process"


def test_an_unknown_answer_to_bad_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_bad_image is 'drop'; expected one of error, skip"):
        load(tmp_path, damaged(tmp_path), batch_size=4, on_bad_image="drop")


def test_a_budget_that_is_smaller_than_a_batch_of_decoded_images_is_refused(tmp_path: Path) -> None:
    manifest = damaged(tmp_path)
    wanted: dict[str, Any] = {"images": {"image": (64, 64)}, "batch_size": 20}
    with pytest.raises(ValueError, match=r"[\d,]+ for two batches of 20 rows"):
        load(tmp_path, manifest, memory_budget_bytes=400_000, **wanted)
    load(tmp_path, manifest, memory_budget_bytes=2_000_000, **wanted).close()


def test_a_row_group_of_images_is_open_with_a_page_of_as_many_as_its_writer_counts(
    tmp_path: Path,
) -> None:
    """However long the images are: 100 in Spark's files, 1,024 in pyarrow's; large ones twice."""
    noise = np.random.default_rng(0)
    table = pa.table({"image": [noise.bytes(3_000) for _ in range(4_000)]})
    manifest = one(tmp_path, table, 2_000)
    assert 6_000_000 < open_group_bytes(manifest) < 6_500_000
    by_spark = replace(manifest, page_rows=100)
    assert 1_000_000 < open_group_bytes(by_spark) < 1_300_000
    again = Manifest.from_bytes(json.dumps(manifest.to_json()).encode())
    assert again.page_rows == manifest.page_rows == 1024
    assert len({one.digest for one in (manifest, by_spark, again)}) == 2


def test_a_size_is_one_pixel_or_more() -> None:
    assert ImageSize.of("photo", (1, 1)).shape == (1, 1, 3)
    for size in [(0, 4), (4, 0), (4,), (4, 4, "CMYK"), None]:
        with pytest.raises(
            ValueError, match=r"images\['photo'\] is .*; expected \(height, width\)"
        ):
            ImageSize.of("photo", size)
