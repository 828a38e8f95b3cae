"""Measures what this package is fast at, beside what else there is, in one and the same run.

python jobs/benchmark.py launch      # from a call to its result
"""

from __future__ import annotations

import argparse
import sys

import launch_benchmark


def main() -> int:
    """Runs one benchmark and returns its exit code."""
    parser = argparse.ArgumentParser(description="Measure this package beside its peers.")
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in (launch_benchmark,):
        benchmark.add_parser(benchmarks)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
