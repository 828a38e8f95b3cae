"""Rows of a conversion by number, as a map-style ``torch.utils.data.Dataset``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batches.columns.plan import plan_columns
from sparkdl_runner.data.consumers.rows_by_number import RowsByNumber
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.decode.columns import CollatedColumn, ColumnOptions
from sparkdl_runner.data.read.reader import RowGroupReader

if TYPE_CHECKING:
    from sparkdl_runner.data.dataset.converted import Converted
    from sparkdl_runner.data.dataset.dataset import Dataset

DEFAULT_BYTES = 256 << 20
_OPTIONS = {field.name for field in fields(ColumnOptions)} - {"feature_cols", "features_name"}


class RowDataset(TorchDataset[dict[str, Any]]):
    """Gives rows by number, as dicts of tensors ``[*shape]`` by column name.

    For torch's samplers and ``DataLoader``, with worker processes or without: each process opens
    the files for itself. A row group is read whole, and those that were read last are kept. So a
    sampler that jumps over more row groups than are kept reads each of them again and again; the
    loaders and ``make_iterable_dataset`` read each once an epoch.
    """

    def __init__(
        self,
        open_dataset: Callable[[], Dataset],
        converted: Converted | None,
        rows: int,
        memory_budget_bytes: int | None,
        options: Mapping[str, Any],
    ) -> None:
        """Made by ``SparkDatasetConverter.make_map_dataset``."""
        for name in sorted(set(options) - _OPTIONS):
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"make_map_dataset() got an unexpected keyword argument {name!r}{hint}")
        given = {name: value for name, value in options.items() if value is not None}
        self._open_dataset, self._converted, self._rows = open_dataset, converted, rows
        self._options = ColumnOptions(**given)
        limit = whole_number("memory_budget_bytes", memory_budget_bytes)
        self._limit_bytes = DEFAULT_BYTES if limit is None else limit
        self._opened: tuple[int, RowsByNumber] | None = None

    def __len__(self) -> int:
        """Rows of the data set."""
        return self._rows

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One row; negative numbers count from the end.

        Raises:
            IndexError: There is no such row.
        """
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows, each row group read once: how a ``DataLoader`` asks for a batch.

        Raises:
            IndexError: There is no such row.
            DatasetError: A file is gone or changed, or a column cannot become a tensor.
        """
        wanted = np.asarray(numbers, dtype=np.int64).reshape(-1)
        wrong = wanted[(wanted < -self._rows) | (wanted >= self._rows)]
        if len(wrong):
            raise IndexError(f"there is no row {wrong[0]:,}: the data set has {self._rows:,} rows.")
        taken = self._reader().take(np.where(wanted < 0, wanted + self._rows, wanted))
        columns = {name: _tensors(values) for name, values in taken.items()}
        return [{name: part[row] for name, part in columns.items()} for row in range(len(wanted))]

    def _reader(self) -> RowsByNumber:
        """The reader of this process: a fork must not share open files."""
        if self._opened is None or self._opened[0] != os.getpid():
            files = VerifiedFiles(self._open_dataset(), self._converted)
            manifest = files.dataset.manifest
            layout = plan_columns(manifest, self._options)
            for column in layout.ragged:
                if isinstance(column, CollatedColumn):
                    raise ValueError(
                        f"column {column.name!r} is packed or padded batch by batch, and "
                        "make_map_dataset() gives rows one by one. Give pad a length, or leave it "
                        "to the DataLoader's collate_fn."
                    )
            rows = RowsByNumber(
                layout,
                RowGroupReader(files),
                manifest.row_groups.rows,
                self._limit_bytes,
            )
            self._opened = (os.getpid(), rows)
        return self._opened[1]

    def close(self) -> None:
        """Closes the files of this process, and lets the rows go; they are opened again if used."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _tensors(values: Any) -> Sequence[Any]:
    """Rows as tensors, where they are numbers."""
    if isinstance(values, np.ndarray):
        return list(torch.from_numpy(values))
    return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values]
