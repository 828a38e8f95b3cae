"""Measures what this package is fast at, beside what else there is, in one and the same run.

python jobs/benchmark.py launch      # from a call to its result
python jobs/benchmark.py convert     # from a DataFrame to files
python jobs/benchmark.py loader      # from files to batches
python jobs/benchmark.py mixing      # how well batches of a sorted table mix
python jobs/benchmark.py memory      # the memory of a rank, beside its budget
python jobs/benchmark.py remote      # from an S3 server to batches
python jobs/benchmark.py images      # JPEGs, beside torch's DataLoader and others
python jobs/benchmark.py fit         # Trainer beside a loop that is written by hand
python jobs/benchmark.py faults      # from a fault to its error, and what is left
python jobs/benchmark.py slow-rank   # whether a slow rank is named, and no healthy one
python jobs/benchmark.py goodput     # a training whose ranks are killed, beside Ray Train
python jobs/benchmark.py scale       # the driver with up to 4,096 simulated ranks
python jobs/benchmark.py life        # a named training whose driver is killed
python jobs/benchmark.py storage     # checkpoints that others read, and storage that fails
python jobs/benchmark.py endurance   # many runs in one session, and much output
python jobs/benchmark.py checkpoint  # what saving costs the step loop
python jobs/benchmark.py tracking    # what telling MLflow costs the step loop
python jobs/benchmark.py frameworks  # Lightning and others, beside torchrun
python jobs/benchmark.py transform   # from a DataFrame to its predictions
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks import (
    checkpoint,
    convert,
    endurance,
    faults,
    fit,
    frameworks,
    goodput,
    images,
    launch,
    life,
    loader,
    memory,
    mixing,
    remote,
    scale,
    slow_rank,
    storage,
    tracking,
    transform,
)
from benchmarks.figures import versions

BENCHMARKS = {
    "launch": launch,
    "convert": convert,
    "images": images,
    "loader": loader,
    "memory": memory,
    "mixing": mixing,
    "remote": remote,
    "fit": fit,
    "frameworks": frameworks,
    "faults": faults,
    "goodput": goodput,
    "slow-rank": slow_rank,
    "scale": scale,
    "endurance": endurance,
    "life": life,
    "storage": storage,
    "checkpoint": checkpoint,
    "tracking": tracking,
    "transform": transform,
}


def main() -> int:
    """Runs one benchmark, writes its report as JSON and prints it as a table.

    Returns:
        The exit code: 1 if something of ours gave no figure, or a wrong one.
    """
    parser = argparse.ArgumentParser(description="Measure this package beside its peers.")
    subparsers = parser.add_subparsers(required=True, metavar="BENCHMARK", dest="benchmark")
    for name, benchmark in BENCHMARKS.items():
        one = subparsers.add_parser(
            name,
            help=benchmark.HELP,
            description=benchmark.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        benchmark.add_arguments(one)
        output = Path(f"benchmark-{name}.json")
        one.add_argument("--output", type=Path, default=output, help="the JSON file")
    arguments = parser.parse_args()
    # An exception, so that the benchmark ends its processes and removes its network namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    benchmark = BENCHMARKS[arguments.benchmark]
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    report = {
        "benchmark": settings.pop("benchmark"),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
        "settings": settings,
        **benchmark.measure(arguments),
    }
    arguments.output.write_text(json.dumps(report, indent=2, default=str) + "\n")
    print(f"\n{benchmark.table(report)}\n\nWritten to {arguments.output}")
    return 0 if benchmark.is_good(report) else 1


if __name__ == "__main__":
    sys.exit(main())
