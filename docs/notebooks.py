"""Writes ``notebooks/*.ipynb`` from the Databricks sources beside them: ``make docs``.

A source is a Python file that Git can show. Jupyter, VS Code and Colab open the other format.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
HEADER = "# Databricks notebook source"
CELL_MARK = "# COMMAND ----------"
MAGIC = "# MAGIC"

# What pip calls a module that a notebook imports, if it is not what Python calls it.
_PACKAGES = {
    "sklearn": "scikit-learn",
    "sparkdl_runner": "FOLDER[spark,torch,mlflow,estimator]",
}
_HOROVOD = """\
if find_spec("horovod") is None:
    build = f"!{sys.executable} -m sparkdl_runner build-horovod"
    print(f"This notebook needs Horovod, built by:  {build}")
"""
_CHECK = """\
# Names what this notebook needs and does not find here.
import os
import shutil
import sys
from importlib.util import find_spec

needed = {packages}
if missing := [package for module, package in needed.items() if find_spec(module) is None]:
    folder = ".." if os.path.isdir("../sparkdl_runner") else "FOLDER"
    quoted = " ".join(f'"{{package}}"' for package in missing).replace("FOLDER", folder)
    print(f"Run this in a cell, and restart the kernel:  %pip install {{quoted}}")
    if "FOLDER" in quoted:
        print("FOLDER is a clone of this project, or a wheel of it.")
if not (os.environ.get("JAVA_HOME") or shutil.which("java") or os.environ.get("SPARK_REMOTE")):
    print("Spark needs Java 17 or 21: install it, and set JAVA_HOME.")
"""


def read_source(path: Path) -> list[dict[str, Any]]:
    """Reads a notebook as Databricks does.

    Args:
        path: A file in source format, with cells of Python and of Markdown.

    Returns:
        Its cells as Jupyter's.

    Raises:
        ValueError: Databricks would not take it for a notebook, or a cell is of neither kind.
    """
    header, _, body = path.read_text().partition("\n")
    if header != HEADER:
        raise ValueError(f"{path.name} begins with {header!r}; expected {HEADER!r}.")
    return [_cell(text.strip("\n"), path.name) for text in body.split(f"\n{CELL_MARK}\n")]


def notebook(path: Path) -> dict[str, Any]:
    """The same as a Jupyter notebook, with a cell that says what to install.

    Raises:
        ValueError: As of ``read_source``.
    """
    title, *rest = read_source(path)
    code = [cell["source"] for cell in rest if cell["cell_type"] == "code"]
    cells = [title, _code(_check(code)), *rest]
    for number, cell in enumerate(cells):
        cell |= {"id": f"cell-{number}", "source": cell["source"].splitlines(keepends=True)}
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "title": path.stem,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def notebooks() -> dict[Path, str]:
    """The content of each notebook, by its path."""
    return {
        path.with_suffix(".ipynb"): json.dumps(notebook(path), indent=1, ensure_ascii=False) + "\n"
        for path in sorted(FOLDER.glob("*.py"))
    }


def _cell(text: str, name: str) -> dict[str, Any]:
    lines = text.splitlines()
    magic = [line.removeprefix(MAGIC).removeprefix(" ") for line in lines if line.startswith(MAGIC)]
    if not magic:
        return _code(text)
    if len(magic) != len(lines) or not magic[0].startswith("%md"):
        raise ValueError(f"{name}: a cell is neither all Python nor all Markdown: {lines[0]!r}.")
    text = "\n".join([magic[0][len("%md") :], *magic[1:]]).strip()
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text,
    }


def _check(code: Iterable[str]) -> str:
    """The code that names what is not installed of all that a notebook's cells import."""
    imported = {module for text in code for module in _modules(text)} | {
        "pyspark",
        "sparkdl_runner",
    }
    others = imported - sys.stdlib_module_names - {"horovod"}
    packages = {module: _PACKAGES.get(module, module) for module in sorted(others)}
    listed = "".join(f'    "{module}": "{package}",\n' for module, package in packages.items())
    check = _CHECK.format(packages=f"{{\n{listed}}}")
    return (check + (_HOROVOD if "horovod" in imported else "")).rstrip("\n")


def _modules(code: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


if __name__ == "__main__":
    for path, text in notebooks().items():
        path.write_text(text)
