"""Runs each suite here and under its own launcher, and says where the two differ.

Exit codes: 0 nothing is worse here, 1 something is, 2 there is no such suite.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from foreign import results
from foreign.launches import Launch
from foreign.suites import Suite, suites


def compare(suite: Suite) -> list[str]:
    """Runs a suite twice, prints how it went, and returns what differs without a known reason."""
    ours, theirs = (_outcomes(suite, launch) for launch in (suite.here, suite.there))
    print(f"\n{suite.name}: here {results.summary(ours)}")
    print(f"{suite.name}: under its own launcher {results.summary(theirs)}", flush=True)
    for name, how in theirs.items():
        if how not in ("passed", "skipped"):
            print(f"{suite.name}: {name} {how} under its own launcher, {ours.get(name)} here")
    worse = results.worse(ours, theirs)
    for name in worse.keys() & suite.known.keys():
        print(f"{suite.name}: {name} {worse[name]}, as known: {suite.known[name]}")
    # With its own launcher broken there would be nothing to be worse than.
    return [
        *([] if ours else ["no test was run"]),
        *(
            f"{name}: passes under its own launcher, {how} here"
            for name, how in worse.items()
            if name not in suite.known
        ),
        *(f"{name}: known to differ, and does not" for name in suite.known.keys() - worse.keys()),
    ]


def _outcomes(suite: Suite, launch: Launch) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        for arguments in suite.starts:
            launch(Path(folder), suite.num_proc, arguments)
        return results.read(Path(folder), suite.num_proc)


def main() -> int:
    """Reads the command line."""
    known = {suite.name: suite for suite in suites()}
    parser = argparse.ArgumentParser(prog="make foreign", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SUITE", help=f"some of {', '.join(known)}")
    names = parser.parse_args().names or list(known)
    if unknown := set(names) - set(known):
        print(f"There is no suite {', '.join(unknown)}; there are {', '.join(known)}.")
        return 2
    for variable, whose in (("HOROVOD_SOURCE", "Horovod 0.28.1"), ("SPARK_SOURCE", "Spark")):
        if not os.environ.get(variable):
            print(f"The tests of {whose} are left out: {variable} names no unpacked source of it.")
    problems = [f"{name}: {line}" for name in names for line in compare(known[name])]
    print("\n" + ("\n".join(problems) or "Nothing that passes under its own launcher fails here."))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
