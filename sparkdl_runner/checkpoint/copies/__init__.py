"""Checkpoints in memory that outlives the ranks, so that a restart need not read its storage."""

from __future__ import annotations
