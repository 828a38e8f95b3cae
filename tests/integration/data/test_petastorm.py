"""petastorm's engine beside ours, on the same files; and one sentence where it cannot run."""

from __future__ import annotations

import datetime
import decimal
import itertools
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from sparkdl_runner.data import DatasetError, SparkDatasetConverter, make_spark_converter
from sparkdl_runner.data.consumers.petastorm.engine import obstacle
from sparkdl_runner.data.consumers.petastorm.unischema import UNISCHEMA_KEY

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cache_dir")]

CANNOT_RUN = "petastorm needs pyarrow below 15, and this is pyarrow"


@pytest.fixture
def petastorm():
    """For what follows: here, or the one sentence that is asked of this lane."""
    if obstacle() is None:
        import petastorm

        return petastorm
    return None


def refuses(converter: SparkDatasetConverter, **arguments) -> bool:
    """Whether this lane cannot run petastorm; then it must say so in one sentence."""
    if obstacle() is None:
        return False
    with pytest.raises(ImportError, match=CANNOT_RUN) as caught:
        converter.make_torch_dataloader(**arguments)
    assert str(caught.value).count(". ") == 0
    return True


def uneven(spark) -> SparkDatasetConverter:
    """100 rows in 7 row groups: 40 in the first, 10 in each other."""
    sizes = [40, 10, 10, 10, 10, 10, 10]
    starts = np.cumsum([0, *sizes])
    parts = [range(int(low), int(high)) for low, high in itertools.pairwise(starts)]
    rdd = spark.sparkContext.parallelize(parts, len(parts)).flatMap(lambda part: part)
    return make_spark_converter(rdd.map(lambda i: (i, float(i))).toDF(["id", "x"]))


def rows_of(loader, name="id") -> list[int]:
    return [value for batch in loader for value in batch[name].tolist()]


def test_the_same_values_as_petastorms_reader(spark, petastorm):
    rows = [
        (
            i,
            i * 0.5,
            i % 3 == 0,
            [i + 0.25, 2.0],
            Vectors.sparse(3, {1: float(i)}) if i % 2 else Vectors.dense([i, 0.0, 1.0]),
            f"row {i}",
            bytearray([i]),
            datetime.date(2024, 1, 1) + datetime.timedelta(days=i),
            datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=i),
            decimal.Decimal(i),
        )
        for i in range(30)
    ]
    names = ["id", "x", "flag", "f", "v", "text", "raw", "date", "stamp", "decimal"]
    converter = make_spark_converter(spark.createDataFrame(rows, names).repartition(3))
    if petastorm is None:
        assert refuses(converter, engine="petastorm")
        return
    with petastorm.make_batch_reader(
        converter.file_urls, shuffle_row_groups=False, workers_count=1
    ) as reader:
        groups = [group._asdict() for group in reader]
    with converter.make_torch_dataloader(
        batch_size=30, num_epochs=1, shuffle=False, decimals="float64"
    ) as loader:
        (ours,) = list(loader)
    theirs = {name: np.concatenate([group[name] for group in groups]) for name in names}
    for name in ("id", "x", "flag", "f", "v"):
        mine = ours[name].numpy()
        np.testing.assert_array_equal(mine, theirs[name])
        assert mine.dtype == theirs[name].dtype, name
    assert list(ours["text"]) == theirs["text"].tolist()
    assert list(ours["raw"]) == theirs["raw"].tolist()
    # petastorm gives these as it finds them in pandas; a tensor holds numbers.
    assert ours["date"].tolist() == [
        (day - datetime.date(1970, 1, 1)).days for day in theirs["date"]
    ]
    microseconds = theirs["stamp"].astype("datetime64[us]").astype(np.int64)
    np.testing.assert_array_equal(ours["stamp"].numpy(), microseconds)
    assert ours["decimal"].tolist() == [float(value) for value in theirs["decimal"]]


