"""Chooses the columns to read and names the entries of a batch, before a row is read."""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sparkdl_runner.data.batches.columns.planner import ColumnPlanner
from sparkdl_runner.data.batches.columns.rounding import warn_if_rounded
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.columns import (
    ROW_MASK,
    Column,
    ColumnOptions,
    DenseColumn,
    Layout,
    Output,
)
from sparkdl_runner.tensors.arrays import is_readable

_log = logging.getLogger(__name__)


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
            # NumPy makes float64 of float32 and integers; models take float32.
            dtype = np.dtype(np.float32)
        columns = tuple(
            warn_if_rounded(column, dtype)
            if isinstance(column, DenseColumn) and column.feature is not None
            else column
            for column in columns
        )
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
    for argument in ("nulls", "pad", "pack", "images"):
        value = getattr(options, argument)
        if isinstance(value, Mapping):
            wanted += [(argument, name) for name in value]
    for argument, name in wanted:
        if name not in known:
            raise ValueError(f"{argument} names {name!r}: {_no_such_column(name, known)}")
    features = list(options.feature_cols or ())
    if len(set(features)) < len(features):
        twice = next(name for name in features if features.count(name) > 1)
        raise ValueError(f"feature_cols names {twice!r} twice: name each column once.")
    chosen = [*(_readable(manifest) if options.columns is None else options.columns), *features]
    return list(dict.fromkeys(chosen))


def _readable(manifest: Manifest) -> list[str]:
    """All columns but those of a type that no loader reads, with a warning that names them."""
    left_out = [
        column.name
        for column in manifest.columns
        if column.hint is None and not is_readable(manifest.schema.field(column.name).type)
    ]
    names = [name for name in manifest.schema.names if name not in set(left_out)]
    if left_out and names:
        shown = ", ".join(f"{name!r} ({manifest.column(name).type})" for name in left_out)
        _log.warning(
            "Left out, since torch has no such types: %s. Name the columns to read in columns=[…], "
            "or convert these.",
            shown,
        )
    return names or manifest.schema.names


def _no_such_column(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no such column.{hint} The data set has: {', '.join(known)}."


def _plan_column(
    manifest: Manifest, name: str, options: ColumnOptions, features: list[str]
) -> Column:
    column = ColumnPlanner(manifest, name, options).plan()
    if name not in features:
        return column
    if not isinstance(column, DenseColumn) or [o.shape for o in column.outputs] != [()]:
        raise ValueError(
            f"feature_cols names {name!r}, which is {manifest.column(name).type}: the matrix takes "
            "columns of one number per row, without nulls='mask'. Leave it out of feature_cols."
        )
    return replace(column, feature=features.index(name))


def _check_distinct(layout: Layout) -> None:
    names = [*(output.name for output in layout.batch_outputs), ROW_MASK]
    for column in layout.ragged:
        names.extend(column.entries)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(
            f"two entries of a batch would be called {twice[0]!r}. Rename the column, leave it out "
            "with columns=[…], or give features_name."
        )
    if not layout.columns:
        raise ValueError("columns is empty: name at least one column.")
