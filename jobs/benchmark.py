"""Measures what this package is fast at, beside what else there is, in one and the same run.

python jobs/benchmark.py all         # every part, within an hour; --quick: ten minutes
python jobs/benchmark.py launch      # one part, with its own options
python jobs/benchmark.py peers       # makes the environment of peers that no lane has
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.parts import PARTS
from benchmarks.peers.environment import make_environment
from benchmarks.suite.compare import comparison
from benchmarks.suite.mlflow_run import log
from benchmarks.suite.page import page
from benchmarks.suite.report import case_report, missed, part_report, suite_report
from benchmarks.suite.text import text
from benchmarks.suite.turns import run

ALL, PEERS = "all", "peers"


def main() -> int:
    """Runs one part or all, writes the report as JSON and as a page, and prints it.

    Returns:
        The exit code: 1 if a goal was missed, or something of ours gave no figure.
    """
    arguments = _parser().parse_args()
    if arguments.part == PEERS:
        make_environment()
        return 0
    # An exception, so that the benchmark ends its processes and removes its network namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    old = json.loads(arguments.compare.read_text()) if arguments.compare else None
    if arguments.part == ALL:
        parts = {name: _in_process(name, arguments.quick) for name in arguments.parts}
    else:
        parts = {arguments.part: _measured(arguments)}
    command = shlex.join(["python", "jobs/benchmark.py", *sys.argv[1:]])
    report = suite_report(command, time.strftime("%Y-%m-%d"), parts)
    arguments.output.write_text(json.dumps(report, indent=2, default=str) + "\n")
    html = arguments.output.with_suffix(".html")
    html.write_text(page(report, old))
    if arguments.experiment:
        log(report, arguments.experiment, [arguments.output, html])
    told = [text(report), *([comparison(old, report)] if old else [])]
    print("\n" + "\n\n".join(told) + f"\n\nWritten to {arguments.output} and {html}")
    return 1 if missed(report) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(required=True, metavar="PART", dest="part")
    every = subparsers.add_parser(ALL, help="all parts, each in a process of its own")
    every.add_argument("--quick", action="store_true", help="few turns of small cases")
    every.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    for name, part in PARTS.items():
        one = subparsers.add_parser(
            name,
            help=part.HELP,
            description=part.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        part.add_arguments(one)
    for name, one in subparsers.choices.items():
        output = Path(f"benchmark-{name}.json")
        one.add_argument("--output", type=Path, default=output, help="the JSON file")
        one.add_argument("--compare", type=Path, metavar="OLD.json", help="an earlier report")
        one.add_argument("--experiment", metavar="NAME", help="also logs an MLflow run there")
    subparsers.add_parser(PEERS, help="makes the environment of peers that no lane has")
    return parser


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the cases of one part, one after another."""
    own = {"part", "output", "compare", "experiment"}
    settings = {key: value for key, value in vars(arguments).items() if key not in own}
    with closing(PARTS[arguments.part].cases(arguments)) as cases:
        return part_report(settings, [case_report(case, run(case)) for case in cases])


def _in_process(name: str, quick: bool) -> dict[str, Any]:
    """Runs one part in a process of its own, with its short options if asked."""
    print(f"\n{name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        output = Path(folder) / "part.json"
        short = PARTS[name].QUICK if quick else []
        command = [sys.executable, __file__, name, *short, "--output", str(output)]
        child = subprocess.Popen(command, stdout=sys.stderr)
        try:
            child.wait()
        finally:
            child.terminate()
            child.wait()
        if not output.exists():
            return {**part_report({}, []), "unavailable": f"exit code {child.returncode}"}
        part: dict[str, Any] = json.loads(output.read_text())["parts"][name]
        return part


if __name__ == "__main__":
    sys.exit(main())
