"""A DataFrame becomes files, once, in one Spark job, and every process can read them."""

from __future__ import annotations

import datetime
import decimal
import json
import logging
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.data import (
    DatasetError,
    NoManifestError,
    SparkDatasetConverter,
    make_spark_converter,
)
from sparkdl_runner.data.dataset import observe
from sparkdl_runner.data.dataset.lease import FOLDER as LEASES_FOLDER
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME
from sparkdl_runner.data.errors import StateError

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cache_dir")]


def read(converter: SparkDatasetConverter, **arguments) -> dict[str, torch.Tensor]:
    """All rows in order, as one batch."""
    arguments = {"batch_size": max(len(converter), 1), "shuffle": False, **arguments}
    with converter.make_torch_dataloader(num_epochs=1, tail="uneven", **arguments) as loader:
        batches = list(loader)
    assert len(batches) == 1
    return batches[0]


def numbers(spark, rows=20, partitions=2):
    return spark.range(0, rows, 1, partitions).select(
        F.col("id"), (F.col("id") / 2).alias("half"), F.array(*[F.col("id") * 1.5] * 3).alias("f")
    )


def jobs_of(spark, action) -> int:
    group = f"count-{id(action)}"
    spark.sparkContext.setJobGroup(group, "counting jobs")
    try:
        action()
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    # Spark counts its jobs in a thread of its own.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(300_000)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_petastorms_names_and_results(spark, cache_dir):
    converter = make_spark_converter(numbers(spark))
    assert len(converter) == converter.dataset_size == 20
    assert converter.cache_dir_url.startswith(f"file://{cache_dir}/")
    assert len(converter.file_urls) == 2
    for url in converter.file_urls:
        assert url.startswith(converter.cache_dir_url + "/part-")
        assert pq.read_metadata(url.removeprefix("file://")).num_rows == 10
    batch = read(converter)
    assert batch["id"].tolist() == list(range(20))
    assert batch["half"].dtype == batch["f"].dtype == torch.float32
    np.testing.assert_allclose(batch["f"], np.outer(np.arange(20), [1.5] * 3))


def test_the_manifest_knows_the_content_of_every_file(spark):
    manifest, _, directory = make_spark_converter(numbers(spark)).open()
    for file in manifest.files:
        content = Path(f"{directory}/{file.path}").read_bytes()
        assert file.crc32 == zlib.crc32(content)


def test_the_whole_conversion_is_one_job(spark):
    df = numbers(spark)
    assert jobs_of(spark, lambda: make_spark_converter(df)) == 1


def test_an_equal_plan_with_equal_settings_is_converted_once(spark):
    first = make_spark_converter(numbers(spark))
    assert jobs_of(spark, lambda: make_spark_converter(numbers(spark))) == 0
    assert make_spark_converter(numbers(spark)).cache_dir_url == first.cache_dir_url
    others = [
        make_spark_converter(numbers(spark), dtype=None),
        make_spark_converter(numbers(spark), compression_codec="snappy"),
        make_spark_converter(numbers(spark), parquet_row_group_size_bytes=1 << 20),
        make_spark_converter(numbers(spark, rows=21)),
    ]
    assert len({converter.cache_dir_url for converter in [first, *others]}) == 5


def test_another_column_name_is_another_conversion(spark):
    # Spark's own comparison of plans does not look at names.
    first = make_spark_converter(spark.range(5).select(F.col("id").alias("a")))
    second = make_spark_converter(spark.range(5).select(F.col("id").alias("b")))
    assert first.cache_dir_url != second.cache_dir_url
    assert list(read(second)) == ["b"]


def test_a_table_that_was_written_again_is_converted_again(spark, tmp_path):
    table = f"file://{tmp_path}/table"
    spark.range(5).write.parquet(table)
    first = make_spark_converter(spark.read.parquet(table))
    assert make_spark_converter(spark.read.parquet(table)).cache_dir_url == first.cache_dir_url
    spark.range(7).write.mode("overwrite").parquet(table)
    assert len(make_spark_converter(spark.read.parquet(table))) == 7


