"""Every mistake is a sentence that says what was found and what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_sets import LOCAL, load, numbered, one, write_groups

from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.files import pack, unpack
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest
from sparkdl_runner.data.errors import DatasetError, NoManifestError, StateError
from sparkdl_runner.rank import world
from sparkdl_runner.rank.world import World


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_groups(tmp_path, numbered(60), [[20, 10], [30]])


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({}, ValueError, "give batch_size .* or global_batch_size"),
        ({"batch_size": 4, "global_batch_size": 4}, ValueError, "and not both"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; expected 1 or more"),
        ({"batch_size": -1}, ValueError, "batch_size is -1; expected 1 or more"),
        ({"batch_size": 2.5}, TypeError, r"batch_size is 2\.5; expected a whole number"),
        ({"batch_size": True}, TypeError, "batch_size is True; expected a whole number"),
        ({"batch_size": 4, "num_epochs": 0}, ValueError, "num_epochs is 0"),
        ({"batch_size": 4, "workers_count": 0}, ValueError, "workers_count is 0"),
        ({"batch_size": 4, "prefetch_batches": 0}, ValueError, "prefetch_batches is 0"),
        ({"batch_size": 4, "memory_budget_bytes": 0}, ValueError, "memory_budget_bytes is 0"),
        (
            {"batch_size": 4, "memory_budget_bytes": 100},
            ValueError,
            r"=100 is too little .* needs about [\d,]+ bytes, .* and 192 for two batches of 4 rows",
        ),
        ({"batch_size": 4, "seed": -1}, ValueError, r"seed is -1; expected 0 or more"),
        ({"batch_size": 4, "seed": "x"}, TypeError, "seed is 'x'; expected a whole number"),
        (
            {"batch_size": 4, "tail": "keep"},
            ValueError,
            "tail is 'keep'; expected one of drop",
        ),
        ({"batch_size": 4, "transform": 3}, TypeError, "transform is 3; expected a function"),
        ({"batch_size": 4, "lanes": 3}, ValueError, "lanes=3 .* 4 rows.*Lanes that fit: 1, 2, 4"),
        (
            {"batch_size": 4, "lanes": 2, "cur_shard": 0, "shard_count": 4},
            ValueError,
            "lanes=2 cannot be shared evenly by 4 ranks. Give a multiple of 4",
        ),
        (
            {"batch_size": 4, "lanes": 4, "cur_shard": 0, "shard_count": 3},
            ValueError,
            "lanes=4 cannot be shared evenly by 3 ranks. Give a multiple of 3",
        ),
        (
            {"global_batch_size": 10, "cur_shard": 0, "shard_count": 4},
            ValueError,
            "global_batch_size=10 cannot be shared evenly by 4 ranks. 8 or 12 would fit",
        ),
        ({"batch_size": 4, "cur_shard": 0}, ValueError, "cur_shard and shard_count go together"),
        (
            {"batch_size": 4, "cur_shard": 2, "shard_count": 2},
            ValueError,
            "cur_shard is 2; expected 0 to 1",
        ),
        (
            {"batch_size": 4, "columns": ["valu"]},
            ValueError,
            "columns names 'valu': there is no such column. Did you mean 'value'?",
        ),
        ({"batch_size": 4, "columns": []}, ValueError, "columns is empty"),
        (
            {"batch_size": 4, "columns": "id"},
            ValueError,
            "columns is the text 'id'; expected",
        ),
        (
            {"batch_size": 4, "feature_cols": ["ID"]},
            ValueError,
            "feature_cols names 'ID': .* The data set has: id, value, vector",
        ),
        ({"batch_size": 4, "feature_cols": ["id", "id"]}, ValueError, "names 'id' twice"),
        (
            {"batch_size": 4, "feature_cols": ["vector"]},
            ValueError,
            "'vector', which is list<.* one number per row",
        ),
        (
            {"batch_size": 4, "feature_cols": ["id"], "features_name": "value"},
            ValueError,
            "two entries of a batch would be called 'value'",
        ),
        ({"batch_size": 4, "nulls": "ignore"}, ValueError, "nulls is 'ignore'; expected one of"),
        ({"batch_size": 4, "pad": 0}, ValueError, "pad for column 'id' is 0"),
        ({"batch_size": 4, "images": {"id": (2, 2)}}, ValueError, "images names 'id', .* int64"),
        ({"batch_size": 4, "device": "tpu?"}, ValueError, "device='tpu.'"),
        ({"batch_size": 4, "device": "meta"}, ValueError, "batches go to 'cpu', 'cuda' or 'numpy'"),
    ],
)
def test_arguments(
    tmp_path: Path,
    manifest: Manifest,
    arguments: dict[str, Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        load(tmp_path, manifest, **arguments)


def test_unknown_arguments(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(TypeError, match="batchsize"):
        load(tmp_path, manifest, batchsize=4)


@pytest.fixture
def in_worker() -> Iterator[World]:
    here = World(
        rank=1,
        size=2,
        local_rank=1,
        local_size=2,
        cross_rank=0,
        cross_size=1,
        host="h",
        host_id="host0",
        address="127.0.0.1",
        interface="lo",
        backend="torch",
    )
    world.enter_world(here)
    yield here
    world._current = None


def test_a_worker_reads_its_own_shard_and_no_other(
    tmp_path: Path, manifest: Manifest, in_worker: World
) -> None:
    with load(tmp_path, manifest, batch_size=4) as loader:
        assert (loader.rank, loader.world_size) == (1, 2)
    with load(tmp_path, manifest, batch_size=4, cur_shard=1, shard_count=2) as loader:
        assert loader.global_batch_size == 8
    with pytest.raises(ValueError, match="disagree with this worker, which is rank 1 of 2"):
        load(tmp_path, manifest, batch_size=4, cur_shard=0, shard_count=2)
    with load(tmp_path, manifest, batch_size=4, cur_shard=0, shard_count=1) as loader:
        assert len(loader) == 15  # All rows on this rank, as it says.


def test_a_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(NoManifestError, match=r"has no _manifest\.json: .*make_spark_converter"):
        Manifest.read(LOCAL, str(tmp_path))


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_torn_manifest(tmp_path: Path, manifest: Manifest, size: int) -> None:
    path = tmp_path / MANIFEST_NAME
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DatasetError, match=r"cannot be read .* cut short or edited"):
        Manifest.read(LOCAL, str(tmp_path))


def test_an_edited_manifest(tmp_path: Path, manifest: Manifest) -> None:
    path = tmp_path / MANIFEST_NAME
    fields = json.loads(path.read_text())
    rows = unpack(fields["row_groups"]["rows"], np.int64, fields["row_groups"]["count"])
    fields["row_groups"]["rows"] = pack(rows + 1)
    path.write_text(json.dumps(fields))
    with pytest.raises(DatasetError, match="was edited: its files and row groups no longer add up"):
        Manifest.read(LOCAL, str(tmp_path))
    fields["format_version"] = 99
    path.write_text(json.dumps(fields))
    with pytest.raises(DatasetError, match=r"format version 99 .* reads version 2"):
        Manifest.read(LOCAL, str(tmp_path))


def test_a_deleted_file(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "part-00001.parquet").unlink()
    with pytest.raises(DatasetError, match=r"part-00001\.parquet is gone: .* lists 2 files"):
        load(tmp_path, manifest, batch_size=4)


def test_a_truncated_file(tmp_path: Path, manifest: Manifest) -> None:
    path = tmp_path / "part-00001.parquet"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DatasetError, match=r"part-00001\.parquet has .* bytes and the manifest"):
        load(tmp_path, manifest, batch_size=4)


def test_a_file_replaced_by_one_of_equal_size(tmp_path: Path, manifest: Manifest) -> None:
    path = tmp_path / "part-00001.parquet"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    os.utime(path, (1, 1))  # The kernel's clock may stand still for some milliseconds.
    with pytest.raises(DatasetError, match=r"part-00001\.parquet was changed after the conv"):
        load(tmp_path, manifest, batch_size=4)


def test_a_copy_is_as_good(tmp_path: Path, manifest: Manifest) -> None:
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    copied = Manifest.read(LOCAL, str(copy))
    assert copied.fingerprint == manifest.fingerprint
    with load(copy, copied, batch_size=4) as loader:
        assert len(list(loader)) == 15


def test_files_that_are_not_listed_are_not_read(tmp_path: Path, manifest: Manifest) -> None:
    pq.write_table(pa.table({"other": ["x"]}), tmp_path / "part-00000-orphan.parquet")
    with load(tmp_path, manifest, batch_size=4) as loader:
        assert len(list(loader)) == 15


def test_a_file_that_goes_away_while_reading(tmp_path: Path, manifest: Manifest) -> None:
    with load(tmp_path, manifest, batch_size=4) as loader:
        (tmp_path / "part-00001.parquet").unlink()
        with pytest.raises(DatasetError, match=r"part-00001\.parquet, row group 0.*onvert"):
            list(loader)


def test_another_schema_in_the_last_file_is_found_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet")
    with pytest.raises(DatasetError, match=r"column 'b' is string in 1\.parquet and int64 in 0"):
        describe_parquet(LOCAL, str(tmp_path), ["0.parquet", "1.parquet"])
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    with pytest.raises(DatasetError, match="column 'b' is no such column in 1"):
        describe_parquet(LOCAL, str(tmp_path), ["0.parquet", "1.parquet"])


def test_something_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(DatasetError, match=r"0\.parquet \(17 bytes\) does not end as a Parquet"):
        describe_parquet(LOCAL, str(tmp_path), ["0.parquet"])
    with pytest.raises(DatasetError, match="holds no Parquet file"):
        describe_parquet(LOCAL, str(tmp_path), [])


@pytest.mark.parametrize("bad", [None, [1.0, None, 3.0], [1.0, 2.0]])
def test_a_bad_row_in_the_last_row_group_is_found_before_training(
    tmp_path: Path, bad: list[Any] | None
) -> None:
    """Whatever the data set's size: the manifest has the counts."""
    rows = [[1.0, 2.0, 3.0]] * 29 + [bad]
    manifest = one(tmp_path, pa.table({"x": pa.array(rows, pa.list_(pa.float32()))}), 10)
    with pytest.raises(DatasetError, match=r"'x' (holds 1 nulls|is list.*different lengths)"):
        load(tmp_path, manifest, batch_size=4)


