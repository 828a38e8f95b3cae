"""A column of numbers that one odd value has made a column of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of a column's values; where fewer are numbers, it may well be meant as a text.
_MOSTLY = 0.9
# Where all others are words for a missing value, half of them will do.
_HALF = 0.5
_MISSING = ("n/a", "na", "#n/a", "null", "none", "nil", "missing", "unknown", "-", "--", "?", ".")


class SpoiltColumn(NamedTuple):
    """A column whose values are numbers but for a few."""

    name: str
    texts: int
    """How many are not."""
    example: str
    """One of those."""


def spoilt_column(frame: DataFrame) -> SpoiltColumn | None:
    """The first column of texts that are numbers, but for a few or for words for a missing value.

    Reads the rows once, if there is a column of texts.

    Args:
        frame: As a reader that finds types for itself has made it.
    """
    from pyspark.sql import functions as F

    texts = [name for name, kind in frame.dtypes if kind == "string"]
    if not texts:
        return None
    sums = []
    for name in texts:
        column = f"`{name.replace('`', '``')}`"
        is_text = F.expr(f"{column} is not null and try_cast(trim({column}) as double) is null")
        is_missing = F.lower(F.trim(F.expr(column))).isin(*_MISSING)
        sums += [
            F.count(F.expr(column)),
            F.count(F.when(is_text, 1)),
            F.count(F.when(is_missing, 1)),
            F.min(F.when(is_text, F.expr(column))),
        ]
    counts = tuple(frame.agg(*sums).first() or ())
    for place, name in enumerate(texts):
        count, odd, missing, example = counts[4 * place : 4 * place + 4]
        least = _HALF if odd == missing else _MOSTLY
        if odd and count - odd >= least * count:
            return SpoiltColumn(name, odd, example)
    return None