def test_a_file_that_was_written_again_under_its_name_is_converted_again(spark, tmp_path, caplog):
    def rows(df) -> list[int]:
        converter = make_spark_converter(df)
        assert make_spark_converter(df).cache_dir_url == converter.cache_dir_url
        kept.append(converter)
        return sorted(read(converter)["x"].tolist())

    def table():
        df = spark.read.csv(f"file://{file}", header=True, schema="x int")
        df.createOrReplaceTempView("written_again")
        return df

    file = tmp_path / "a table.csv"
    below = "select id as x from range(10) where id < (select max(x) from written_again)"
    kept: list[SparkDatasetConverter] = []  # Or the earlier files would be deleted.
    for second, content in enumerate(("x\n1\n2\n3\n", "x\n4\n5\n6\n")):
        file.write_text(content)
        os.utime(file, (second, second))
        df = table()
        assert rows(df) == [int(line) for line in content.split()[1:]]
        assert rows(spark.sql(below)) == list(range(max(rows(df))))
    file.write_text("x\n7\n8\n9\n")
    with caplog.at_level(logging.WARNING):
        assert sorted(read(make_spark_converter(df))["x"].tolist()) == [7, 8, 9]
    assert "a table.csv was written again after Spark listed it" in caplog.text
    file.unlink()
    assert len(make_spark_converter(df)) == 3, "what is gone has not changed"


@pytest.mark.parametrize("source", ["JDBC", "RDD", "clock"])
def test_what_nobody_can_compare_is_converted_each_time(spark, tmp_path, caplog, source):
    if source == "JDBC":
        spark._jvm.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")
        driver = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
        database = "jdbc:derby:memory:written_again;create=true"
        spark.range(3).write.jdbc(database, "t", mode="overwrite", properties=driver)
        df = spark.read.jdbc(database, "t", properties=driver)
    elif source == "RDD":
        (tmp_path / "lines").write_text("3\n")
        lines = spark.sparkContext.textFile(f"file://{tmp_path}/lines")
        df = lines.map(lambda line: (int(line),)).toDF("x int")
    else:
        df = spark.range(3).where("current_date() > date'2000-01-01'")
    first = make_spark_converter(df)
    with caplog.at_level(logging.WARNING):
        assert make_spark_converter(df).cache_dir_url != first.cache_dir_url
    assert "nobody can tell whether its rows have changed" in caplog.text


def test_a_deleted_conversion_is_made_again(spark):
    first = make_spark_converter(numbers(spark))
    copy = pickle.loads(pickle.dumps(first))
    copy.delete()  # A copy in a rank must not take the files away from the others.
    assert len(read(copy)["id"]) == 20
    first.delete()
    with (
        pytest.raises(NoManifestError, match="is gone: it was deleted"),
        copy.make_torch_dataloader(),
    ):
        pass
    again = make_spark_converter(numbers(spark))
    assert again.cache_dir_url != first.cache_dir_url
    assert len(read(again)["id"]) == 20


def test_a_training_resumes_on_rows_that_were_converted_again(spark):
    def table(pick: str):
        # Uncompressed, only the content tells one order of these rows from another.
        df = spark.range(0, 40, 1, 2).selectExpr(pick, f"cast({pick} as string) as t")
        return make_spark_converter(df.toDF("a", "t"))

    def loader(converter):
        return converter.make_torch_dataloader(batch_size=4, num_epochs=1, columns=["a"])

    first = table("id % 20")
    with loader(first) as whole:
        rows = [batch["a"].tolist() for batch in whole]
    with loader(first) as begun:
        taken = iter(begun)
        done = [next(taken)["a"].tolist() for _ in range(3)]
        taken.close()
        state = begun.state_dict()
    first.delete()
    again = table("id % 20")
    assert again.file_urls != first.file_urls
    with loader(again) as resumed:
        resumed.load_state_dict(state)
        assert done + [batch["a"].tolist() for batch in resumed] == rows
    with loader(table("19 - id % 20")) as other, pytest.raises(StateError, match="another order"):
        other.load_state_dict(state)


