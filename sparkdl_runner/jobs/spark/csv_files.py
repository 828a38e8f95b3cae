"""CSV files: the reader's options, and a check that header and types were read as meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sparkdl_runner.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's own defaults take the first line for a row, and every number for a text.
CSV_OPTIONS = {"header": True, "inferSchema": True}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
# The share of numbers from which a column of texts was probably meant as numbers.
_MOSTLY = 0.9
# The same where all other values are words for a missing value.
_HALF = 0.5
_MISSING = ("n/a", "na", "#n/a", "null", "none", "nil", "missing", "unknown", "-", "--", "?", ".")


def check_csv(
    frame: DataFrame, place: str, options: Iterable[str], columns: Sequence[str] | None
) -> None:
    """Refuses a file without rows, one without a header, and numbers that were read as texts.

    Args:
        frame: As Spark has read it.
        place: What a person calls the files.
        options: Of the reader, those that the person has given: what they say is meant.
        columns: Which will be used; None for all.

    Raises:
        ConfigError: It was probably meant in another way.
    """
    given = {name.lower() for name in options}
    numbers = [name for name in frame.columns if _NUMBER.fullmatch(name)]
    if "header" not in given and numbers:
        raise ConfigError(
            f"the first line of {place} holds {numbers[0]}, and should be the names of the "
            "columns: say by options {header: false} that it is a row like the others (columns are "
            "_c0, _c1, … then), or by {header: true} that it is the header."
        )
    if "inferschema" in given:
        return
    # Without a row Spark takes each column for texts.
    if all(kind == "string" for _, kind in frame.dtypes) and frame.isEmpty():
        raise ConfigError(
            f"{place} has a header ({', '.join(frame.columns)}) and no rows: look at what wrote it."
        )
    kept = [column for column in frame.columns if columns is None or column in columns]
    spoilt = spoilt_column(frame.select(*[f"`{column}`" for column in kept]))
    if spoilt is not None:
        example = repr(spoilt.example[:40])
        raise ConfigError(
            f"the column {spoilt.name!r} of {place} holds numbers, and {spoilt.texts} other "
            f"{'value' if spoilt.texts == 1 else 'values'} such as {example}, so that it would be "
            f"read as texts: say by options {{nullValue: {example}}} what stands for a missing "
            f"number, and by where: {spoilt.name} is not null that its rows are left out; or by "
            "options {inferSchema: true} that texts are meant."
        )


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
