"""What a conversion counts while Spark writes it, and which settings of the session it takes."""

from __future__ import annotations

import datetime
import logging

import pyarrow.parquet as pq
import pytest
from pyspark.ml.linalg import Vectors

from sparkdl_runner.data import DatasetError, make_spark_converter, write_conversion
from sparkdl_runner.data.convert import measures
from sparkdl_runner.data.convert.spark_settings import OF_SESSION
from sparkdl_runner.data.dataset.observe import observe_files

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cache_dir")]

DAY = datetime.date(1, 1, 1)
TIME = datetime.datetime(1, 1, 1, 0, 0, 0, 123456)


@pytest.fixture
def settings(spark):
    """Sets settings of the session for the length of one test."""
    names: list[str] = []

    def set_them(**values: str) -> None:
        for name, value in values.items():
            names.append(name)
            spark.conf.set(name, value)

    yield set_them
    for name in names:
        spark.conf.unset(name)


def test_decoded_sizes_are_those_of_the_files(spark):
    rows = [
        (
            *(i, "é" * i, bytes(i * 2), [b"ab"] * i, ["x" * i] * (i % 3), [1.0] * i, [[1] * i] * i),
            *([["ab"], ["c" * i]] * i, [[0.5] * 3] * 2, (f"o{i}", 1, 2, 3, 16, bytes(i))),
        )
        for i in range(6)
    ]
    rows.append((9, *(None,) * 9))
    lists = ([None, b"abc"], [None, "ab"], [None], [None, [None]], [None, ["ab", None]])
    rows.append((9, "", b"", *lists, None, None))
    image = "struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"
    df = spark.createDataFrame(
        rows,
        "i long, s string, b binary, bs array<binary>, ss array<string>, f array<double>, "
        f"n array<array<short>>, ns array<array<string>>, g array<array<double>>, image {image}",
    )
    manifest, filesystem, directory = make_spark_converter(df, allow_nulls=True).open()
    files = [file.path for file in manifest.files]
    seen = observe_files(filesystem, directory, files, manifest.schema.names, 1)
    most = {name: observation.most_row_bytes for name, observation in seen.items()}
    found = {column.name: column for column in manifest.columns}
    assert most.pop("i") == 0
    assert {name: found[name].most_row_bytes for name in most} == most
    counted = ("s", "b", "bs", "ss", "ns", "image")  # Footers count numbers, and empty lists as 1.
    assert {name: found[name].decoded_bytes for name in counted} == {
        name: seen[name].decoded_bytes for name in counted
    }


def test_settings_of_the_session_do_not_change_the_files(spark, settings, tmp_path):
    hostile = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.ansi.enabled": "true",
        "parquet.page.size": "1000",
    }
    assert set(OF_SESSION) < set(hostile)
    settings(**hostile)
    df = spark.range(2_000).selectExpr(
        "id",
        "date'0001-01-01' as day",
        "timestamp_ntz'0001-01-01 00:00:00.123456' as time",
        "timestamp'2000-01-01 00:00:00.123456' as instant",
        "array(array(id, 2L, 3L, 4L, 5L, 6L, 7L, 8L)) as grid",
    )
    for converter in (make_spark_converter(df), write_conversion(df, f"file://{tmp_path}/kept")):
        path = converter.file_urls[0].removeprefix("file://")
        table = pq.read_table(path, coerce_int96_timestamp_unit="us")
        assert table["day"][0].as_py() == DAY
        assert table["time"][0].as_py() == TIME
        assert table["instant"][0].as_py().microsecond == 123456
        assert table["grid"][1].as_py() == [[1, 2, 3, 4, 5, 6, 7, 8]]
        metadata = pq.read_metadata(path)
        assert not [key for key in metadata.metadata if b"legacy" in key]
        chunk = metadata.row_group(0).column(4)
        header_bytes = 50
        pages = chunk.total_uncompressed_size / 1000
        assert header_bytes * pages > 100, "there would be many small pages"
        with converter.make_torch_dataloader(batch_size=1, num_epochs=1, shuffle=False) as loader:
            assert next(iter(loader))["grid"].shape == (1, 1, 8)
    assert {name: spark.conf.get(name) for name in hostile} == hostile