def test_with_deletes_at_the_end(spark, cache_dir):
    with make_spark_converter(numbers(spark)) as converter:
        assert len(read(converter)["id"]) == 20
        with make_spark_converter(numbers(spark)) as other:  # As another cell or thread does.
            assert other.cache_dir_url == converter.cache_dir_url
        assert len(read(converter)["id"]) == 20
    made_by_process = list(cache_dir.iterdir())
    left = {path.name for path in made_by_process[0].iterdir()}
    assert left == {MARKER_NAME, LEASES_FOLDER}, "nothing but what says that this process lives"


def test_a_process_without_spark_reads_it(spark, tmp_path):
    converter = make_spark_converter(numbers(spark))
    (tmp_path / "converter.pickle").write_bytes(pickle.dumps(converter))
    code = """
import json, pickle, sys
converter = pickle.load(open(sys.argv[1], "rb"))
with converter.make_torch_dataloader(batch_size=10, num_epochs=1) as loader:
    ids = [i for batch in loader for i in batch["id"].tolist()]
assert "pyspark" not in sys.modules and "petastorm" not in sys.modules
print(json.dumps(sorted(ids)))
"""
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "converter.pickle")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(process.stdout) == list(range(20))


@pytest.mark.parametrize("dtype", ["float32", "float64", None])
def test_every_type(spark, dtype):
    stamp = datetime.datetime(2024, 2, 29, 12, 30, 15, 250000)
    schema = t.StructType(
        [
            t.StructField("byte", t.ByteType()),
            t.StructField("short", t.ShortType()),
            t.StructField("int", t.IntegerType()),
            t.StructField("long", t.LongType()),
            t.StructField("float", t.FloatType()),
            t.StructField("double", t.DoubleType()),
            t.StructField("bool", t.BooleanType()),
            t.StructField("date", t.DateType()),
            t.StructField("stamp", t.TimestampType()),
            t.StructField("decimal", t.DecimalType(10, 2)),
            t.StructField("doubles", t.ArrayType(t.DoubleType())),
            t.StructField("ints", t.ArrayType(t.IntegerType(), containsNull=False)),
            t.StructField("grid", t.ArrayType(t.ArrayType(t.DoubleType()))),
            t.StructField("text", t.StringType()),
            t.StructField("raw", t.BinaryType()),
        ]
    )
    rows = [
        (
            i,
            -i,
            i * 7,
            i * 10**10,
            i + 0.5,
            i + 0.1,
            i % 2 == 0,
            datetime.date(1969, 12, 30) + datetime.timedelta(days=i),
            stamp + datetime.timedelta(microseconds=i),
            decimal.Decimal(i) / 4,
            [i + 0.1, i + 0.2],
            [i, i + 1, i + 2],
            [[i + 0.1, 1.0, 2.0], [3.0, 4.0, 5.0]],
            f"row {i}",
            bytes([i, 0, 255]),
        )
        for i in range(6)
    ]
    batch = read(
        make_spark_converter(spark.createDataFrame(rows, schema), dtype=dtype), decimals="float64"
    )
    single = torch.float64 if dtype == "float64" else torch.float32
    double = torch.float32 if dtype == "float32" else torch.float64
    types = {
        "byte": torch.int8,
        "short": torch.int16,
        "int": torch.int32,
        "long": torch.int64,
        "float": single,
        "double": double,
        "bool": torch.bool,
        "doubles": double,
        "ints": torch.int32,
        "grid": double,
    }
    assert {name: batch[name].dtype for name in types} == types
    assert batch["grid"].shape == (6, 2, 3)
    precision = np.float32 if dtype == "float32" else np.float64
    for index, name in enumerate(schema.names):
        want = [row[index] for row in rows]
        if name in ("byte", "short", "int", "long", "bool", "float", "text", "raw"):
            got = batch[name]
            assert (got.tolist() if torch.is_tensor(got) else list(got)) == want, name
        elif name in ("double", "doubles", "grid", "ints"):
            np.testing.assert_array_equal(batch[name].numpy(), np.array(want, dtype=precision))
    assert batch["date"].tolist() == [-2, -1, 0, 1, 2, 3]  # Days since 1970.
    assert (batch["stamp"] - batch["stamp"][0]).tolist() == list(range(6))
    assert batch["decimal"].tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25]


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "float32"), (None, "float64")])
def test_vectors_dense_and_sparse(spark, dtype, kind):
    rows = [(Vectors.dense([1.0, 2.0, 3.1]),), (Vectors.sparse(3, {1: 5.5}),)]
    batch = read(make_spark_converter(spark.createDataFrame(rows, ["v"]).coalesce(1), dtype=dtype))
    expected = np.array([[1, 2, 3.1], [0, 5.5, 0]], dtype=kind)
    np.testing.assert_array_equal(batch["v"].numpy(), expected)


