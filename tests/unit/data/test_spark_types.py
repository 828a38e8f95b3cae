"""Which columns of a DataFrame have a place in a tensor; no JVM is needed to tell."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.sql import types as t

from sparkdl_runner.data.convert.plan import IMAGE_FIELDS, check_columns, is_vector


class PointUDT(t.UserDefinedType):
    @classmethod
    def module(cls):
        return "shop.types"

    @classmethod
    def sqlType(cls):  # noqa: N802  # Spark's name
        return t.DoubleType()


IMAGE = t.StructType([t.StructField(name, t.IntegerType()) for name in IMAGE_FIELDS])
POINT = t.StructType([t.StructField("x", t.DoubleType())])
MAP = t.MapType(t.StringType(), t.LongType())


def schema(*types: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(f"c{at}", one) for at, one in enumerate(types)])


def test_numbers_texts_times_arrays_vectors_and_images_are_taken():
    nested = t.ArrayType(t.ArrayType(t.DecimalType(10, 2)))
    types = (t.LongType(), t.StringType(), t.TimestampNTZType(), nested, VectorUDT(), IMAGE)
    check_columns(schema(*types), by_case=False)


@pytest.mark.parametrize(
    "bad",
    [
        *(MAP, POINT, PointUDT(), MatrixUDT()),
        *(t.ArrayType(VectorUDT()), t.ArrayType(IMAGE), t.ArrayType(MAP)),
    ],
)
def test_what_has_no_place_in_a_tensor_is_named(bad):
    with pytest.raises(TypeError, match=r"Cannot convert column 'c1' \("):
        check_columns(schema(t.LongType(), bad), by_case=False)


def test_a_vector_is_sparks_own():
    assert is_vector(VectorUDT())
    assert not is_vector(PointUDT())
    assert not is_vector(MatrixUDT())
    assert not is_vector(t.ArrayType(t.DoubleType()))


def test_columns_need_names_of_their_own():
    with pytest.raises(ValueError, match="no columns"):
        check_columns(t.StructType([]), by_case=True)
    with pytest.raises(ValueError, match="more than one column called 'c0'"):
        check_columns(t.StructType([*schema(t.LongType()), *schema(t.LongType())]), by_case=True)
    with pytest.raises(ValueError, match=r"'a\.b' has a dot in its name.* 'a_b' say"):
        check_columns(t.StructType([t.StructField("a.b", t.LongType())]), by_case=True)
    alike = t.StructType([t.StructField(name, t.LongType()) for name in ("x", "id", "Id")])
    check_columns(alike, by_case=True)
    with pytest.raises(ValueError, match=r"'id' and 'Id' differ in case alone.*caseSensitive=true"):
        check_columns(alike, by_case=False)