@pytest.mark.parametrize(
    ("saved", "loaded", "sentence"),
    [
        ({"seed": 1}, {"seed": 2}, "saved with seed=1, and this loader has 2"),
        ({"tail": "pad"}, {}, "saved with tail='pad'"),
        ({"shuffle": False}, {}, "saved with shuffle=False"),
        ({"batch_size": 8}, {"batch_size": 4}, "saved with global_batch_size=8"),
        (
            {"batch_size": 6, "lanes": 2},
            {"batch_size": 2, "cur_shard": 0, "shard_count": 3},
            "2 lanes, which 3 ranks cannot share",
        ),
        (
            {"batch_size": 12, "lanes": 4},
            {"batch_size": 4, "cur_shard": 0, "shard_count": 3},
            "4 lanes, which 3 ranks cannot share",
        ),
    ],
)
def test_states_of_another_loader(
    tmp_path: Path,
    manifest: Manifest,
    saved: dict[str, Any],
    loaded: dict[str, Any],
    sentence: str,
) -> None:
    with load(tmp_path, manifest, **{"batch_size": 4, **saved}) as loader:
        state = loader.state_dict()
    with (
        load(tmp_path, manifest, **{"batch_size": 4, **loaded}) as loader,
        pytest.raises(StateError, match=sentence),
    ):
        loader.load_state_dict(state)