def test_null_vectors_are_counted_and_not_a_crash(spark):
    from pyspark.ml.linalg import VectorUDT

    schema = t.StructType([t.StructField("v", VectorUDT())])
    df = spark.createDataFrame([(Vectors.dense([1.0]),), (None,)], schema)
    with pytest.raises(DatasetError, match=r"nulls in column 'v' \(1\)"):
        make_spark_converter(df)


def test_images_of_sparks_schema(spark):
    from pyspark.ml.image import ImageSchema

    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    rows = [(ImageSchema.toImage(pixels, origin=f"image {i}"),) for i in range(3)]
    schema = t.StructType([t.StructField("image", ImageSchema.columnSchema)])
    converter = make_spark_converter(spark.createDataFrame(rows, schema))
    column = converter.open()[0].column("image")
    assert (column.hint, column.list_lengths, column.null_count) == ("image", (2, 4, 3), 0)
    assert read(converter)["image"].shape == (3, 2, 4, 3)


NULLS = [
    ("int", [1, None, 3, None], 2),
    ("timestamp", [None, *[datetime.datetime(2024, 1, 1)] * 3], 1),
    ("string", ["x", None, "x", "x"], 1),
    ("array<float>", [[1.0, 2.0], [1.0, None], None, [3.0, 4.0]], 2),
    ("array<int>", [[1, 2], [-(2**31) + 1, None], [-(2**31) + 1, 0], [1, 2]], 1),
    ("array<bigint>", [[1, 2], [None, 2], [1, 2], [1, 2]], 1),
    ("array<string>", [["x"], [None], ["x"], ["x"]], 1),
    ("array<boolean>", [[True], [None], [True], [True]], 1),
    ("array<array<double>>", [[[1.0], [2.0]], [[1.0], [None]], [[1.0], None], [[1.0]] * 2], 2),
]


def test_nulls_are_an_error_that_names_columns_and_counts(spark, cache_dir):
    schema = ", ".join(f"c{place} {kind}" for place, (kind, *_) in enumerate(NULLS))
    rows = list(zip(*(values for _, values, _ in NULLS), strict=True))
    df = spark.createDataFrame(rows, schema).withColumn("good", F.lit(1))
    listed = ", ".join(rf"'c{place}' \({count}\)" for place, (*_, count) in enumerate(NULLS))
    with pytest.raises(DatasetError, match=rf"nulls in column {listed}, the first in part-"):
        make_spark_converter(df)
    assert not list(cache_dir.rglob("*.parquet")), "a refused conversion leaves no files"
    manifest = make_spark_converter(df, allow_nulls=True).open()[0]
    counts = [*(count for *_, count in NULLS), 0]
    assert [column.null_count for column in manifest.columns] == counts


