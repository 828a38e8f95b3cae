"""Ranks, readers and trainings, which run in processes of their own."""
