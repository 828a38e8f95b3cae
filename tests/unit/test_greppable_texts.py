"""A message that a person has seen is found in the code by its first words, without an editor.

A literal of several lines is cut where a line is full. Its first three words, or the first three
between two values, stand on one line, so that grep finds them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sparkdl_runner

PACKAGE = Path(sparkdl_runner.__file__).parent
WORDS = 3


def first_words(parts: list[str]) -> str | None:
    """The words by which one would look for a text that has these parts between its values."""
    for part in parts:
        words = re.sub(r"^\W+", "", part).split()
        if len(words) >= WORDS:
            return " ".join(words[:WORDS])
    return None


def texts_cut_too_early(source: str) -> Iterator[str]:
    lines = [
        line.replace("{{", "{").replace("}}", "}").replace('\\"', '"')
        for line in source.splitlines()
    ]
    inside = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(value) for value in node.values}
            values = [value for value in node.values if isinstance(value, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            values = [node]
        else:
            continue
        # A docstring has lines of its own; a pattern's parts are no words.
        if id(node) in inside or "\n" in "".join(value.value for value in values):
            continue
        wanted = first_words([value.value for value in values])
        shown = lines[node.lineno - 1 : node.end_lineno]
        if wanted and "\\" not in wanted and not any(wanted in line for line in shown):
            yield f"{node.lineno}: {wanted}"


def test_the_first_words_of_a_message_are_on_one_line() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{text}"
        for path in PACKAGE.rglob("*.py")
        for text in texts_cut_too_early(path.read_text())
    }
    assert found == set()


def test_a_text_that_is_cut_too_early_is_seen() -> None:
    for source in (
        'x = ("There is "\n     "no session here")',
        'x = (f"rank {1} has "\n     f"no session on {2}")',
    ):
        assert list(texts_cut_too_early(source)), source
    assert not list(texts_cut_too_early('x = (f"rank {1} "\n     f"has no session on {2}")'))
