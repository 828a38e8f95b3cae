"""Plans a conversion: which columns it has, of which types, and how their files are written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.base.whole_number import require_whole, whole_number
from sparkdl_runner.data.convert.connect_plan import check_plan
from sparkdl_runner.data.convert.spark_settings import refuse_encryption
from sparkdl_runner.data.dataset.place import setting

_PLACE = "__sparkdl_runner_place"
"""The column that holds each row's random number while rows are shuffled."""

IMAGE_FIELDS = ("origin", "height", "width", "nChannels", "mode", "data")
"""The fields of Spark's ImageSchema, in its order."""

CODECS = ("uncompressed", "snappy", "gzip", "lz4", "zstd")
"""Codecs that Spark writes and pyarrow reads. Two of petastorm's list are not in Parquet."""

_DTYPES = (None, "float32", "float64")
_SCALARS = (
    t.NumericType,
    t.BooleanType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
    t.StringType,
    t.BinaryType,
)


class CodecError(ValueError, RuntimeError):
    """An unknown compression codec: a ``RuntimeError`` in petastorm, a ``ValueError`` elsewhere."""


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """How to write the Parquet files."""

    row_group_size_bytes: int
    compression_codec: str
    dtype: str | None
    allow_nulls: bool
    shuffle_seed: int | None = None
    """The seed by which Spark shuffles the rows; None keeps their order."""


@dataclass(frozen=True, kw_only=True)
class ConversionPlan:
    """The rows to write, and how to write them."""

    df: DataFrame
    """The DataFrame as it is written: no ML vectors, and numbers of the wanted precision."""
    settings: WriteSettings
    narrowed: tuple[str, ...] = ()
    """Its columns whose doubles become float32."""


def plan_conversion(
    df: DataFrame,
    row_group_size_bytes: int,
    codec: str | None,
    dtype: str | None,
    allow_nulls: bool,
    shuffle_seed: int | None = None,
) -> ConversionPlan:
    """Checks the arguments of a conversion.

    Raises:
        TypeError: A column has no place in a tensor, or an argument is of another type.
        ValueError: A setting is out of range, or a column's name cannot be used.
        ConversionError: A server of Spark Connect cannot plan it.
    """
    if hasattr(df, "sparkSession") and not hasattr(df, "_jdf"):
        check_plan(df)
    if not hasattr(df, "sparkSession") or not hasattr(df, "schema"):
        raise TypeError(
            "df must be a Spark DataFrame, a directory's URL or a petastorm converter, not "
            f"{type(df).__module__}.{type(df).__qualname__}. Of what is in this process's memory, "
            "spark.createDataFrame(…) makes a Spark DataFrame."
        )
    if df.isStreaming:
        raise TypeError(
            "df is a streaming DataFrame, whose rows never end. Write it to a table and convert "
            "that, as spark.read.…; or convert each batch, in writeStream.foreachBatch(…)."
        )
    require_whole("parquet_row_group_size_bytes", row_group_size_bytes, most=2**31 - 1)
    codec = (codec or "uncompressed").lower()
    if codec not in CODECS:
        raise CodecError(f"compression_codec must be None or one of {CODECS}, not {codec!r}.")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported. Use None, 'float32' or 'float64'.")
    shuffle_seed = whole_number("shuffle_seed", shuffle_seed, least=-(2**63), most=2**63 - 1)
    by_case = setting(df.sparkSession, "spark.sql.caseSensitive") == "true"
    check_columns(df.schema, by_case=by_case)
    refuse_encryption(df.sparkSession)
    settings = WriteSettings(
        row_group_size_bytes=row_group_size_bytes,
        compression_codec=codec,
        dtype=dtype,
        allow_nulls=allow_nulls,
        shuffle_seed=shuffle_seed,
    )
    typed = _with_target_types(df, dtype)
    if shuffle_seed is not None:
        typed = _shuffled(typed, shuffle_seed)
    narrowed = tuple(f.name for f in df.schema.fields if _is_narrowed(f.dataType, dtype))
    return ConversionPlan(df=typed, settings=settings, narrowed=narrowed)


def is_vector(data_type: t.DataType) -> bool:
    """Whether it is the vector of ``pyspark.ml`` or of ``pyspark.mllib``."""
    if not isinstance(data_type, t.UserDefinedType):
        return False
    is_ml = data_type.module() in ("pyspark.ml.linalg", "pyspark.mllib.linalg")
    return is_ml and type(data_type).__name__ == "VectorUDT"  # A MatrixUDT is there, too.


def is_image(data_type: t.DataType) -> bool:
    """Whether it is Spark's ImageSchema."""
    return isinstance(data_type, t.StructType) and tuple(data_type.names) == IMAGE_FIELDS


