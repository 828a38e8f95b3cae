"""Tables of Delta and Iceberg on an S3 server: the driver finds their files, ranks open those."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest
from benchmarks.servers.object_store import ObjectStore, object_store

from sparkdl_runner.data import DatasetError, make_spark_converter

pytestmark = pytest.mark.integration

ROWS, LEFT = 300, 240  # written, and left after one of five days was deleted


def options_of(store: ObjectStore, url: str | None = None) -> dict[str, Any]:
    """How to reach the server, whose threads may be held on a busy machine: S3's client would ask
    again after 3 s."""
    return {**store.options(url), "request_timeout": 120}


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        there = pa.fs.S3FileSystem(**options_of(store, store.behind), allow_bucket_creation=True)
        there.create_dir("lake")
        yield store


def numbers() -> pa.Table:
    return pa.table(
        {"id": pa.array(range(ROWS), pa.int64()), "day": [i % 5 for i in range(ROWS)]},
        pa.schema([("id", pa.int64()), ("day", pa.int32())]),
    )


def write_delta(store: ObjectStore) -> str:
    from deltalake import DeltaTable, write_deltalake

    from sparkdl_runner.data.dataset.lake.delta import _options

    url = "s3://lake/delta"
    options = _options(options_of(store, store.behind), url)
    write_deltalake(url, numbers(), partition_by=["day"], storage_options=options)
    DeltaTable(url, storage_options=options).delete("day = 4")
    return url


def write_iceberg(store: ObjectStore) -> str:
    from pyiceberg.catalog.memory import InMemoryCatalog

    from sparkdl_runner.data.dataset.lake.iceberg import _options

    catalog = InMemoryCatalog(
        "here", warehouse="s3://lake", **_options(options_of(store, store.behind))
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.iceberg", schema=numbers().schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    table.append(numbers())
    table.delete("day == 4")
    place: str = table.location()
    return place


FORMATS = [
    pytest.param(write_delta, "VACUUM deletes", id="delta"),
    pytest.param(
        write_iceberg,
        "expire_snapshots deletes",
        id="iceberg",
        marks=pytest.mark.skipif(
            int(pa.__version__.partition(".")[0]) < 17, reason="pyiceberg writes by Arrow 17"
        ),
    ),
]


@pytest.mark.parametrize(("write", "advice"), FORMATS)
def test_ranks_list_nothing_and_are_told_when_a_file_is_deleted_in_mid_epoch(
    store: ObjectStore, write: Callable[[ObjectStore], str], advice: str
) -> None:
    url, options = write(store), options_of(store)
    store.forget()
    made = make_spark_converter(url, storage_options=options)
    assert len(made) == LEFT
    reading: dict[str, Any] = {"num_epochs": 1, "storage_options": options, "shard_count": 2}
    store.counts.clear()
    seen: list[int] = []
    for rank in range(2):
        converter = pickle.loads(pickle.dumps(made))
        with converter.make_torch_dataloader(10, cur_shard=rank, **reading) as loader:
            for batch in loader:
                seen += batch["id"].tolist()
                assert set(batch["day"].tolist()) <= {0, 1, 2, 3}
    assert sorted(seen) == [i for i in range(ROWS) if i % 5 != 4]
    assert store.counts["LIST"] == 0
    groups = len(made.open(options).manifest.row_groups)
    assert store.counts["GET"] <= 2 * 2 * groups, "a lane may end within a row group"
    asked: set[str] = set()
    store.refuses = lambda number, kind, path: asked.add(path)  # type: ignore[func-returns-value]
    day = make_spark_converter(url, storage_options=options, filters=[("day", "=", 2)])
    assert len(day) == ROWS // 5
    assert sum(path.endswith(".parquet") for path in asked) == 1, "one day of four"
    there = pa.fs.S3FileSystem(**options_of(store, store.behind))
    with made.make_torch_dataloader(10, cur_shard=0, **reading) as loader:
        for entry in there.get_file_info(pa.fs.FileSelector(url[len("s3://") :], recursive=True)):
            if entry.path.endswith(".parquet"):
                there.delete_file(entry.path)
        store.forget()
        with pytest.raises(DatasetError, match=rf"it is not there .*{advice}"):
            list(loader)
