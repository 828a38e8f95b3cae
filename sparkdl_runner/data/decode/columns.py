"""The columns of a batch: arrays of one shape, or rows that differ in length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from sparkdl_runner.tensors.arrays import Array, Leaf
from sparkdl_runner.tensors.columns import Nulls
from sparkdl_runner.tensors.images import ImageSize

NULLS: tuple[Nulls, ...] = ("error", "fill", "nan", "mask")
ROW_MASK = "row_mask"
"""The key that ``tail="pad"`` adds: bool ``[batch]``, which rows are real."""


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """How columns are read; the arguments of the same names of ``ArrowLoader``."""

    columns: Sequence[str] | None = None
    feature_cols: Sequence[str] | None = None
    features_name: str = "features"
    nulls: Nulls | Mapping[str, Nulls] = "error"
    fill_value: float = 0
    pad: int | Literal["longest"] | Mapping[str, int | Literal["longest"]] | None = None
    pad_value: float = 0
    pad_multiple: int = 1
    pack: Mapping[str, int] | None = None
    ragged: Sequence[str] = ()
    images: Mapping[str, Any] | None = None
    decimals: Literal["error", "float64"] = "error"


@dataclass(frozen=True, kw_only=True)
class Output:
    """One dense entry of a batch."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    """The shape of one row."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class DenseColumn:
    """A column whose rows all have one shape."""

    name: str
    outputs: tuple[Output, ...]
    decode: Callable[[pa.Array], tuple[Array, ...]]
    """Takes ``[n]`` rows; returns ``[n, *shape]`` for each output."""
    has_nulls: bool
    """Whether the manifest knows of nulls; others are refused."""
    feature: int | None = None
    """The column's place in the features matrix; then it has one output, of shape ()."""


@dataclass(frozen=True, kw_only=True)
class VariableColumn:
    """A column whose rows differ in length."""

    name: str
    kind: Literal["ragged", "text", "binary"]
    decode: Callable[[pa.Array], pa.Array]
    """Takes ``[n]`` rows; returns them as they are kept while they are shuffled."""
    kept_type: pa.DataType
    leaf: Leaf | None
    has_nulls: bool
    """Whether the manifest knows of nulls; others are refused."""
    row_bytes: int
    """The average bytes of one row."""
    depth: int = 0
    """How many lists deep the texts or bytes of a row are."""

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its entries in a batch."""
        return (self.name, f"{self.name}_offsets") if self.kind == "ragged" else (self.name,)


@dataclass(frozen=True, kw_only=True)
class CollatedColumn(VariableColumn):
    """Lists of numbers that become arrays batch by batch, of shapes that follow from the rows."""

    collate: Callable[[pa.Array], dict[str, Array]]
    """Takes a batch's kept rows; returns arrays by what follows the column's name in theirs."""
    endings: tuple[str, ...]
    """These, in order."""

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its entries in a batch."""
        return tuple(f"{self.name}{ending}" for ending in self.endings)


@dataclass(frozen=True, kw_only=True)
class PaddedColumn(VariableColumn):
    """Lists of numbers: shuffled as they are, and cut or filled when they are in a batch."""

    outputs: tuple[Output, ...]
    finish: Callable[[pa.Array], tuple[Array, ...]]
    """Takes ``[n]`` kept rows; returns ``[n, *shape]`` for each output."""


@dataclass(frozen=True, kw_only=True)
class ImageColumn(VariableColumn):
    """Encoded images: shuffled as they are, and decoded when they are in a batch."""

    size: ImageSize
    is_masked: bool
    """Whether a batch says which images were not null."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The images, and perhaps their mask."""
        pixels = Output(name=self.name, dtype=np.dtype(np.uint8), shape=self.size.shape)
        mask = Output(name=f"{self.name}_mask", dtype=np.dtype(np.bool_))
        return (pixels, mask) if self.is_masked else (pixels,)


LateColumn = PaddedColumn | ImageColumn
"""Columns whose rows have one shape in a batch, but not while they are shuffled."""

Column = DenseColumn | VariableColumn


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All columns that are read."""

    columns: tuple[Column, ...]
    features: Output | None
    """The matrix made of the columns that have a ``feature``."""

    @property
    def names(self) -> list[str]:
        """The columns to read from Parquet."""
        return [column.name for column in self.columns]

    @property
    def images(self) -> list[ImageColumn]:
        """The columns that are decoded when they are in a batch."""
        return [column for column in self.columns if isinstance(column, ImageColumn)]

    @property
    def ragged(self) -> list[VariableColumn]:
        """The columns whose rows differ in length in a batch, too."""
        variable = [column for column in self.columns if isinstance(column, VariableColumn)]
        return [column for column in variable if not isinstance(column, LateColumn)]

    @property
    def batch_outputs(self) -> list[Output]:
        """Every dense entry of a batch."""
        return [*self.outputs, *self._late_outputs]

    @property
    def _late_outputs(self) -> list[Output]:
        late = [column for column in self.columns if isinstance(column, LateColumn)]
        return [output for column in late for output in column.outputs]

    def check_balance(self, name: str) -> None:
        """Raises a ValueError unless the rows of a column differ in length."""
        variable = [column.name for column in self.columns if isinstance(column, VariableColumn)]
        if name not in variable:
            raise ValueError(
                f"balance names {name!r}; expected a column that is read and whose rows differ in "
                f"length: {', '.join(variable) or 'there is none'}."
            )

    @property
    def outputs(self) -> list[Output]:
        """The dense entries of a batch that are decoded before rows are shuffled."""
        own = [
            output
            for column in self.columns
            if isinstance(column, DenseColumn) and column.feature is None
            for output in column.outputs
        ]
        return own if self.features is None else [*own, self.features]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory while rows are shuffled.

        Its images are encoded, and its lists not padded.
        """
        variable = sum(c.row_bytes for c in self.columns if isinstance(c, VariableColumn))
        return max(1, variable + sum(output.row_bytes for output in self.outputs))

    @property
    def batch_row_bytes(self) -> int:
        """Bytes of one row in a batch, and of what was kept to make it."""
        late = sum(output.row_bytes for output in self._late_outputs)
        # Padded lists take more; how much is known only when they are in a batch.
        collated = sum(c.row_bytes for c in self.columns if isinstance(c, CollatedColumn))
        return self.row_bytes + late + collated
