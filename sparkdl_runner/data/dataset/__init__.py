"""Data sets on disk: their manifest, their files, and checks that these are what was written.

Imports ``decode`` and ``parquet`` alone. Imported by what converts and by what reads.
"""
