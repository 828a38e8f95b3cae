"""The leaves of a Parquet file: what its pages hold. Some together are a column of Arrow's."""

from __future__ import annotations

import pyarrow.parquet as pq


def owners_of(parquet: pq.ParquetFile) -> list[str]:
    """For each leaf column of Parquet, the column of the schema that it belongs to."""
    names = set(parquet.schema_arrow.names)
    owners = []
    for leaf in range(len(parquet.schema)):
        # Joined by dots, which may be in names, too: the longest name that fits is its owner.
        name = parquet.schema.column(leaf).path
        while name and name not in names:
            name = name.rpartition(".")[0]
        owners.append(name)
    return owners
