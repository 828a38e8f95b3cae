"""The convert job: a table or files become a conversion that trainings read."""

from __future__ import annotations

import time
from typing import Any, Literal

import pydantic

from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs.parsing import Settings
from sparkdl_runner.jobs.parsing.command import Command
from sparkdl_runner.jobs.spark import storage
from sparkdl_runner.jobs.spark.session import spark_session
from sparkdl_runner.jobs.spark.source import Source


class ConvertSettings(Settings):
    """The settings of the convert job."""

    source: Source = pydantic.Field(description="a table, or the path of files that Spark reads")
    output: str = pydantic.Field(description="the conversion's folder, which all hosts see")
    mode: Literal["error", "overwrite"] = pydantic.Field(
        "error", description="what to do where there is a conversion already"
    )
    dtype: Literal["float32", "float64", "keep"] = pydantic.Field(
        "float32", description="what floating point numbers become"
    )
    row_group_mb: int = pydantic.Field(
        32, ge=1, le=1024, description="the size of a row group in memory; smaller ones mix better"
    )
    compression: Literal["uncompressed", "snappy", "gzip", "lz4", "zstd"] = pydantic.Field(
        "uncompressed", description="of the files; uncompressed is fastest to read"
    )
    allow_nulls: bool = pydantic.Field(
        False, description="whether nulls are fine, for loaders to fill or mask"
    )


def run(settings: ConvertSettings) -> dict[str, Any]:
    """Converts."""
    from sparkdl_runner.data import DatasetError, write_conversion
    from sparkdl_runner.data.convert.permanent import OccupiedError

    with spark_session("convert", slots=0) as spark:
        url = storage.qualified(settings.output, spark)
        storage.check_reachable(url)
        if settings.mode == "error" and storage.held_by(spark, url):
            raise ConfigError(
                f"there are files in {settings.output} already: choose another output, or "
                "--mode overwrite."
            )
        frame = settings.source.read(spark)
        storage.check_writable(spark, url)
        started = time.perf_counter()
        try:
            converter = write_conversion(
                frame,
                url,
                parquet_row_group_size_bytes=settings.row_group_mb << 20,
                compression_codec=settings.compression,
                dtype=None if settings.dtype == "keep" else settings.dtype,
                allow_nulls=settings.allow_nulls,
                overwrite=settings.mode == "overwrite",
            )
        except (OccupiedError, TypeError) as error:  # Or a column has no place in a tensor.
            raise ConfigError(str(error)) from None
        except DatasetError as error:
            raise RunnerError(str(error)) from None
        manifest, _, _ = converter.open()
        seconds = time.perf_counter() - started
        files, columns = len(manifest.files), [column.name for column in manifest.columns]
        print(
            f"{len(converter):,} rows in {files} file{'s' if files != 1 else ''} at "
            f"{converter.cache_dir_url}, {seconds:.1f} s. Columns: {', '.join(columns)}."
        )
        counts = {"rows": len(converter), "files": files, "seconds": round(seconds, 1)}
        return {"url": converter.cache_dir_url, **counts, "columns": columns}


JOB = Command(
    name="convert",
    summary="Convert a table or files into a folder that every rank reads its shard of.",
    example="""
        for example:
          sparkdl-runner convert --source main.shop.orders --output /Volumes/main/shop/orders
          sparkdl-runner convert --source /data/orders.csv --output /data/orders --mode overwrite
          sparkdl-runner convert --config convert.yaml

        convert.yaml:
          source:
            path: s3a://bucket/orders
            format: csv
            options: {sep: ";"}
            columns: [amount, weekday, label]
            where: amount > 0
          output: s3a://bucket/conversions/orders
    """,
    settings=ConvertSettings,
    run=run,
)
