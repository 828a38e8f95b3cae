"""Runs each suite as ranks of this package and under its own launcher, and says where they differ.

Exit codes: 0 nothing is worse here, 1 something is, 2 there is no such suite.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from foreign import ranks, results
from foreign.suites import NUM_PROC, Suite, suites
from sparkdl_runner import DistributedRunner, RunConfig, RunnerError

SECONDS = 900


def run_here(suite: Suite, folder: Path) -> None:
    """Runs a suite as ranks of this package."""
    config = RunConfig(tracking=False, hang_timeout_seconds=180)
    runner = DistributedRunner(num_proc=-NUM_PROC, backend=suite.backend, config=config)
    try:
        runner.run(ranks.run_tests, file=str(suite.file), folder=str(folder))
    except RunnerError as error:
        print(f"{suite.name}: {error}", file=sys.stderr)


def run_there(suite: Suite, folder: Path) -> None:
    """Runs a suite under its own launcher."""
    command = [*suite.launcher, "-m", "foreign.ranks", str(suite.file), str(folder)]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            process.wait(SECONDS)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"{suite.name}: ended after {SECONDS} s", file=sys.stderr)


def compare(suite: Suite) -> list[str]:
    """Runs a suite twice, prints how it went, and returns what is worse here."""
    with tempfile.TemporaryDirectory() as name:
        found = []
        for run in (run_here, run_there):
            folder = Path(name, run.__name__)
            folder.mkdir()
            run(suite, folder)
            found.append(results.read(folder, NUM_PROC))
    ours, theirs = found
    print(f"\n{suite.name}: as ranks {results.summary(ours)}")
    print(f"{suite.name}: under its own launcher {results.summary(theirs)}", flush=True)
    # With its own launcher broken there would be nothing to be worse than.
    return results.worse(ours, theirs) or ([] if ours else ["no test was run"])


def main() -> int:
    """Reads the command line."""
    known = {suite.name: suite for suite in suites()}
    parser = argparse.ArgumentParser(prog="make foreign", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SUITE", help=f"some of {', '.join(known)}")
    names = parser.parse_args().names or list(known)
    if unknown := set(names) - set(known):
        print(f"There is no suite {', '.join(unknown)}; there are {', '.join(known)}.")
        return 2
    if not os.environ.get("HOROVOD_SOURCE"):
        print("Horovod's tests are left out: HOROVOD_SOURCE names no unpacked source of 0.28.1.")
    problems = [f"{name}: {line}" for name in names for line in compare(known[name])]
    print("\n" + ("\n".join(problems) or "Nothing that passes under its own launcher fails here."))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
