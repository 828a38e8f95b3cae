"""Databricks' source format: a notebook as a Python file that Git can show."""

from __future__ import annotations

from pathlib import Path

import nbformat

HEADER = "# Databricks notebook source"
CELL_MARK = "# COMMAND ----------"
MAGIC = "# MAGIC"


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Reads a notebook as Databricks does.

    Args:
        path: A file in source format, with cells of Python and of Markdown.

    Returns:
        The same cells as a Jupyter notebook.

    Raises:
        ValueError: Databricks would not take it for a notebook, or a cell is of neither kind.
    """
    header, _, body = path.read_text().partition("\n")
    if header != HEADER:
        raise ValueError(f"{path.name} begins with {header!r}; expected {HEADER!r}.")
    cells = [_cell(text.strip("\n"), path.name) for text in body.split(f"\n{CELL_MARK}\n")]
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "title": path.stem,
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
    )


def _cell(text: str, name: str) -> nbformat.NotebookNode:
    lines = text.splitlines()
    magic = [line.removeprefix(MAGIC).removeprefix(" ") for line in lines if line.startswith(MAGIC)]
    if not magic:
        return nbformat.v4.new_code_cell(text)
    if len(magic) != len(lines) or not magic[0].startswith("%md"):
        raise ValueError(f"{name}: a cell is neither all Python nor all Markdown: {lines[0]!r}.")
    return nbformat.v4.new_markdown_cell("\n".join([magic[0][len("%md") :], *magic[1:]]).strip())
