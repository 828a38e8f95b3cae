"""The tables that are read."""