def test_the_state_of_another_data_set(tmp_path: Path, manifest: Manifest) -> None:
    other = one(tmp_path / "other", numbered(60))
    with load(tmp_path / "other", other, batch_size=4) as loader:
        state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    with load(tmp_path, manifest, batch_size=4) as loader:
        with pytest.raises(StateError, match="of another data set"):
            loader.load_state_dict(state)
        with pytest.raises(StateError, match="not the state of a loader"):
            loader.load_state_dict({"epoch": 1})


def test_one_loader_is_iterated_once_at_a_time(tmp_path: Path, manifest: Manifest) -> None:
    with load(tmp_path, manifest, batch_size=4) as loader:
        first = iter(loader)
        next(first)
        with pytest.raises(RuntimeError, match="set_epoch was called while"):
            loader.set_epoch(1)
        never_begun, second = iter(loader), iter(loader)
        for replaced in (first, never_begun):
            with pytest.raises(RuntimeError, match="a loader has one place, not two"):
                next(replaced)
        with pytest.raises(RuntimeError, match="set_epoch was called while"):
            loader.set_epoch(1)
        assert len(list(second)) == 15
    with pytest.raises(RuntimeError, match="the loader is closed"):
        iter(loader)


def test_what_a_transform_raises_arrives(tmp_path: Path, manifest: Manifest) -> None:
    def broken(batch: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("no such thing")

    with (
        load(tmp_path, manifest, batch_size=4, transform=broken) as loader,
        pytest.raises(KeyError, match="no such thing"),
    ):
        list(loader)
    with (
        load(tmp_path, manifest, batch_size=4, transform=lambda batch: 3) as loader,
        pytest.raises(TypeError, match="transform returned a int; expected a dict"),
    ):
        list(loader)


def test_lists_and_nulls_that_the_manifest_denies(tmp_path: Path) -> None:
    rows = [[1.0, 2.0]] * 9 + [[1.0]]
    pq.write_table(pa.table({"x": rows, "y": [[1.0]] * 9 + [[None]]}), tmp_path / "0.parquet")
    wrong = describe_parquet(
        LOCAL,
        str(tmp_path),
        ["0.parquet"],
        null_counts={"x": 0, "y": 0},
        list_lengths={"x": [2], "y": [1]},
    )
    for name, sentence in (("x", "a list of length 1 was found"), ("y", "nulls were found")):
        with (
            load(tmp_path, wrong, batch_size=2, columns=[name]) as loader,
            pytest.raises(
                DatasetError, match=rf"0\.parquet, row group 0, column '{name}': {sentence}"
            ),
        ):
            list(loader)


def test_numpys_whole_numbers_are_whole_numbers(tmp_path: Path, manifest: Manifest) -> None:
    with load(
        tmp_path, manifest, batch_size=np.int32(4), seed=np.uint64(3), num_epochs=np.int64(2)
    ) as loader:
        assert len(list(loader)) == 2 * len(loader) == 30
        assert json.dumps(loader.state_dict())


def test_lanes_beyond_the_budget_are_refused(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(ValueError, match=r"=4,000 is too little .* or fewer lanes than 4"):
        load(tmp_path, manifest, batch_size=4, lanes=4, memory_budget_bytes=4_000)