def test_the_driver_reads_no_values_to_count_nulls(spark, monkeypatch):
    def fail(*args):
        raise AssertionError("the driver reads a column")

    monkeypatch.setattr(observe, "_observe_file", fail)
    # Of such values, Parquet's footers say nothing.
    df = spark.range(0, 4, 1, 1).selectExpr(
        "repeat(cast(id as string), 5000) as text",
        "if(id = 2, null, encode(repeat('x', 5000), 'utf-8')) as raw",
        "timestamp_seconds(nullif(id, 1)) as at",
        "array(id, 1) as pair",
    )
    manifest = make_spark_converter(df, allow_nulls=True).open()[0]
    assert [column.null_count for column in manifest.columns] == [0, 1, 1, 0]


def test_no_null_is_seen_where_there_is_none(spark):
    # Including the very values that the search for nulls looks for.
    schema = "a array<int>, b array<float>, c array<string>, d array<array<bigint>>, e array<int>"
    limit = -(2**31) + 1
    row = ([limit, 0], [1.2345e-39, float("nan")], ["\x00\x01\x02"], [[-(2**63) + 1]], [limit])
    manifest = make_spark_converter(spark.createDataFrame([row] * 3, schema)).open()[0]
    assert [column.null_count for column in manifest.columns] == [0] * 5


def test_ragged_rows_are_found_with_file_and_column(spark, caplog):
    rows = [([1.0, 2.0],)] * 5 + [([1.0, 2.0, 3.0],)]
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, 3), "f array<float>")
    with caplog.at_level(logging.WARNING, logger="sparkdl_runner"):
        converter = make_spark_converter(df)
    (message,) = [record.getMessage() for record in caplog.records if "'f'" in record.getMessage()]
    assert "differ in length" in message
    assert "part-00002-" in message
    assert "2 to 3" in message
    with pytest.raises(DatasetError, match="'f'"), converter.make_torch_dataloader():
        pass
    assert read(converter, pad={"f": 3})["f"].shape == (6, 3)


@pytest.mark.parametrize("codec", [None, "uncompressed", "snappy", "gzip", "lz4", "zstd"])
def test_every_codec_can_be_read(spark, codec):
    converter = make_spark_converter(numbers(spark), compression_codec=codec)
    assert read(converter)["id"].tolist() == list(range(20))


def test_small_row_groups(spark):
    df = spark.range(0, 50_000, 1, 1).select(F.rand(seed=1).alias("x"))
    converter = make_spark_converter(df, parquet_row_group_size_bytes=64 * 1024, dtype=None)
    assert len(converter.open()[0].row_groups) > 3


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_any_rows(spark, rows):
    df = spark.range(0, rows, 1, 3).select("id", F.array(F.lit(1.0)).alias("f"))
    converter = make_spark_converter(df)
    assert len(converter) == rows
    with converter.make_torch_dataloader(batch_size=1, num_epochs=1) as loader:
        assert len(list(loader)) == rows


def test_a_path_in_place_of_a_dataframe(spark, tmp_path):
    numbers(spark).write.parquet(f"file://{tmp_path}/plain")
    with make_spark_converter(f"file://{tmp_path}/plain") as converter:
        assert len(converter) == 20
        assert read(pickle.loads(pickle.dumps(converter)))["id"].tolist() == list(range(20))
    assert len(list((tmp_path / "plain").glob("*.parquet"))) == 2, "it was not ours to delete"
    assert not (tmp_path / "plain" / "_manifest.json").exists()


def test_the_path_of_a_conversion(spark):
    converter = make_spark_converter(numbers(spark))
    again = make_spark_converter(converter.cache_dir_url)
    assert again.file_urls == converter.file_urls
    assert read(again)["id"].tolist() == list(range(20))


