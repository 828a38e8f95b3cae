"""Which tests run a line. Made once by running a suite of tests, and kept below ``build/``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass
from pathlib import Path

import coverage

from mutants.operators import Mutant
from mutants.tree import ROOT, Tree, digest

PACKAGE = "sparkdl_runner"
# Scripts that are given to another Python as text, where coverage does not know them: any test that
# asks this module for the text may run any line.
_SCRIPTS = f"{PACKAGE}/doctor/scripts"
_TEXT_OF_SCRIPTS = f"{_SCRIPTS}/__init__.py"
_INPUTS = (PACKAGE, "tests", "jobs", "conf", "setup.cfg")
# The processes that tests start read this too. Coverage's own `patch = subprocess` would hand them
# the settings of the first process, and with them its context.
_CONFIGURATION = """\
[run]
source = {tree}/{package}
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {tree}/build/measured/.coverage
parallel = true
disable_warnings = no-data-collected,module-not-imported,module-not-measured
"""


@dataclass(frozen=True, kw_only=True)
class CoverageMap:
    """What one suite of tests runs.

    Attributes:
        suite: The suite's folder.
        inputs: A digest of all files that this depends on.
        seconds: How long each test takes that passes.
        failed: The tests that fail without any mutant; they see nothing.
        lines: By file and line, the tests that run it.
    """

    suite: str
    inputs: str
    seconds: dict[str, float]
    failed: list[str]
    lines: dict[str, dict[str, list[str]]]

    def runs(self, mutant: Mutant) -> set[str]:
        """The tests that are known to run the line."""
        known = self.lines.get(mutant.file, {})
        changed = [str(line) for line in range(mutant.line, mutant.last_line + 1)]
        return {test for line in changed for test in known.get(line, ())}

    def tests(self, mutant: Mutant, limit_seconds: float) -> list[str]:
        """The tests to try, a file's together, the quickest files first.

        Those that run the line. Where it is run by no test that is known (by an import, or in a
        process that was killed, was forked by a JVM or was given it as text), those that run
        anything of the file or ask for its text, up to ``limit_seconds`` in all.
        """
        exact = self.runs(mutant)
        is_script = mutant.file.startswith(_SCRIPTS)
        if exact and not mutant.at_import and not is_script:
            return self._in_order(exact)
        files = [mutant.file, _TEXT_OF_SCRIPTS] if is_script else [mutant.file]
        near = {
            test for file in files for tests in self.lines.get(file, {}).values() for test in tests
        }
        return self._in_order(near, limit_seconds)

    def _in_order(self, tests: Iterable[str], limit_seconds: float = float("inf")) -> list[str]:
        left, chosen = limit_seconds, list[str]()
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            left -= self.seconds[test]
            if left < 0 and chosen:
                break
            chosen.append(test)
        by_file: dict[str, list[str]] = {}
        for test in chosen:
            by_file.setdefault(test.partition("::")[0], []).append(test)
        groups = sorted(
            by_file.values(), key=lambda group: sum(self.seconds[test] for test in group)
        )
        return [test for group in groups for test in group]


def _kept(suite: str) -> Path:
    return ROOT / "build" / "mutants" / f"{suite.replace('/', '-')}.json"


def kept(suite: str) -> CoverageMap | None:
    """The suite's map, if one was made of the files as they are."""
    try:
        found = CoverageMap(**json.loads(_kept(suite).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.inputs == digest(*_INPUTS) else None


def made(suite: str) -> CoverageMap:
    """Runs the whole suite once, and keeps what it found.

    Raises:
        RuntimeError: pytest did not come to its end.
    """
    inputs, tree = digest(*_INPUTS), Tree()
    try:
        measured = tree.folder / "build" / "measured"
        measured.mkdir(parents=True)
        outcomes, configuration = measured / "outcomes.json", measured / "coveragerc"
        configuration.write_text(_CONFIGURATION.format(tree=tree.folder, package=PACKAGE))
        code, output = tree.pytest(
            [suite],
            "-q",
            "-pmutants.which_test",
            environment={
                "COVERAGE_PROCESS_START": str(configuration),
                "MUTANTS_OUTCOMES": str(outcomes),
            },
        )
        if code not in (0, 1) or not outcomes.exists():
            raise RuntimeError(f"pytest ended with {code}, expected 0 or 1:\n{output[-3000:]}")
        found = json.loads(outcomes.read_text())
        lines = _lines(tree.folder, configuration, found["seconds"].keys())
    finally:
        tree.close()
    made = CoverageMap(suite=suite, inputs=inputs, lines=lines, **found)
    _kept(suite).parent.mkdir(parents=True, exist_ok=True)
    _kept(suite).write_text(json.dumps(asdict(made)))
    if made.failed:
        print(output[-3000:], file=sys.stderr)
    return made


def _lines(folder: Path, configuration: Path, known: Set[str]) -> dict[str, dict[str, list[str]]]:
    """By file and line, the tests that run it; in their own process or in one they started."""
    measured = coverage.Coverage(config_file=str(configuration))
    measured.combine([str(configuration.parent)])
    data = measured.get_data()
    lines: dict[str, dict[str, list[str]]] = {}
    for path in data.measured_files():
        of_file = lines.setdefault(str(Path(path).relative_to(folder)), {})
        for line, contexts in data.contexts_by_lineno(path).items():
            tests = {re.sub(r" \((setup|call|teardown)\)$", "", context) for context in contexts}
            if tests := tests & known:
                of_file[str(line)] = sorted(tests)
    return lines