def test_days_that_spark_wrote_by_the_julian_calendar_are_refused(spark, settings, tmp_path):
    settings(**{"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"})
    url = f"file://{tmp_path}/table"
    spark.range(2).selectExpr("id", "array(date'0001-01-01') as days").write.parquet(url)
    with pytest.raises(DatasetError, match="column 'days' holds days before 1582-10-15"):
        make_spark_converter(url)
    assert make_spark_converter(spark.read.parquet(url)).open()[0].rows == 2


def test_doubles_beyond_float32_are_told_of(spark, caplog):
    vectors = [(Vectors.dense([1.0, -1e300]),)]
    rows = spark.createDataFrame(vectors, ["vector"]).selectExpr(
        "vector",
        "1e39D as `high er`",
        "-1e39D as low",
        "1e38D as fits",
        "cast('nan' as double) as nan",
        "array(1D, null, 1e300D) as list",
        "array(array(1D), array(-1e300D)) as grid",
        "cast(null as array<double>) as none",
        "1e39D as single",
    )
    rows = rows.withColumn("single", rows["single"].cast("float"))
    with caplog.at_level(logging.WARNING):
        make_spark_converter(rows, allow_nulls=True)
    assert "column 'vector' (1), 'high er' (1), 'low' (1), 'list' (1), 'grid' (1), now" in (
        caplog.text
    )
    caplog.clear()
    make_spark_converter(rows, dtype=None, allow_nulls=True)
    many = spark.range(0, 3, 1, 1).selectExpr(
        *[f"{1e39 if i == 20 else i}D as x{i}" for i in range(33)],
        "double(element_at(array('nan', 'inf', '1'), int(id + 1))) as both",
        "array(array(double(element_at(array('nan', 'inf', '1'), int(id + 1))))) as lists",
    )
    with caplog.at_level(logging.WARNING):
        make_spark_converter(many)
    assert caplog.text.count("infinite") == 1
    assert "column 'x20' (3), 'both' (1), 'lists' (1), now" in caplog.text


def test_what_cannot_be_converted_is_said_before_anything_is_started(spark, settings, cache_dir):
    with pytest.raises(TypeError, match=r"a streaming DataFrame, .*foreachBatch"):
        make_spark_converter(spark.readStream.format("rate").load())
    factory = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
    settings(
        **{"parquet.crypto.factory.class": factory, "parquet.encryption.uniform.key": "secret"}
    )
    with pytest.raises(ValueError, match=r"parquet\.encryption\.uniform\.key is set") as caught:
        make_spark_converter(spark.range(3))
    assert "secret" not in str(caught.value)
    assert not cache_dir.exists()


@pytest.mark.parametrize("rows", [[], [([], [])], [(None, None)]])
def test_lists_without_values_are_converted(spark, rows):
    df = spark.createDataFrame(rows, "x array<double>, grid array<array<int>>")
    converter = make_spark_converter(df, allow_nulls=True)
    assert len(converter) == len(rows)
    assert converter.open()[0].column("grid").list_lengths == (0, 0)


def test_a_digest_that_is_not_compiled_is_the_same(spark, monkeypatch):
    df = spark.range(0, 20, 1, 2).selectExpr(
        "id", "if(id % 3 = 0, null, id / 7) as `a b`", "cast(id as string) as s", "array(id) as l"
    )

    def digest(codec: str | None) -> str | None:
        converter = make_spark_converter(df, compression_codec=codec, allow_nulls=True)
        return converter.open()[0].content_digest

    compiled = digest(None)
    monkeypatch.setattr(measures, "_MOST_COMPILED", 3)
    assert digest("snappy") == compiled is not None
