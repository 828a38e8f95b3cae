"""One column, what the loader's options say of it, and how its plan is built from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode import rows as kept_rows
from sparkdl_runner.data.decode.columns import (
    NULLS,
    ColumnOptions,
    DenseColumn,
    Output,
    PaddedColumn,
    VariableColumn,
)
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.read.costs import value_bytes
from sparkdl_runner.tensors.arrays import Array, Leaf, holds, leaf_of
from sparkdl_runner.tensors.ragged import keep_numbers


class ColumnSettings:
    """A column of a data set with the options that are given for it.

    Raises:
        ValueError: An option is none that any column has.
        DatasetError: The column holds nulls, and no option says what to do about it.
    """

    def __init__(self, manifest: Manifest, name: str, options: ColumnOptions) -> None:
        info = self.info = manifest.column(name)
        self.name = name
        self.type = manifest.schema.field(name).type
        if pa.types.is_dictionary(self.type):
            self.type = self.type.value_type
        self.row_bytes = math.ceil(value_bytes(manifest, info))
        self.options = options
        nulls, pad = options.nulls, options.pad
        self.nulls = nulls.get(name, "error") if isinstance(nulls, Mapping) else nulls
        self.pad = pad.get(name) if isinstance(pad, Mapping) else pad
        self.has_nulls = info.null_count > 0
        self.is_masked = self.has_nulls and self.nulls == "mask"
        self.fill: float | None = None
        if self.has_nulls:
            self.fill = float("nan") if self.nulls == "nan" else options.fill_value
        if self.nulls not in NULLS:
            raise ValueError(f"nulls is {self.nulls!r}; expected one of {', '.join(NULLS)}.")
        if self.has_nulls and self.nulls == "error":
            raise DatasetError(
                f"column {name!r} holds {info.null_count:,} nulls, and a tensor has no null. "
                "Pass nulls='fill' (with fill_value), 'nan' or 'mask', for all columns or as "
                f"{{{name!r}: …}}, or drop those rows before converting."
            )
        self.pack = (options.pack or {}).get(name)
        for argument, length in (("pad", self.pad), ("pack", self.pack)):
            is_longest = argument == "pad" and length == "longest"
            if length is None or is_longest or (isinstance(length, int) and length >= 1):
                continue
            raise ValueError(
                f"{argument} for column {name!r} is {length!r}; expected 1 or more"
                f"{', or longest' if argument == 'pad' else ''}."
            )

    def leaf(self, arrow_type: pa.DataType) -> Leaf:
        """The plan for numbers of this type, if the options fit them.

        Raises:
            DatasetError: No tensor holds them.
            ValueError: They cannot hold ``fill_value`` or ``pad_value``.
        """
        leaf = leaf_of(arrow_type, decimals=self.options.decimals)
        if isinstance(leaf, str):
            raise DatasetError(f"column {self.name!r} is {self.info.type}: {leaf}.")
        if self.nulls == "nan" and self.has_nulls and leaf.dtype.kind != "f":
            raise DatasetError(
                f"column {self.name!r} is {self.info.type} and holds {self.info.null_count:,} "
                "nulls: only floating-point columns can have NaN. Use nulls='fill' or 'mask' for "
                "it, or cast it before converting."
            )
        self.check_fits("fill_value", self.fill, leaf)
        if self.pad is not None or self.pack is not None:
            self.check_fits("pad_value", self.options.pad_value, leaf)
        return leaf

    def check_fits(self, argument: str, value: float | None, leaf: Leaf) -> None:
        """Refuses a value that the column's type would silently change, such as 0.5 to 0."""
        if value is not None and not holds(leaf.dtype, value):
            raise ValueError(
                f"{argument} is {value!r}, and column {self.name!r} is {self.info.type}, "
                "which cannot hold that. Give a value that it can, or cast the column before "
                "converting."
            )

    def keeping(self, leaf: Leaf, inner: tuple[int, ...]) -> Callable[[pa.Array], pa.Array]:
        """Makes of lists of numbers what is kept of them until rows are shuffled."""
        return lambda array: keep_numbers(array, inner, leaf, self.fill)

    def dense_column(
        self, outputs: list[Output], decode_rows: Callable[[pa.Array], tuple[Array, ...]]
    ) -> DenseColumn | PaddedColumn:
        """A plan for rows of one shape."""
        if outputs[0].row_bytes:
            return DenseColumn(
                name=self.name,
                outputs=tuple(outputs),
                decode=decode_rows,
                has_nulls=self.has_nulls,
            )

        def keep(array: pa.Array) -> pa.Array:
            decode_rows(array)  # Refuses a row that is not empty.
            return kept_rows.keep_validity(array)

        def finish(rows: pa.Array) -> tuple[Array, ...]:
            return tuple(
                np.zeros((len(rows), *output.shape), dtype=output.dtype)
                if 0 in output.shape
                else kept_rows.kept_validity(rows)
                for output in outputs
            )

        # Rows without a byte cannot be shuffled as rows of bytes of one length.
        return PaddedColumn(
            name=self.name,
            kind="binary",
            decode=keep,
            kept_type=pa.large_binary(),
            leaf=None,
            has_nulls=self.has_nulls,
            row_bytes=self.row_bytes,
            outputs=tuple(outputs),
            finish=finish,
        )

    def variable_column(
        self,
        kind: Literal["ragged", "text", "binary"],
        leaf: Leaf | None,
        depth: int,
        keep: Callable[[pa.Array], pa.Array],
        kept_type: pa.DataType,
    ) -> VariableColumn:
        """A plan for rows of many lengths.

        Raises:
            DatasetError: It has nulls that are to be marked, which only rows of one shape can be.
        """
        if self.nulls in ("nan", "mask") and self.has_nulls:
            raise DatasetError(
                f"column {self.name!r} is {self.info.type} and holds {self.info.null_count:,} "
                f"nulls: nulls={self.nulls!r} is for numbers of fixed shape. Use "
                f"nulls={{{self.name!r}: 'fill', …}}, which makes them empty."
            )
        return VariableColumn(
            name=self.name,
            kind=kind,
            decode=keep,
            kept_type=kept_type,
            leaf=leaf,
            has_nulls=self.has_nulls,
            row_bytes=self.row_bytes,
            depth=depth,
        )
