"""Starts ranks, supervises them and starts them again: three processes, and what they say."""
