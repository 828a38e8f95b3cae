"""Breaks the package in many small ways, one at a time, and says which ones no test sees."""

from __future__ import annotations

import argparse
import difflib
import queue
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mutants import coverage_map, sample
from mutants.operators import Mutant
from mutants.tree import ROOT, Tree, check_namespaces

UNIT, INTEGRATION = "tests/unit", "tests/integration"
ENOUGH = 0.85
# Plugins whose import takes longer than most tests, and that no test here needs in order to run.
_LEAN = ("-pno:anyio", "-pno:hypothesispytest", "-pno:cov")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        mutant: The mutant.
        killed_by: The suite that saw it; empty where none did.
        how: The test that failed first, or why none could.
    """

    mutant: Mutant
    killed_by: str = ""
    how: str


def judge(
    tree: Tree, mutant: Mutant, maps: Sequence[coverage_map.CoverageMap], limit_seconds: float
) -> Verdict:
    """Tries one mutant: suite after suite, up to the first test that fails."""
    source = (ROOT / mutant.file).read_bytes()
    tree.write(mutant.file, mutant.apply(source))
    tried = 0
    try:
        for one in maps:
            tests = one.tests(mutant, limit_seconds)
            tried += len(tests)
            if not tests:
                continue
            # Twice as long as with coverage, and time to start: who takes longer does not end.
            allowed = 60 + 2 * sum(one.seconds[test] for test in tests)
            code, output = tree.pytest(
                tests, "-x", "-q", "--tb=no", *_LEAN, timeout_seconds=allowed
            )
            if code is None:
                how = f"not done after {allowed:.0f} s"
            elif code:
                words = ("FAILED ", "ERROR ", "E  ")
                told = [line for line in output.splitlines() if line.startswith(words)]
                how = told[0] if told else f"pytest ended with {code}"
            else:
                continue
            return Verdict(mutant=mutant, killed_by=one.suite, how=how)
    finally:
        tree.write(mutant.file, source)
    return Verdict(mutant=mutant, how=f"{tried} tests passed" if tried else "no test runs the file")


def judge_all(
    mutants: Sequence[Mutant],
    maps: Sequence[coverage_map.CoverageMap],
    *,
    jobs: int,
    limit_seconds: float,
) -> list[Verdict]:
    """Tries all, some at a time, and says how each went."""
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    verdicts: list[Verdict] = []

    def one(mutant: Mutant) -> None:
        tree, started = trees.get(), time.monotonic()
        try:
            verdict = judge(tree, mutant, maps, limit_seconds)
        finally:
            trees.put(tree)
        verdicts.append(verdict)
        print(
            f"{len(verdicts):4} of {len(mutants)}  {'killed' if verdict.killed_by else 'SURVIVED'} "
            f"{time.monotonic() - started:5.1f} s  {mutant.file}:{mutant.line} {mutant.operator}: "
            f"{verdict.how}",
            flush=True,
        )

    made = [Tree() for _ in range(jobs)]
    try:
        for tree in made:
            trees.put(tree)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(one, mutants))
            except BaseException:  # Ctrl-C: neither the others nor what runs is waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                for tree in made:
                    tree.kill()
                raise
    finally:
        for tree in made:
            tree.close()
    return verdicts


def difference(mutant: Mutant) -> str:
    """The change as a diff."""
    source = (ROOT / mutant.file).read_bytes()
    before, after = source.decode().splitlines(), mutant.apply(source).decode().splitlines()
    lines = difflib.unified_diff(before, after, mutant.file, mutant.file, lineterm="", n=2)
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--base", default="", help="a revision: what changed since comes first")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--file", default="", help="only mutants of files that begin so")
    parser.add_argument(
        "--limit-seconds", type=float, default=60.0, help="for tests not sure to run the line"
    )
    parser.add_argument(
        "--integration", action="store_true", help="make that map too, if there is none"
    )
    options = parser.parse_args()
    # As Ctrl-C: nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    started = time.monotonic()
    try:
        check_namespaces()
        changed = sample.changed_lines(options.base, coverage_map.PACKAGE) if options.base else {}
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    pool = [
        mutant
        for mutant in sample.all_mutants(coverage_map.PACKAGE)
        if mutant.file.startswith(options.file)
    ]
    mutants = sample.drawn(pool, count=options.count, seed=options.seed, changed=changed)
    known = sample.equivalent()
    tried = [
        mutant
        for mutant in mutants
        if (mutant.file, *sample.change(mutant, (ROOT / mutant.file).read_bytes())) not in known
    ]
    maps = []
    for suite, is_wanted in ((UNIT, True), (INTEGRATION, options.integration)):
        found = coverage_map.kept(suite)
        if found is None and is_wanted:
            print(f"Running {suite} once, to see which test runs which line.", flush=True)
            found = coverage_map.made(suite)
        if found is not None:
            maps.append(found)
            for test in found.failed:
                print(f"Left out, since it fails without a mutant: {test}")
    print(
        f"{len(mutants)} of {len(pool)} mutants drawn with seed {options.seed}, "
        f"{len(mutants) - len(tried)} of them known to be equivalent; tested by "
        f"{' and '.join(one.suite for one in maps)}.",
        flush=True,
    )
    verdicts = judge_all(tried, maps, jobs=options.jobs, limit_seconds=options.limit_seconds)
    survivors = [verdict for verdict in verdicts if not verdict.killed_by]
    for verdict in survivors:
        print(f"\nSurvived: {verdict.mutant.operator}; {verdict.how}\n{difference(verdict.mutant)}")
    killed = len(tried) - len(survivors)
    # What another suite alone runs is for that one to see.
    elsewhere = sum(not any(one.runs(verdict.mutant) for one in maps) for verdict in survivors)
    share = killed / len(tried) if tried else 1.0
    by_suite = ", ".join(
        f"{sum(verdict.killed_by == one.suite for verdict in verdicts)} by {one.suite}"
        for one in maps
    )
    print(
        f"\nDrawn {len(mutants)}, equivalent {len(mutants) - len(tried)}, killed {killed} "
        f"({by_suite}), survived {len(survivors)}, {elsewhere} of them on lines that no test of "
        f"these is known to run: {share:.0%} killed, {ENOUGH:.0%} expected; "
        f"{time.monotonic() - started:.0f} s."
    )
    return 0 if share >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
