"""The messages in the troubleshooting page are those of the code, to the letter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"\*\*`([^*]+)`\*\*", PAGE)
SHORTEST = 4  # characters of a part between two holes that says anything


@cache
def texts() -> list[str]:
    """All texts of each file, one a line. Of an f-string, each text between two values."""
    paths = sorted((ROOT / "sparkdl_runner").rglob("*.py"))
    # What Python keeps of a file that it has compiled already: to parse all of them takes seconds.
    codes = [SourceFileLoader(path.stem, str(path)).get_code(path.stem) for path in paths]
    return ["\n".join(constants(code)) for code in codes]


def constants(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (one for one in constant if isinstance(one, str))
        elif isinstance(constant, CodeType):
            yield from constants(constant)


def is_said(message: str) -> bool:
    """Whether one file says all parts of the message that stand between its holes."""
    parts = [part.strip() for part in message.split("…")]
    parts = [part for part in parts if len(part) >= SHORTEST]
    return bool(parts) and any(all(part in text for part in parts) for text in texts())


def test_there_are_many():
    assert len(MESSAGES) > 50
    assert len(MESSAGES) == len(set(MESSAGES))


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_it(message):
    assert is_said(message)


def test_what_nobody_says_is_found():
    assert not is_said("There is no Spark sesssion: create one with …")
