"""Decides what each column of a data set becomes in a batch, before a row is read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode import arrays as decode
from sparkdl_runner.data.decode import images
from sparkdl_runner.data.decode.arrays import Array, Leaf
from sparkdl_runner.data.decode.columns import (
    NULLS,
    ROW_MASK,
    Column,
    ColumnOptions,
    DenseColumn,
    Layout,
    Output,
    VariableColumn,
)
from sparkdl_runner.data.errors import DatasetError


def plan_columns(manifest: Manifest, options: ColumnOptions) -> Layout:
    """Decides how every column is read.

    Raises:
        ValueError: An option names a column that is not there, or does not fit its type.
        DatasetError: A column holds nulls, or lists of different lengths, and no option says what
            to do about it.
    """
    names = _chosen(manifest, options)
    features = list(options.feature_cols or ())
    columns = tuple(_plan_column(manifest, name, options, features) for name in names)
    matrix = None
    if features:
        dtypes = {c.name: c.outputs[0].dtype for c in columns if isinstance(c, DenseColumn)}
        dtype = np.result_type(*(dtypes[name] for name in features))
        if dtype == np.float64 and all(dtypes[name] != np.float64 for name in features):
            dtype = np.dtype(np.float32)  # float32 beside integers: what models take
        matrix = Output(name=options.features_name, dtype=dtype, shape=(len(features),))
    layout = Layout(columns=columns, features=matrix)
    _check_distinct(layout)
    return layout


def _chosen(manifest: Manifest, options: ColumnOptions) -> list[str]:
    known = manifest.schema.names
    for argument, value in (("columns", options.columns), ("feature_cols", options.feature_cols)):
        if isinstance(value, str):
            raise ValueError(f"{argument} is the text {value!r}; expected a list of column names.")
    wanted: list[tuple[str, str]] = [("columns", name) for name in options.columns or ()]
    wanted += [("feature_cols", name) for name in options.feature_cols or ()]
    wanted += [("ragged", name) for name in options.ragged]
    for argument in ("nulls", "pad", "images"):
        value = getattr(options, argument)
        if isinstance(value, Mapping):
            wanted += [(argument, name) for name in value]
    for argument, name in wanted:
        if name not in known:
            raise ValueError(f"{argument} names {name!r}: {_no_such_column(name, known)}")
    features = list(options.feature_cols or ())
    if len(set(features)) < len(features):
        raise ValueError("feature_cols names a column twice.")
    chosen = known if options.columns is None else [*options.columns, *features]
    return list(dict.fromkeys(chosen))


def _no_such_column(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no such column.{hint} The data set has: {', '.join(known)}."


def _plan_column(
    manifest: Manifest, name: str, options: ColumnOptions, features: list[str]
) -> Column:
    column = _Reading(manifest, name, options).plan()
    if name not in features:
        return column
    if not isinstance(column, DenseColumn) or [o.shape for o in column.outputs] != [()]:
        raise ValueError(
            f"feature_cols names {name!r}, which is {manifest.column(name).type}: the matrix takes "
            "columns of one number per row, without nulls='mask'. Leave it out of feature_cols."
        )
    return DenseColumn(
        name=name, outputs=column.outputs, decode=column.decode, feature=features.index(name)
    )


class _Reading:
    """How one column is read."""

    def __init__(self, manifest: Manifest, name: str, options: ColumnOptions) -> None:
        info = self.info = manifest.column(name)
        self.name = info.name
        self.type = manifest.schema.field(name).type
        if pa.types.is_dictionary(self.type):
            self.type = self.type.value_type
        # Twice what Parquet takes before compression, for dictionaries; and an offset.
        self.row_bytes = 8 + 2 * info.size_bytes // max(1, manifest.rows)
        self.options = options
        nulls = options.nulls
        self.nulls = nulls.get(self.name, "error") if isinstance(nulls, Mapping) else nulls
        pad = options.pad
        self.pad = pad.get(self.name) if isinstance(pad, Mapping) else pad
        self.fill: float | None = None
        if info.null_count:
            self.fill = float("nan") if self.nulls == "nan" else options.fill_value
        if self.nulls not in NULLS:
            raise ValueError(f"nulls is {self.nulls!r}; expected one of {', '.join(NULLS)}.")
        if self.nulls == "error" and info.null_count:
            raise DatasetError(
                f"column {self.name!r} holds {info.null_count:,} nulls, and a tensor has no null. "
                "Pass nulls='fill' (with fill_value), 'nan' or 'mask', for all columns or as "
                f"{{{self.name!r}: …}}, or drop those rows before converting."
            )
        if self.pad is not None and (not isinstance(self.pad, int) or self.pad < 1):
            raise ValueError(f"pad for column {self.name!r} is {self.pad!r}; expected 1 or more.")

    def plan(self) -> Column:
        """The column's reading, by its type."""
        types = pa.types
        if self.options.images and self.name in self.options.images:
            return self._encoded_image()
        if self.info.hint == "image":
            return self._schema_image()
        if self.info.hint == "vector":
            return self._vector()
        depth, inner = 0, self.type
        while decode.is_list(inner):
            depth, inner = depth + 1, inner.value_type
        if types.is_string(inner) or types.is_large_string(inner):
            return self._words("text", depth)
        if types.is_binary(inner) or types.is_large_binary(inner):
            return self._words("binary", depth)
        if types.is_fixed_size_binary(inner):
            return self._words("binary", depth)
        if depth:
            return self._list(depth, inner)
        return self._dense(self._leaf(self.type), ())

    def _leaf(self, arrow_type: pa.DataType) -> Leaf:
        leaf = decode.leaf_of(arrow_type, decimals=self.options.decimals)
        if isinstance(leaf, str):
            raise DatasetError(f"column {self.name!r} is {self.info.type}: {leaf}.")
        if self.nulls == "nan" and self.info.null_count and leaf.dtype.kind != "f":
            raise DatasetError(
                f"column {self.name!r} is {self.info.type} and holds {self.info.null_count:,} "
                "nulls: only floating-point columns can have NaN. Use nulls='fill' or 'mask' for "
                "it, or cast it before converting."
            )
        self._check_fits("fill_value", self.fill, leaf)
        if self.pad is not None:
            self._check_fits("pad_value", self.options.pad_value, leaf)
        return leaf

    def _check_fits(self, argument: str, value: float | None, leaf: Leaf) -> None:
        """Refuses a value that the column's type would silently change, such as 0.5 to 0."""
        if value is None or leaf.dtype.kind == "f":
            return
        whole = float(value).is_integer()
        if leaf.dtype.kind == "b":
            fits = value in (0, 1)
        else:
            limits = np.iinfo(leaf.dtype)
            fits = whole and limits.min <= value <= limits.max
        if not fits:
            raise ValueError(
                f"{argument} is {value!r}, and column {self.name!r} is {self.info.type}, which "
                "cannot hold that. Give a value that it can, or cast the column before converting."
            )

    def _words(self, kind: Literal["text", "binary"], depth: int) -> VariableColumn:
        """Texts or bytes, which are given as lists of them: no tensor holds any."""
        if self.name in self.options.ragged or (
            isinstance(self.options.pad, Mapping) and self.name in self.options.pad
        ):
            raise ValueError(
                f"pad or ragged names {self.name!r}, which is {self.info.type}: they are for lists "
                "of numbers. Leave it out there; its rows come as lists."
            )
        return replace(self._variable(kind, None), depth=depth)

    def _list(self, depth: int, inner: pa.DataType) -> Column:
        leaf = self._leaf(inner)
        lengths = (*self.info.list_lengths, *[None] * depth)[:depth]
        rest = tuple(length for length in lengths[1:] if length is not None)
        if len(rest) < depth - 1:
            raise DatasetError(
                f"column {self.name!r} is {self.info.type}, and the lists inside its lists differ "
                "in length: no tensor has that shape. Flatten or pad them before converting."
            )
        if self.pad is not None:
            return self._padded(leaf, self.pad, rest)
        if self.name in self.options.ragged:
            if depth > 1:
                raise ValueError(
                    f"ragged names {self.name!r}, which is {self.info.type}: values and offsets "
                    "are given for lists of numbers only. Use pad for it."
                )
            return self._variable("ragged", leaf)
        if lengths[0] is None:
            raise DatasetError(
                f"column {self.name!r} is {self.info.type} with lists of different lengths. Pass "
                f"pad={{{self.name!r}: n}} to cut or fill each to n, or ragged=[{self.name!r}] to "
                "have values and offsets."
            )
        return self._dense(leaf, (lengths[0], *rest))

    def _dense(self, leaf: Leaf, lengths: tuple[int, ...]) -> DenseColumn:
        masked = self.nulls == "mask" and self.info.null_count > 0
        outputs = [Output(name=self.name, dtype=leaf.dtype, shape=lengths)]
        if masked:
            dtype = np.dtype(np.bool_)
            outputs.append(Output(name=f"{self.name}_mask", dtype=dtype, shape=lengths))

        def decode_dense(array: pa.Array) -> tuple[Array, ...]:
            values, valid = decode.dense(
                self.known_nulls(array), lengths, leaf, self.fill, masked=masked
            )
            return (values,) if valid is None else (values, valid)

        return DenseColumn(name=self.name, outputs=tuple(outputs), decode=decode_dense)

    def _padded(self, leaf: Leaf, length: int, inner: tuple[int, ...]) -> DenseColumn:
        if self.nulls == "mask" and self.info.null_count:
            raise DatasetError(
                f"column {self.name!r}: nulls='mask' cannot go with pad=. Use nulls='fill' or "
                "'nan'."
            )

        def decode_padded(array: pa.Array) -> tuple[Array, ...]:
            array = self.known_nulls(array)
            return decode.padded(array, length, inner, leaf, self.fill, self.options.pad_value)

        return DenseColumn(
            name=self.name,
            outputs=(
                Output(name=self.name, dtype=leaf.dtype, shape=(length, *inner)),
                Output(name=f"{self.name}_length", dtype=np.dtype(np.int64)),
            ),
            decode=decode_padded,
        )

    def _vector(self) -> DenseColumn:
        size = self.info.list_lengths[0] if self.info.list_lengths else None
        if size is None:
            raise DatasetError(
                f"column {self.name!r} holds ML vectors of different sizes: no tensor has that "
                "shape. Leave it out with columns=[…], or make them one size before converting."
            )

        def decode_vectors(array: pa.Array) -> tuple[Array, ...]:
            return self._with_mask(array, decode.vectors(self.known_nulls(array), size, self.fill))

        return self._whole_rows((size,), np.dtype(np.float64), decode_vectors)

    def _encoded_image(self) -> DenseColumn:
        if not (pa.types.is_binary(self.type) or pa.types.is_large_binary(self.type)):
            raise ValueError(
                f"images names {self.name!r}, which is {self.info.type}: encoded images are in "
                "binary columns."
            )
        size = images.ImageSize.of(self.name, (self.options.images or {})[self.name])

        def decode_images(array: pa.Array) -> tuple[Array, ...]:
            array = self.known_nulls(array)
            return self._with_mask(array, images.decode_encoded(array, size))

        return self._whole_rows(size.shape, np.dtype(np.uint8), decode_images)

    def _schema_image(self) -> DenseColumn:
        lengths = self.info.list_lengths
        if len(lengths) != 3 or None in lengths:
            raise DatasetError(
                f"column {self.name!r} holds images of different heights, widths or channels: no "
                "tensor has that shape. Resize them before converting."
            )
        height, width, channels = (length or 0 for length in lengths)
        shape = (height, width, channels)

        def decode_images(array: pa.Array) -> tuple[Array, ...]:
            array = self.known_nulls(array)
            return self._with_mask(array, images.decode_schema(array, shape))

        return self._whole_rows(shape, np.dtype(np.uint8), decode_images)

    def _whole_rows(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        decode_rows: Callable[[pa.Array], tuple[Array, ...]],
    ) -> DenseColumn:
        """A column whose rows are null as a whole or not at all."""
        outputs = [Output(name=self.name, dtype=dtype, shape=shape)]
        if self.nulls == "mask" and self.info.null_count:
            outputs.append(Output(name=f"{self.name}_mask", dtype=np.dtype(np.bool_)))
        return DenseColumn(name=self.name, outputs=tuple(outputs), decode=decode_rows)

    def _with_mask(self, array: pa.Array, rows: Array) -> tuple[Array, ...]:
        if self.nulls == "mask" and self.info.null_count:
            return rows, decode.validity(array)
        return (rows,)

    def _variable(
        self, kind: Literal["ragged", "text", "binary"], leaf: Leaf | None
    ) -> VariableColumn:
        if self.nulls in ("nan", "mask") and self.info.null_count:
            raise DatasetError(
                f"column {self.name!r} is {self.info.type} and holds {self.info.null_count:,} "
                f"nulls: nulls={self.nulls!r} is for numbers of fixed shape. Use nulls='fill', "
                "which makes them empty."
            )
        return VariableColumn(
            name=self.name,
            kind=kind,
            arrow_type=self.type,
            leaf=leaf,
            fill=self.fill,
            row_bytes=self.row_bytes,
            check=self.known_nulls,
        )

    def known_nulls(self, array: pa.Array) -> pa.Array:
        """Refuses nulls that the manifest does not know of."""
        if array.null_count and not self.info.null_count:
            raise DatasetError(decode.UNKNOWN_NULLS)
        return array


def _check_distinct(layout: Layout) -> None:
    names = [output.name for output in layout.outputs]
    for column in layout.columns:
        if isinstance(column, VariableColumn):
            names.append(column.name)
            if column.kind == "ragged":
                names.append(f"{column.name}_offsets")
    names.append(ROW_MASK)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two entries of a batch would be called {twice[0]!r}. Rename the column, leave it out "
            "with columns=[…], or give features_name."
        )
    if not layout.columns:
        raise ValueError("columns is empty: name at least one column.")