def test_a_path_that_is_no_data_set(spark, tmp_path):
    with pytest.raises(NoManifestError, match="There is no directory"):
        make_spark_converter(f"file://{tmp_path}/nothing")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(DatasetError, match="Delta table"):
        make_spark_converter(f"file://{tmp_path}/delta")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="no Parquet file"):
        make_spark_converter(f"file://{tmp_path}/empty")
    spark.range(4).withColumn("key", F.lit(1)).write.partitionBy("key").parquet(
        f"file://{tmp_path}/hive"
    )
    with pytest.raises(DatasetError, match="partitioned by the names"):
        make_spark_converter(f"file://{tmp_path}/hive")


def test_bad_arguments_before_any_job(spark):
    df = numbers(spark)
    bad = [
        (lambda: make_spark_converter(df, compression_codec="brotli"), "compression_codec must be"),
        (lambda: make_spark_converter(df, dtype="float16"), "dtype 'float16' is not supported"),
        (lambda: make_spark_converter(df, parquet_row_group_size_bytes=0), "expected 1 or more"),
        (lambda: make_spark_converter(df.select()), "has no columns"),
        (lambda: make_spark_converter(df.select("id", "id")), "more than one column called 'id'"),
        (
            lambda: make_spark_converter(df.select("*", F.lit(1).alias("HALF"))),
            "differ in case alone",
        ),
    ]
    for call, message in bad:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(RuntimeError, match="compression_codec"):  # As in petastorm.
        make_spark_converter(df, compression_codec="brotli")
    with pytest.raises(TypeError, match=r"column 'm' \(map<string,int>\), 's' \(struct<x:int>\)"):
        make_spark_converter(
            spark.sql("select map('a', 1) as m, named_struct('x', 1) as s, 1 as good")
        )
    with pytest.raises(TypeError, match="must be a Spark DataFrame"):
        make_spark_converter([1, 2])


def test_bad_loader_arguments(spark):
    converter = make_spark_converter(numbers(spark))
    with pytest.raises(TypeError, match="argument 'shufle'; did you mean 'shuffle'"):
        converter.make_torch_dataloader(shufle=True)
    with (
        pytest.raises(ValueError, match="Did you mean 'half'"),
        converter.make_torch_dataloader(columns=["haf"]),
    ):
        pass
    with (
        pytest.raises(ValueError, match="did you mean 'half'"),
        converter.make_torch_dataloader(schema_fields=["haf"]),
    ):
        pass
    with pytest.raises(ValueError, match="engine must be"):
        converter.make_torch_dataloader(engine="spark")
    for size in (0, -1):
        with pytest.raises(ValueError, match=r"batch_size"):
            converter.make_torch_dataloader(batch_size=size).__enter__()


def test_petastorms_reader_arguments_still_work(spark):
    converter = make_spark_converter(numbers(spark))
    with converter.make_torch_dataloader(
        batch_size=5,
        num_epochs=1,
        workers_count=2,
        shuffling_queue_capacity=0,
        shuffle_row_groups=False,
        schema_fields=["i.*"],
        reader_pool_type="thread",
        results_queue_size=10,
        cur_shard=0,
        shard_count=1,
    ) as loader:
        batches = list(loader)
    assert [batch["id"].tolist() for batch in batches] == [
        list(range(start, start + 5)) for start in range(0, 20, 5)
    ]
    assert set(batches[0]) == {"id"}


def test_odd_column_names(spark):
    df = spark.range(3).select(
        F.col("id").alias("a b"), F.array(F.col("id")).alias("x `y` z"), F.col("id").alias("ü")
    )
    assert set(read(make_spark_converter(df))) == {"a b", "x `y` z", "ü"}
    with pytest.raises(ValueError, match="rename it, to 'a_b' say"):
        make_spark_converter(spark.range(3).select(F.col("id").alias("a.b")))
