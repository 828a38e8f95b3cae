"""How the Parquet files of a conversion are written, by whichever writer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """How to write the Parquet files."""

    row_group_size_bytes: int
    compression_codec: str
    dtype: str | None
