"""Decides what a column becomes in a batch, by its type and what the manifest says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.batches.columns.settings import ColumnSettings
from sparkdl_runner.data.decode import codecs, spark_structs
from sparkdl_runner.data.decode import rows as kept_rows
from sparkdl_runner.data.decode.collated import collated_column
from sparkdl_runner.data.decode.columns import (
    Column,
    ImageColumn,
    Output,
    PaddedColumn,
    VariableColumn,
)
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.too_large import MOST_BYTES, TOO_LARGE
from sparkdl_runner.tensors.arrays import Array, Leaf, dense, is_list, validity
from sparkdl_runner.tensors.images import ImageSize
from sparkdl_runner.tensors.ragged import padded


class ColumnPlanner(ColumnSettings):
    """Plans one column.

    Raises:
        ValueError: An option does not fit the column's type.
        DatasetError: The column holds nulls, or lists of different lengths, and no option says
            what to do about it.
    """

    def plan(self) -> Column:
        """The column's plan, by its type."""
        types = pa.types
        if self.options.images and self.name in self.options.images:
            size = self.options.images[self.name]
            return self._encoded_image(ImageSize.of(self.name, size))
        if self.info.hint == "image":
            return self._schema_image()
        if self.info.hint == "vector":
            return self._vector()
        if (wanted := self.info.number_type) is not None:
            leaf = self.leaf(wanted)
            return self._dense(replace(leaf, steps=(("cast", wanted), *leaf.steps)), ())
        if self.info.hint is not None:
            return self._of_codec(self.info.hint)
        depth, inner = 0, self.type
        while is_list(inner):
            depth, inner = depth + 1, inner.value_type
        if types.is_string(inner) or types.is_large_string(inner):
            return self._words("text", depth)
        if (
            types.is_binary(inner)
            or types.is_large_binary(inner)
            or types.is_fixed_size_binary(inner)
        ):
            return self._words("binary", depth)
        if depth:
            return self._list(depth, inner)
        if self.pack is not None:
            raise ValueError(
                f"pack names {self.name!r}, which is {self.info.type}: it is for lists of numbers."
            )
        return self._dense(self.leaf(inner), ())

    def _words(self, kind: Literal["text", "binary"], depth: int) -> VariableColumn:
        """Text or bytes, which come as Python lists, since no tensor can hold them."""
        if self.name in {*self.options.ragged, *(self.options.pack or ())} or (
            isinstance(self.options.pad, Mapping) and self.name in self.options.pad
        ):
            raise ValueError(
                f"pad, pack or ragged names {self.name!r}, which is {self.info.type}: they are "
                "for lists of numbers. Leave it out there; its rows come as lists."
            )
        if depth == 0:
            kept_type = pa.large_string() if kind == "text" else pa.large_binary()
            return self.variable_column(kind, None, 0, kept_rows.keep_words, kept_type)
        if (self.info.most_row_bytes or 0) > MOST_BYTES:
            raise DatasetError(f"column {self.name!r}: {TOO_LARGE}")

        def keep(array: pa.Array) -> pa.Array:
            if kind == "text":
                kept_rows.check_utf8(array)
            return array

        return self.variable_column(kind, None, depth, keep, self.type)

    def _list(self, depth: int, inner: pa.DataType) -> Column:
        leaf = self.leaf(inner)
        lengths = (*self.info.list_lengths, *[None] * depth)[:depth]
        rest = tuple(length for length in lengths[1:] if length is not None)
        if len(rest) < depth - 1:
            raise DatasetError(
                f"column {self.name!r} is {self.info.type}, and the lists inside its lists differ "
                "in length: no tensor has that shape. Flatten or pad them before converting."
            )
        if self.pack is not None or self.pad == "longest":
            return self._collated(depth, leaf)
        if isinstance(self.pad, int):
            return self._padded(leaf, self.pad, rest)
        if self.name in self.options.ragged:
            if depth > 1:
                raise ValueError(
                    f"ragged names {self.name!r}, which is {self.info.type}: values and offsets "
                    "are given for lists of numbers only. Use pad for it."
                )
            keep = self.keeping(leaf, ())
            return self.variable_column("ragged", leaf, 0, keep, pa.large_binary())
        if lengths[0] is None:
            raise DatasetError(
                f"column {self.name!r} is {self.info.type} with lists of different lengths. Pass "
                f"pad={{{self.name!r}: n}} to cut or fill each to n, or ragged=[{self.name!r}] to "
                "have values and offsets."
            )
        return self._dense(leaf, (lengths[0], *rest))

    def _dense(self, leaf: Leaf, lengths: tuple[int, ...]) -> Column:
        outputs = [Output(name=self.name, dtype=leaf.dtype, shape=lengths)]
        if self.is_masked:
            dtype = np.dtype(np.bool_)
            outputs.append(Output(name=f"{self.name}_mask", dtype=dtype, shape=lengths))

        def decode_dense(array: pa.Array) -> tuple[Array, ...]:
            values, valid = dense(array, lengths, leaf, self.fill, masked=self.is_masked)
            return (values,) if valid is None else (values, valid)

        return self.dense_column(outputs, decode_dense)

    def _padded(self, leaf: Leaf, length: int, inner: tuple[int, ...]) -> PaddedColumn:
        if self.is_masked:
            raise DatasetError(
                f"column {self.name!r}: nulls='mask' cannot go with pad=. Use nulls='fill' or "
                "'nan'."
            )
        outputs = [
            Output(name=self.name, dtype=leaf.dtype, shape=(length, *inner)),
            Output(name=f"{self.name}_length", dtype=np.dtype(np.int64)),
        ]
        pad_value = self.options.pad_value
        return PaddedColumn(
            name=self.name,
            kind="ragged",
            decode=self.keeping(leaf, inner),
            kept_type=pa.large_binary(),
            leaf=leaf,
            has_nulls=self.has_nulls,
            row_bytes=self.row_bytes,
            outputs=tuple(outputs),
            finish=lambda rows: padded(rows, length, inner, leaf.dtype, pad_value),
        )

    def _collated(self, depth: int, leaf: Leaf) -> VariableColumn:
        if depth > 1 or self.is_masked:
            raise ValueError(
                f"pack or pad='longest' is given for {self.name!r}, which is {self.info.type}: "
                "they are for lists of numbers, without nulls='mask'. Flatten the lists, or give "
                "pad a length."
            )
        return collated_column(
            self.name,
            leaf,
            self.keeping(leaf, ()),
            has_nulls=self.has_nulls,
            row_bytes=self.row_bytes,
            pack=self.pack,
            pad_multiple=self.options.pad_multiple,
            pad_value=self.options.pad_value,
        )

    def _vector(self) -> Column:
        size = self.info.list_lengths[0] if self.info.list_lengths else None
        if size is None:
            raise DatasetError(
                f"column {self.name!r} holds ML vectors of different sizes: no tensor has that "
                "shape. Leave it out with columns=[…], or make them one size before converting."
            )
        return self._whole_rows(
            (size,), np.float64, lambda array: spark_structs.vectors(array, size, self.fill)
        )

    def _encoded_image(self, size: ImageSize) -> ImageColumn:
        if not (pa.types.is_binary(self.type) or pa.types.is_large_binary(self.type)):
            raise ValueError(
                f"images names {self.name!r}, which is {self.info.type}: encoded images are in "
                "binary columns."
            )
        if find_spec("PIL") is None:
            raise ModuleNotFoundError(
                "images=… decodes with Pillow, which is not installed: pip install pillow."
            )
        return ImageColumn(
            name=self.name,
            kind="binary",
            decode=kept_rows.keep_words,
            kept_type=pa.large_binary(),
            leaf=None,
            has_nulls=self.has_nulls,
            row_bytes=self.row_bytes,
            size=size,
            is_masked=self.is_masked,
        )

    def _schema_image(self) -> Column:
        lengths = self.info.list_lengths
        if len(lengths) != 3 or None in lengths:
            raise DatasetError(
                f"column {self.name!r} holds images of different heights, widths or channels: no "
                "tensor has that shape. Resize them before converting."
            )
        height, width, channels = (length or 0 for length in lengths)
        shape = (height, width, channels)
        return self._whole_rows(
            shape, np.uint8, lambda array: spark_structs.decode_schema(array, shape)
        )

    def _of_codec(self, hint: str) -> Column:
        """The plan for a column of a petastorm codec; see ``ColumnInfo.hint``."""
        codec, _, stored = hint.partition(" ")
        decoder = codecs.decoder_of(codec, stored, self.info.list_lengths)
        if isinstance(decoder, ImageSize):
            return self._encoded_image(decoder)
        if isinstance(decoder, str):
            raise DatasetError(
                f"column {self.name!r} was written by petastorm's {codec}, and {decoder}. Leave it "
                "out with columns=[…], or use engine='petastorm'."
            )
        self.check_fits("fill_value", self.fill, Leaf(dtype=decoder.dtype))
        return self._whole_rows(
            decoder.shape, decoder.dtype.type, lambda array: decoder.decode(array, self.fill or 0)
        )

    def _whole_rows(
        self, shape: tuple[int, ...], dtype: type, decode_rows: Callable[[pa.Array], Array]
    ) -> Column:
        """A column in which only whole rows can be null."""
        outputs = [Output(name=self.name, dtype=np.dtype(dtype), shape=shape)]
        if not self.is_masked:
            return self.dense_column(outputs, lambda array: (decode_rows(array),))
        outputs.append(Output(name=f"{self.name}_mask", dtype=np.dtype(np.bool_)))
        return self.dense_column(outputs, lambda array: (decode_rows(array), validity(array)))
