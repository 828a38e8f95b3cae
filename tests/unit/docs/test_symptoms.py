"""The messages in the troubleshooting page are those of the code, to the letter."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"\*\*`([^*]+)`\*\*", PAGE)
SHORTEST = 4  # characters of a part between two holes that says anything


def literals(path: Path) -> str:
    """All texts of a file, one a line, with a hole where a value is put in."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(re.sub(r"\{[^}]*\}", "…", node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            texts.append("".join(map(str, parts)))
    return "\n".join(texts)


TEXTS = [literals(path) for path in sorted((ROOT / "sparkdl_runner").rglob("*.py"))]


def is_said(message: str) -> bool:
    """Whether one file says all parts of the message that stand between its holes."""
    parts = [part.strip() for part in message.split("…")]
    parts = [part for part in parts if len(part) >= SHORTEST]
    return bool(parts) and any(all(part in text for part in parts) for text in TEXTS)


def test_there_are_many():
    assert len(MESSAGES) > 50
    assert len(MESSAGES) == len(set(MESSAGES))


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_it(message):
    assert is_said(message)


def test_what_nobody_says_is_found():
    assert not is_said("There is no Spark sesssion: create one with …")
