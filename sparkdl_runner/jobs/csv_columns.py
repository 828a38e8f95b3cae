"""A column of numbers that one odd value has made a column of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of a column's values; where fewer are numbers, it may well be meant as a text.
_MOSTLY = 0.9


class SpoiltColumn(NamedTuple):
    """A column whose values are numbers but for a few."""

    name: str
    texts: int
    """How many are not."""
    example: str
    """One of those."""


def spoilt_column(frame: DataFrame) -> SpoiltColumn | None:
    """The first column of texts that are numbers nearly all. Reads the rows once, if there is one.

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
        sums += [
            F.count(F.expr(column)),
            F.count(F.when(is_text, 1)),
            F.min(F.when(is_text, F.expr(column))),
        ]
    counts = tuple(frame.agg(*sums).first() or ())
    for name, count, odd, example in zip(
        texts, counts[::3], counts[1::3], counts[2::3], strict=True
    ):
        if odd and count - odd >= _MOSTLY * count:
            return SpoiltColumn(name, odd, example)
    return None
