"""Measures what this package is fast at, beside what else there is, in one and the same run.

python jobs/benchmark.py all         # every part, about an hour; --quick: ten minutes
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
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from benchmarks.parts import PARTS
from benchmarks.peers.environment import make_environment, peers_versions
from benchmarks.suite.compare import comparison
from benchmarks.suite.machine import versions
from benchmarks.suite.mlflow_run import log
from benchmarks.suite.options import add_options, complete
from benchmarks.suite.page import page
from benchmarks.suite.report import case_report, missed, part_report, suite_report
from benchmarks.suite.text import text
from benchmarks.suite.turns import reason_of, run

ALL, PEERS = "all", "peers"
MOST_SECONDS, END_SECONDS = 1500, 60
"""Of a part, within all, and of its end where it is asked to end."""


def main() -> int:
    """Runs one part or all, writes the report as JSON and as a page, and prints it.

    Returns:
        The exit code: 1 if a goal was missed, or something of ours gave no figure.
    """
    arguments = _parser().parse_args()
    if arguments.part == PEERS:
        make_environment()
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "jobs/benchmark.py", *sys.argv[1:]])
    what = command, time.strftime("%Y-%m-%d"), {**versions(), **peers_versions()}
    all_parts = _all(arguments.parts, arguments.quick) if arguments.part == ALL else None
    for parts in all_parts or [{arguments.part: _measured(arguments)}]:
        report = suite_report(*what, parts, arguments.keep)
        arguments.output.write_text(json.dumps(report, indent=2, default=str) + "\n")
    html = arguments.output.with_suffix(".html")
    html.write_text(page(report, arguments.compare))
    measured = {name: one for name, one in report["parts"].items() if "from" not in one}
    new = {**report, "parts": measured}
    told = [text(new)]
    if arguments.compare:
        told.append(comparison(arguments.compare, report))
    print("\n" + "\n\n".join(told) + f"\n\nWritten to {arguments.output} and {html}")
    if arguments.experiment:
        log(new, arguments.experiment, [arguments.output, html])
    return 1 if missed(new) else 0


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
        add_options(one, part.OPTIONS)
    for name, one in subparsers.choices.items():
        output = Path(f"benchmark-{name}.json")
        one.add_argument("--output", type=Path, default=output, help="the JSON file")
        one.add_argument("--compare", type=_report, metavar="OLD.json", help="an earlier report")
        one.add_argument("--keep", type=_report, metavar="OLD.json", help="has the other parts")
        one.add_argument("--experiment", metavar="NAME", help="also logs an MLflow run there")
    subparsers.add_parser(PEERS, help="makes the environment of peers that no lane has")
    return parser


def _report(path: str) -> dict[str, Any]:
    """Reads an earlier report."""
    try:
        report: dict[str, Any] = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path!r} cannot be read: {error}") from error
    if not {"command", "date", "machine", "versions", "parts"} <= set(report):
        raise argparse.ArgumentTypeError(f"{path!r} is no report of this benchmark")
    return report


def _end(number: int, _: object) -> None:
    """Ends by an exception, once, so that a benchmark ends its processes and removes its files."""
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the cases of one part, one after another; an error between two ends them."""
    own = {"part", "output", "compare", "keep", "experiment"}
    complete(arguments, PARTS[arguments.part].OPTIONS)
    settings = {key: value for key, value in vars(arguments).items() if key not in own}
    began, end = time.monotonic(), {}
    reports: list[dict[str, Any]] = []
    try:
        with closing(PARTS[arguments.part].cases(arguments)) as cases:
            reports += (case_report(case, run(case)) for case in cases if case.sides)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        end = {"unavailable": reason_of(error)}
    seconds = round(time.monotonic() - began)
    return {**part_report(settings, reports), "seconds": seconds, **end}


def _all(names: list[str], quick: bool) -> Iterator[dict[str, Any]]:
    """Runs parts, and yields all after each; once it is interrupted, it runs no more."""
    parts = {name: {**part_report({}, []), "unavailable": "interrupted before"} for name in names}
    with suppress(KeyboardInterrupt, SystemExit):
        for name in names:
            parts[name] = _in_process(name, quick)
            yield parts
    yield parts


def _in_process(name: str, quick: bool) -> dict[str, Any]:
    """Runs one part in a process of its own, with its short options if asked."""
    print(f"\n{name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        output = Path(folder) / "part.json"
        command = [sys.executable, __file__, name, *["--quick"] * quick, "--output", str(output)]
        # An interrupt comes to this process alone, which then asks the part to end, once.
        child = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
        end = ""
        try:
            child.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            end = f"not done after {MOST_SECONDS:,} seconds"
        finally:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
            child.kill()
            child.wait()
        if not output.exists():
            end = end or f"exit code {child.returncode}"
            return {**part_report({}, []), "unavailable": end}
        part: dict[str, Any] = json.loads(output.read_text())["parts"][name]
        return part


if __name__ == "__main__":
    sys.exit(main())
