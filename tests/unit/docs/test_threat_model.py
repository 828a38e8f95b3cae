"""SECURITY.md's threat model: every row says what holds or what does not, and names its tests."""

from __future__ import annotations

import ast
import re

import pytest

from docs_blocks import ROOT

TESTS = ROOT / "tests"
MODEL = (ROOT / "SECURITY.md").read_text().partition("\n## Threat model\n")[2].partition("\n## ")[0]
HEADER = ["can reach", "is held by", "is not held", "shown by"]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in MODEL.splitlines()
    if line.startswith("| ") and not line.startswith("| can reach ")
]


def test_every_attacker_has_a_table() -> None:
    attackers = re.findall(r"^### (.+)$", MODEL, re.MULTILINE)
    assert len(attackers) == MODEL.count(f"| {' | '.join(HEADER)} |") >= 5
    assert len(ROWS) >= 20


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_whole_and_its_tests_exist(row: list[str]) -> None:
    assert len(row) == len(HEADER)
    what, held, not_held, shown = row
    assert what
    assert held or not_held
    named = re.findall(r"`([^`]+)`", shown)
    assert named, "the row names no test"
    assert shown == ", ".join(f"`{test}`" for test in named)
    for test in named:
        file, _, function = test.partition("::")
        source = (TESTS / file).read_text()
        functions = [node.name for node in ast.parse(source).body if hasattr(node, "name")]
        assert any(name.startswith("test_") for name in functions), file
        assert not function or function in functions, test
