"""How Parquet files are laid out: their leaves, the sizes of their values, and reading in batches.

Imports ``decode`` alone. Imported by ``dataset``.
"""
