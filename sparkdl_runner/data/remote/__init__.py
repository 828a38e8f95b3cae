"""Parquet files on remote storage: which bytes to ask for, when, and what is kept on disk."""
