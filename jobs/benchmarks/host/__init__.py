"""Looks for leftovers of runs on this host."""
