"""Measures what this package is fast at, beside what else there is, in one and the same run.

python jobs/benchmark.py launch      # from a call to its result
python jobs/benchmark.py convert     # from a DataFrame to files
python jobs/benchmark.py loader      # from files to batches
python jobs/benchmark.py faults      # from a fault to its error, and what is left
python jobs/benchmark.py endurance   # many runs in one session, and much output
python jobs/benchmark.py checkpoint  # what saving costs the step loop
python jobs/benchmark.py tracking    # what telling MLflow costs the step loop
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import checkpoint, convert, endurance, faults, launch, loader, tracking


def main() -> int:
    """Runs one benchmark and returns its exit code."""
    parser = argparse.ArgumentParser(description="Measure this package beside its peers.")
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in (launch, convert, loader, faults, endurance, checkpoint, tracking):
        benchmark.add_parser(benchmarks)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
