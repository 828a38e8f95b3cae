"""Conversions of one DataFrame, shared by all fits that read the same of it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparkdl_runner.data.convert import conversion
from sparkdl_runner.data.convert.converter import DEFAULT_ROW_GROUP_SIZE_BYTES
from sparkdl_runner.data.convert.plan import plan_conversion, quoted
from sparkdl_runner.data.convert.split import make_split_converters
from sparkdl_runner.data.dataset.place import CachePlace
from sparkdl_runner.data.errors import NullSplitError
from sparkdl_runner.training.fitting.columns import (
    NOT_WHOLE,
    is_fractional,
    no_split,
    not_whole,
    split_condition,
    whole_labels,
)
from sparkdl_runner.training.fitting.footers import extremes
from sparkdl_runner.training.fitting.network_columns import network_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.tensors.columns import Column

_SPLIT = "sparkdl_runner_validates"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The rows and columns that a fit reads: equal for fits that can share a conversion."""

    columns: tuple[str, ...]
    classes: tuple[str, ...] = ()
    """Those of the columns that are labels of classes."""
    validation: float | str | None = None
    seed: int = 0
    """The seed of the random choice of rows; 0 if ``validation`` is no share."""


@dataclass(frozen=True, kw_only=True)
class FitData:
    """The data sets of a fit."""

    train: SparkDatasetConverter
    validation: SparkDatasetConverter | None = None

    def delete(self) -> None:
        """Deletes the files."""
        for converter in (self.train, self.validation):
            if converter is not None:
                converter.delete()


def convert(df: DataFrame, selection: Selection) -> FitData:
    """Converts what a fit reads, by one Spark job.

    Raises:
        ValueError: There are no rows, or none to validate with, or a label is no class.
        Exception: What ``make_spark_converter`` raises.
    """
    validation, given = selection.validation, df
    chosen = [F.col(quoted(name)) for name in selection.columns]
    if validation is not None:
        chosen.append(split_condition(df, validation, selection.seed).alias(_SPLIT))
    df = whole_labels(df.select(*chosen), selection.classes)
    try:
        if validation is None:
            plan = plan_conversion(df, DEFAULT_ROW_GROUP_SIZE_BYTES, None, "float32", True)
            # No warning of lists: the fit has checked how it will read them.
            converter = conversion.convert(plan, CachePlace.of(df.sparkSession), warns=False)
            converter.dataframe = df
            data = FitData(train=_with_rows(converter))
            return _with_whole_labels(data, given, selection.classes)
        train, validating = make_split_converters(df, _SPLIT, allow_nulls=True)
    except NullSplitError:
        raise ValueError(no_split(given, str(validation))) from None
    if train is not None and validating is not None:
        data = FitData(train=train, validation=validating)
        return _with_whole_labels(data, given, selection.classes)
    whole = train or validating
    rows = 0 if whole is None else len(whole)
    if whole is not None:
        whole.delete()
    if not rows:
        raise ValueError(_NO_ROWS)
    missing = "train" if train is None else "validate"
    raise ValueError(
        f"validation={validation!r} leaves none of the DataFrame's {rows} rows to {missing} with: "
        + ("look at that column." if isinstance(validation, str) else "take another share.")
    )


_NO_ROWS = "The DataFrame has no rows, and a fit needs some: look at what filters it."


def _with_rows(converter: SparkDatasetConverter) -> SparkDatasetConverter:
    if not len(converter):
        converter.delete()
        raise ValueError(_NO_ROWS)
    return converter


def _with_whole_labels(data: FitData, df: DataFrame, labels: Sequence[str]) -> FitData:
    """The data, if each label that ``whole_labels`` has cast is whole, as the files' footers say.

    Raises:
        ValueError: One is not.
    """
    cast = [name for name in labels if is_fractional(df, name)]
    for converter in (data.train, data.validation):
        if converter is None or not cast:
            continue
        for name, (low, _) in extremes(converter, cast).items():
            if low == NOT_WHOLE:
                data.delete()
                raise ValueError(not_whole(df, name))
    return data


def columns_as_trained(
    schema: StructType,
    names: Sequence[str],
    reading: Mapping[str, Any],
    converter: SparkDatasetConverter,
) -> tuple[Column, ...]:
    """The columns of a DataFrame for a network that was trained with their conversion.

    Raises:
        ValueError: See ``network_columns``.
    """
    manifest = converter.open()[0]
    lengths = {name: manifest.column(name).list_lengths for name in names}
    columns = []
    for column in network_columns(schema, names, reading, lengths):
        inner = manifest.schema.field(column.name).type
        while hasattr(inner, "value_type"):
            inner = inner.value_type
        # The conversion makes float32 of Spark's doubles.
        is_float32 = column.dtype == "float64" and str(inner) == "float"
        columns.append(replace(column, dtype="float32") if is_float32 else column)
    return tuple(columns)


class Conversions:
    """Converts each selection of a DataFrame once for a known number of fits.

    Each fit runs in a ``with`` block of this object, also in threads. The files are deleted when
    the last fit is over, and when one has failed as soon as no other runs; or when this object is
    no longer referred to.

    Args:
        df: The DataFrame.
        fits: How many fits there will be.
    """

    def __init__(self, df: DataFrame, fits: int = 1) -> None:
        self._df = df
        self._lock = threading.Lock()
        self._to_come, self._running, self._failed = fits, 0, False
        self._made: dict[Selection, Future[FitData]] = {}
        weakref.finalize(self, _delete_all, self._made)

    def __enter__(self) -> Conversions:
        with self._lock:
            self._to_come -= 1
            self._running += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._lock:
            self._running -= 1
            self._failed |= kind is not None
            if self._running or (self._to_come > 0 and not self._failed):
                return
            done = dict(self._made)
            self._made.clear()
        _delete_all(done)

    def get(self, selection: Selection) -> FitData:
        """The data sets of a selection; waits for another thread that converts it.

        Raises:
            Exception: What ``convert`` raises.
        """
        with self._lock:
            is_new = selection not in self._made
            future = self._made.setdefault(selection, Future())
        if is_new:
            try:
                future.set_result(convert(self._df, selection))
            except BaseException as error:
                with self._lock:
                    self._made.pop(selection, None)
                future.set_exception(error)
                raise
        return future.result()


def _delete_all(made: Mapping[Selection, Future[FitData]]) -> None:
    for future in made.values():
        if future.done() and future.exception() is None:
            future.result().delete()