def check_columns(schema: t.StructType, *, by_case: bool) -> None:
    """Checks that each column can be converted.

    Args:
        schema: The DataFrame's.
        by_case: Whether Spark tells ``id`` from ``ID``.

    Raises:
        ValueError: There are no columns, two have one name, or a name has a dot.
        TypeError: A column is of a type that has no place in a tensor.
    """
    if not schema.fields:
        raise ValueError("The DataFrame has no columns: select at least one.")
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"The DataFrame has more than one column called {repeated[0]!r}: rename one, since a "
            "batch is a dict by column name."
        )
    folded = Counter(name.lower() for name in schema.names)
    alike = [name for name in schema.names if folded[name.lower()] > 1]
    if alike and not by_case:
        raise ValueError(
            f"The columns {' and '.join(map(repr, alike[:2]))} differ in case alone, and Spark "
            "cannot tell them apart: rename one, or set spark.sql.caseSensitive=true."
        )
    dotted = [name for name in schema.names if "." in name]
    if dotted:
        raise ValueError(
            f"Column {dotted[0]!r} has a dot in its name, by which Parquet's readers mean a part "
            f"of a column: rename it, to {dotted[0].replace('.', '_')!r} say."
        )
    bad = [f for f in schema.fields if not _is_supported(f.dataType, top=True)]
    if bad:
        listed = ", ".join(f"{f.name!r} ({f.dataType.simpleString()})" for f in bad)
        raise TypeError(
            f"Cannot convert column {listed}: supported are numbers, bool, date, timestamp, "
            "string, binary, arrays of these, ML vectors, and Spark's image struct. Drop the "
            "column, or select its parts as columns of their own."
        )


def _is_supported(data_type: t.DataType, *, top: bool) -> bool:
    if isinstance(data_type, t.ArrayType):
        return _is_supported(data_type.elementType, top=False)
    if is_vector(data_type) or is_image(data_type):
        return top
    return isinstance(data_type, _SCALARS)


def _shuffled(df: DataFrame, seed: int) -> DataFrame:
    """The rows in random order, by one shuffle: the same for the same rows in the same partitions.

    A row's place follows from a random number, and not from its values: equal rows would stay
    together.
    """
    place = F.xxhash64(F.lit(seed).cast("long"), F.monotonically_increasing_id())
    numbered = df.withColumn(_PLACE, place)
    return numbered.repartition(F.col(_PLACE)).sortWithinPartitions(_PLACE).drop(_PLACE)


def _with_target_types(df: DataFrame, dtype: str | None) -> DataFrame:
    """Turns ML vectors into arrays, and floating point numbers at any depth into ``dtype``."""
    texts, columns = [], {}
    for field in df.schema.fields:
        name = quoted(field.name)
        target = target_type(field.dataType, dtype)
        if is_vector(field.dataType):
            columns[field.name] = _as_array(F.col(name), field, dtype)
        elif target == field.dataType:
            texts.append(name)
            continue
        elif isinstance(target, t.ArrayType) or field.metadata:
            cast = F.col(name).cast(target)
            columns[field.name] = cast.alias(field.name, metadata=field.metadata)
        else:
            # Text, since a Column takes several calls to the JVM, and there may be thousands.
            texts.append(f"CAST({name} AS {target.simpleString()}) AS {name}")
            continue
        texts.append(name)
    typed = df.selectExpr(*texts)
    return typed.withColumns(columns) if columns else typed


def _as_array(column: Column, field: t.StructField, dtype: str | None) -> Column:
    from pyspark.ml.functions import vector_to_array

    array = vector_to_array(column, dtype or "float64")
    # vector_to_array raises on null, and null rows should be counted and named instead.
    return F.when(column.isNotNull(), array) if field.nullable else array


def target_type(data_type: t.DataType, dtype: str | None) -> t.DataType:
    """The type of a column that is no vector, with its floating point numbers as ``dtype``."""
    if isinstance(data_type, t.ArrayType):
        return t.ArrayType(target_type(data_type.elementType, dtype), data_type.containsNull)
    if dtype == "float32" and isinstance(data_type, t.DoubleType):
        return t.FloatType()
    if dtype == "float64" and isinstance(data_type, t.FloatType):
        return t.DoubleType()
    return data_type


def _is_narrowed(data_type: t.DataType, dtype: str | None) -> bool:
    while isinstance(data_type, t.ArrayType):
        data_type = data_type.elementType
    return dtype == "float32" and (isinstance(data_type, t.DoubleType) or is_vector(data_type))


def quoted(name: str) -> str:
    """A column's name in SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"