@pytest.mark.one_lane
def test_the_same_batches_as_petastorms_loader(spark):
    converter = uneven(spark)
    arguments = {"batch_size": 10, "num_epochs": 1, "shuffle_row_groups": False}
    with converter.make_torch_dataloader(**arguments, workers_count=1) as loader:
        ours = list(loader)
    with converter.make_torch_dataloader(
        **arguments, engine="petastorm", workers_count=1
    ) as loader:
        theirs = list(loader)
        assert len(loader) == len(theirs) == len(ours) == 10
    for mine, other in zip(ours, theirs, strict=True):
        assert set(mine) == set(other)
        for name, values in mine.items():
            np.testing.assert_array_equal(values, other[name])


@pytest.mark.one_lane
def test_equal_steps_on_all_ranks(spark):
    converter = uneven(spark)
    for shards in (2, 3, 5):
        seen = Counter()
        steps = set()
        for shard in range(shards):
            with converter.make_torch_dataloader(
                batch_size=4,
                num_epochs=2,
                engine="petastorm",
                cur_shard=shard,
                shard_count=shards,
                seed=0,
            ) as loader:
                batches = list(loader)
                steps.add((len(batches), len(loader)))
            first_epoch = batches[: len(batches) // 2]
            assert all(len(batch["id"]) == 4 for batch in batches)
            seen.update(rows_of(first_epoch))
        ((made, length),) = steps
        assert made == 2 * length > 0
        assert max(seen.values()) == 1, "no row twice in an epoch"


@pytest.mark.one_lane
def test_a_new_order_each_epoch_and_the_same_again(spark):
    converter = uneven(spark)

    def orders(seed):
        with converter.make_torch_dataloader(
            batch_size=100, num_epochs=3, engine="petastorm", seed=seed, workers_count=1
        ) as loader:
            return [batch["id"].tolist() for batch in loader]

    first, second, third = orders(seed=0)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second != third != first
    assert orders(seed=0) == [first, second, third]
    assert orders(seed=1) != [first, second, third]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_what_petastorm_alone_can_do_chooses_it(spark, petastorm):
    converter = uneven(spark)
    if petastorm is None:
        for arguments in (
            {"data_loader_fn": print},
            {"transform_spec": object()},
            {"predicate": object()},
            {"engine": "petastorm"},
        ):
            assert refuses(converter, **arguments)
        return
    from petastorm import TransformSpec
    from petastorm.predicates import in_lambda
    from petastorm.pytorch import BatchedDataLoader

    with converter.make_torch_dataloader(
        batch_size=50, num_epochs=1, data_loader_fn=BatchedDataLoader
    ) as loader:
        assert sorted(rows_of(loader)) == list(range(100))

    def double(frame):
        frame["x"] = frame["x"] * 2
        return frame

    with converter.make_torch_dataloader(
        batch_size=50, num_epochs=1, transform_spec=TransformSpec(double), columns=["x"]
    ) as loader:
        assert sorted(rows_of(loader, "x")) == [2.0 * i for i in range(100)]

    even = in_lambda(["id"], lambda ids: ids % 2 == 0)
    with converter.make_torch_dataloader(batch_size=50, num_epochs=1, predicate=even) as loader:
        assert sorted(rows_of(loader)) == list(range(0, 100, 2))
        with pytest.raises(TypeError, match="steps_per_epoch"):
            len(loader)

    for shard in (0, 1):
        arguments = {"batch_size": 4, "num_epochs": 1, "cur_shard": shard, "shard_count": 2}
        with (
            pytest.raises(ValueError, match="give steps_per_epoch"),
            converter.make_torch_dataloader(predicate=even, **arguments),
        ):
            pass
        with converter.make_torch_dataloader(
            predicate=even, steps_per_epoch=40, **arguments
        ) as loader:
            assert len(list(loader)) == len(loader) == 40
    nothing = in_lambda(["id"], lambda ids: ids < 0)
    with (
        converter.make_torch_dataloader(predicate=nothing, steps_per_epoch=1) as loader,
        pytest.raises(DatasetError, match="lets nothing through"),
    ):
        next(iter(loader))


@pytest.mark.one_lane
def test_arguments_of_the_other_engine(spark):
    converter = uneven(spark)
    with pytest.raises(TypeError, match="predicate is petastorm's own"):
        converter.make_torch_dataloader(engine="arrow", predicate=print)
    with pytest.raises(TypeError, match="lanes is known to engine='arrow' only"):
        converter.make_torch_dataloader(engine="petastorm", lanes=4)
    with pytest.raises(TypeError, match=r"lanes .* \(data_loader_fn chose it\)"):
        converter.make_torch_dataloader(data_loader_fn=print, lanes=4)


@pytest.mark.one_lane
def test_more_ranks_than_row_groups(spark):
    converter = uneven(spark)
    shard = {"cur_shard": 0, "shard_count": 8}
    with converter.make_torch_dataloader(batch_size=4, num_epochs=1, **shard) as loader:
        assert len(list(loader)) == len(loader) == 3, "ours deals out rows, not row groups"
    with (
        pytest.raises(ValueError, match="7 row groups of 8 shards"),
        converter.make_torch_dataloader(engine="petastorm", batch_size=4, **shard),
    ):
        pass


class Booby:
    """A pickle that leaves a trace when somebody loads it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def with_pickled_schema(directory: Path, trace: Path) -> None:
    schema = pq.read_schema(min(directory.glob("*.parquet"))).remove_metadata()
    pq.write_metadata(
        schema.with_metadata({UNISCHEMA_KEY: pickle.dumps(Booby(trace))}),
        directory / "_common_metadata",
    )


def test_a_pickled_schema_is_refused(spark, tmp_path):
    spark.range(10).write.parquet(f"file://{tmp_path}/foreign")
    with_pickled_schema(tmp_path / "foreign", tmp_path / "trace")
    converter = make_spark_converter(f"file://{tmp_path}/foreign")
    with pytest.raises(ValueError, match="only engine='petastorm' can read"):
        converter.make_torch_dataloader(engine="arrow")
    if not refuses(converter):
        with pytest.raises(DatasetError, match="pass trust_unischema=True"):
            converter.make_torch_dataloader()
    assert not (tmp_path / "trace").exists()


def test_a_pickled_schema_that_was_slipped_in_is_never_read(spark, tmp_path):
    converter = uneven(spark)
    with_pickled_schema(Path(converter.cache_dir_url.removeprefix("file://")), tmp_path / "trace")
    with converter.make_torch_dataloader(batch_size=10, num_epochs=1) as loader:
        assert len(rows_of(loader)) == 100
    if not refuses(converter, engine="petastorm"):
        with converter.make_torch_dataloader(
            batch_size=10, num_epochs=1, engine="petastorm"
        ) as loader:
            assert len(rows_of(loader)) == 100
    assert not (tmp_path / "trace").exists()


def test_both_engines_decode_what_petastorms_codecs_wrote(spark, tmp_path, petastorm):
    url = f"file://{tmp_path}/codecs"
    if petastorm is None:
        table = pa.table({"id": [1]})
        (tmp_path / "codecs").mkdir()
        pq.write_table(table, tmp_path / "codecs" / "part-0.parquet")
        with_pickled_schema(tmp_path / "codecs", tmp_path / "trace")
        assert refuses(make_spark_converter(url), trust_unischema=True)
        assert not (tmp_path / "trace").exists()
        return
    from petastorm.codecs import CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
    from petastorm.etl.dataset_metadata import materialize_dataset
    from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
    from pyspark.sql import types as t

    schema = Unischema(
        "Tests",
        [
            UnischemaField("id", np.int32, (), ScalarCodec(t.IntegerType()), False),
            # As the schema of its MNIST example says it.
            UnischemaField("digit", np.int_, (), ScalarCodec(t.IntegerType()), False),
            UnischemaField("grid", np.float32, (2, 3), NdarrayCodec(), False),
            UnischemaField("packed", np.uint16, (4,), CompressedNdarrayCodec(), False),
        ],
    )
    rows = [
        {
            "id": i,
            "digit": i % 3,
            "grid": np.full((2, 3), i, np.float32),
            "packed": np.arange(i, i + 4, dtype=np.uint16),
        }
        for i in range(10)
    ]
    with materialize_dataset(spark, url, schema):
        encoded = [dict_to_spark_row(schema, row) for row in rows]
        spark.createDataFrame(encoded, schema.as_spark_schema()).coalesce(2).write.parquet(url)
    converter = make_spark_converter(url)
    with pytest.raises(DatasetError, match="pass trust_unischema=True"):
        converter.make_torch_dataloader(engine="petastorm")
    for arguments in ({}, {"trust_unischema": True}):
        with converter.make_torch_dataloader(10, num_epochs=1, **arguments) as loader:
            (batch,) = loader
        order = batch["id"].argsort()
        for name in ("id", "digit", "grid", "packed"):
            expected = np.stack([row[name] for row in rows])
            assert np.array_equal(batch[name][order].numpy(), expected), name
        assert batch["digit"].dtype == torch.int64


class LikePetastorms:
    """What petastorm's converter offers, for the lane that has none."""

    __module__ = "petastorm.spark.spark_dataset_converter"

    def __init__(self, df, directory: Path) -> None:
        df.withColumn("f", F.col("f").cast("array<float>")).write.parquet(f"file://{directory}")
        self.cache_dir_url = f"file://{directory}"
        self.file_urls = [f"file://{path}" for path in directory.glob("*.parquet")]
        self.delete = lambda: shutil.rmtree(directory)

    def __len__(self) -> int:
        return 20


def test_a_converter_that_petastorm_made(spark, cache_dir, petastorm):
    df = spark.range(0, 20, 1, 2).select("id", F.array(F.col("id") * 1.5).alias("f"))
    cache_dir.mkdir()
    if petastorm is None:
        made = LikePetastorms(df, cache_dir / "made")
    else:
        from petastorm.spark import make_spark_converter as make_petastorm_converter

        made = make_petastorm_converter(df)
    ours = make_spark_converter(df)
    with make_spark_converter(made) as adopted:
        assert (len(adopted), adopted.cache_dir_url) == (20, made.cache_dir_url)
        copy = pickle.loads(pickle.dumps(adopted))
        with copy.make_torch_dataloader(batch_size=20, num_epochs=1) as loader:
            assert sorted(rows_of(loader)) == list(range(20))
        # The same layout, whoever started the job.
        for theirs, mine in zip(sorted(made.file_urls), sorted(ours.file_urls), strict=True):
            first = pq.read_table(theirs.removeprefix("file://"))
            assert first.to_pylist() == pq.read_table(mine.removeprefix("file://")).to_pylist()
    assert not Path(made.cache_dir_url.removeprefix("file://")).exists()


@pytest.mark.parametrize("by_petastorm", [True, False])
def test_both_writers_make_the_same_layout(spark, monkeypatch, by_petastorm):
    if not by_petastorm or obstacle() is not None:
        monkeypatch.setattr(
            "sparkdl_runner.data.consumers.petastorm.engine.can_convert", lambda *arguments: False
        )
    df = spark.range(0, 20, 1, 2).select("id", (F.col("id") / 2).alias("half"))
    converter = make_spark_converter(df)
    directory = Path(converter.cache_dir_url.removeprefix("file://"))
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    assert names[:2] == ["_SUCCESS", "_manifest.json"]
    assert [name.split("-")[:2] for name in names[2:]] == [["part", "00000"], ["part", "00001"]]
    table = pq.read_table(directory / names[2])
    assert str(table.schema.remove_metadata()) == "id: int64 not null\nhalf: float"
