"""The benchmarks of ``jobs/benchmark.py``; no file here is a job of its own.

Each benchmark has the same five names: ``HELP``, ``add_arguments``, ``measure``, which returns the
report, ``table``, which shows it, and ``is_good``, which judges it.
"""
