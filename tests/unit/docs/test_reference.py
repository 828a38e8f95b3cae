"""The reference is what the docstrings say now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sparkdl_runner
import sparkdl_runner.checkpoint
import sparkdl_runner.data
import sparkdl_runner.estimator
import sparkdl_runner.tracking

GENERATOR = Path(__file__).parents[3] / "docs" / "reference.py"
PACKAGES = {
    "runner.md": sparkdl_runner,
    "data.md": sparkdl_runner.data,
    "tracking.md": sparkdl_runner.tracking,
    "checkpoint.md": sparkdl_runner.checkpoint,
    "estimator.md": sparkdl_runner.estimator,
}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("docs_reference", GENERATOR)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    return generator.pages()


def test_it_is_up_to_date(pages):
    folder = GENERATOR.with_suffix("")
    kept = {path.name: path.read_text() for path in folder.glob("*.md")}
    changed = sorted(name for name in kept.keys() | pages if kept.get(name) != pages.get(name))
    assert not changed, f"docs/reference: {changed} differ from the docstrings; run: make docs"


@pytest.mark.parametrize("file", PACKAGES)
def test_every_public_name_is_there(pages, file):
    names = [name for name in PACKAGES[file].__all__ if not name.startswith("__")]
    assert names
    for name in names:
        assert f"\n## {name}\n" in pages[file]
        assert f"]({file}#{name.lower()}): " in pages["README.md"]


def test_arguments_come_with_their_words_and_defaults(pages):
    assert "\n    seed: int = 0,\n" in pages["data.md"]
    assert "| `seed` | 0 is a seed like any other; up to 2**64 - 1. |" in pages["data.md"]
    assert (
        "| `max_restarts` | `int` | `0` | How often to start all ranks again"
        in (pages["runner.md"])
    )


def test_no_mark_of_another_language_is_left(pages):
    for text in pages.values():
        assert "``" not in text.replace("```", "")
        assert ":func:" not in text
        assert ":class:" not in text
