"""The tool behind `make mutants`: what it changes, what it draws, and that no list of it is old."""

from __future__ import annotations

from mutants import sample
from mutants.coverage_map import CoverageMap
from mutants.operators import Mutant, mutants
from mutants.tree import ROOT

SOURCE = b'''\
"""Text with 1 < 2."""
LIMIT = 5
LEAST, _MOST = 1, 9


def first(items: list[int | None], wait_seconds: float = 2.0) -> int:
    """Returns 1."""
    _log.info("at %d", 1)
    for item in items:  # \xc3\xa4
        if item is not None and item >= 3:
            return item
        if self.wait(0.5 + 1, timeout_seconds=3):
            return False
    raise ValueError(f"{len(items) + 1} items")
'''


def test_code_is_changed_and_texts_annotations_logs_and_tunable_values_are_not():
    found = mutants("a.py", SOURCE)
    changed = [SOURCE[one.start : one.end].decode() + " -> " + one.text for one in found]
    assert changed == [
        "items -> ()",
        "item is not None -> (item is None)",
        "item is not None and item >= 3 -> (item is not None or item >= 3)",
        "item >= 3 -> (item < 3)",
        "item >= 3 -> (item > 3)",
        "3 -> 4",
        "return item -> return None",
        "self.wait(0.5 + 1, timeout_seconds=3) -> not (self.wait(0.5 + 1, timeout_seconds=3))",
        "False -> True",
        'raise ValueError(f"{len(items) + 1} items") -> pass',
    ]
    for one in found:
        compile(one.apply(SOURCE), "a.py", "exec", dont_inherit=True)


def mutant(file: str, line: int, *, at_import: bool = False) -> Mutant:
    return Mutant(
        file=file,
        line=line,
        last_line=line,
        start=line,
        end=line,
        text="",
        operator="",
        at_import=at_import,
    )


def test_a_sample_is_the_seeds_and_begins_with_what_was_changed():
    pool = [mutant(file, line) for file in "abc" for line in range(20)]
    drawn = sample.drawn(pool, count=30, seed=7, changed={"b": {3, 4}})
    assert [(one.file, one.line) for one in drawn[:2]] in (
        [("b", 3), ("b", 4)],
        [("b", 4), ("b", 3)],
    )
    assert {one.file for one in drawn[:20]} == {"b"}
    assert {one.file for one in drawn[20:]} == {"a", "c"}
    assert drawn == sample.drawn(pool, count=30, seed=7, changed={"b": {3, 4}})
    assert drawn != sample.drawn(pool, count=30, seed=8, changed={"b": {3, 4}})


def test_the_tests_of_a_line_are_tried_or_else_the_quickest_ones_of_its_file():
    found = CoverageMap(
        suite="tests",
        inputs="",
        failed=[],
        seconds={"t.py::slow": 9.0, "t.py::quick": 1.0, "u.py::other": 2.0},
        lines={"a": {"1": ["t.py::slow", "t.py::quick"], "2": ["u.py::other"]}},
    )
    assert found.tests(mutant("a", 1), 3.0) == ["t.py::quick", "t.py::slow"]
    assert found.tests(mutant("a", 3), 3.0) == ["t.py::quick", "u.py::other"]
    assert found.tests(mutant("a", 2, at_import=True), 3.0) == ["t.py::quick", "u.py::other"]
    assert found.tests(mutant("b", 1), 3.0) == []


def test_a_script_may_be_run_by_whoever_asks_for_its_text():
    scripts = "sparkdl_runner/doctor/scripts"
    found = CoverageMap(
        suite="tests",
        inputs="",
        failed=[],
        seconds={"t.py::imports": 1.0, "t.py::asks": 2.0, "t.py::no": 0.5},
        lines={
            f"{scripts}/__init__.py": {"9": ["t.py::asks"]},
            f"{scripts}/host.py": {"7": ["t.py::imports"]},
            f"{scripts}/folder.py": {"7": ["t.py::no"]},
        },
    )
    for line in (7, 8):
        assert found.tests(mutant(f"{scripts}/host.py", line), 3.0) == [
            "t.py::imports",
            "t.py::asks",
        ]


def test_a_mutant_listed_as_equivalent_is_one_of_the_code_as_it_is():
    known = sample.equivalent()
    assert all(known.values())
    for file in {file for file, _, _ in known}:
        source = (ROOT / file).read_bytes()
        there = {sample.change(one, source) for one in mutants(file, source)}
        for other_file, line, changed in known:
            if other_file == file:
                assert (line, changed) in there, f"no longer a mutant of {file}: {line}"
