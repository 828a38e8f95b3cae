"""Folders are deleted in one place, which follows no link."""

from __future__ import annotations

import ast
from pathlib import Path

import sparkdl_runner.data

ALLOWED = {
    "dataset/held_folder.py": {"delete_dir", "rmtree"},
    "read/cache_folder.py": {"rmtree"},  # Below a folder of this user alone.
}


def test_nothing_else_of_the_data_wing_deletes_folders() -> None:
    wing, found = Path(next(iter(sparkdl_runner.data.__path__))), {}
    for path in wing.rglob("*.py"):
        called = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        }
        if deleting := called & {"delete_dir", "delete_dir_contents", "rmtree", "removedirs"}:
            found[str(path.relative_to(wing))] = deleting
    assert found == ALLOWED
