"""Checkpoints in memory that outlives the ranks, so that a restart need not read the storage."""
