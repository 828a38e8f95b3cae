"""The leaves of a Parquet file: what its pages hold. Some together are a column of Arrow's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.parquet.sizes import is_variable, leaf_widths


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


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What follows from the schema of a file, and is the same in all files that have it."""

    schema: pa.Schema
    """Without metadata."""
    owners: list[str]
    nested: frozenset[str]
    """Columns whose nulls no statistics count. The others have one leaf."""
    widths: dict[str, list[int | None]]
    """Of columns of variable size: ``leaf_widths``."""
    source: tuple[Any, Any]
    """Parquet's schema, and what the writer's footer has beside it, as ``fit`` compares them."""

    @classmethod
    def of(cls, parquet: pq.ParquetFile, bare: pq.ParquetFile | None = None) -> Columns:
        """Those of a file; ``bare`` is the same ``without_arrow_schema``, for ``fit``."""
        schema = parquet.schema_arrow.remove_metadata()
        owners = owners_of(parquet)
        counts = Counter(owners)
        widths = {
            field.name: leaf_widths(field.type) for field in schema if is_variable(field.type)
        }
        return cls(
            schema=schema,
            owners=owners,
            nested=frozenset(field.name for field in schema if pa.types.is_nested(field.type)),
            widths={name: of for name, of in widths.items() if len(of) == counts[name]},
            source=((bare or parquet).schema, (bare or parquet).metadata.metadata),
        )

    def is_of(self, parquet: pq.ParquetFile) -> bool:
        """Whether a file has the same schema."""
        return bool(self.schema.equals(parquet.schema_arrow))

    def fit(self, bare: pq.ParquetFile) -> bool:
        """Whether a file ``without_arrow_schema`` surely has the same schema.

        It may also if its writer noted something else beside it, such as pandas its index.
        """
        schema, more = self.source
        return bool(schema.equals(bare.schema) and more == bare.metadata.metadata)
