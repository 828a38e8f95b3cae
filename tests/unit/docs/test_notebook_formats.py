"""The notebooks in Databricks' source format, and the same for Jupyter."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
each = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_notebooks", ROOT / "docs" / "notebooks.py")
    assert spec
    assert spec.loader
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    return generator


def test_those_for_jupyter_are_up_to_date(generator: ModuleType) -> None:
    wanted = generator.notebooks()
    kept = {path: path.read_text() for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(wanted) == len(SOURCES) >= 5
    changed = sorted(
        path.name for path in kept.keys() | wanted if kept.get(path) != wanted.get(path)
    )
    assert not changed, f"notebooks: {changed} differ from their sources; run: make docs"


@each
def test_it_is_in_databricks_source_format(generator: ModuleType, source: Path) -> None:
    cells = generator.read_source(source)
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds[0] == "markdown"
    assert cells[0]["source"].startswith("# ")
    assert kinds.count("code") >= 5
    for cell in cells:
        assert cell["source"]
        if cell["cell_type"] == "code":
            compile(cell["source"], source.name, "exec")
    text = source.read_text()
    assert not re.findall(r"[\"'](/(?!Volumes/)\w+/[^\"']*)", text), "a path of some machine"
    assert "dbutils" not in text


@each
def test_jupyter_takes_it_and_it_has_the_same_cells(generator: ModuleType, source: Path) -> None:
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    wanted = [(cell["cell_type"], cell["source"]) for cell in generator.read_source(source)]
    assert cells[:1] + cells[2:] == wanted, "besides the cell that says what to install"


def run_check(
    generator: ModuleType, name: str, is_there: Callable[[str], bool], monkeypatch: Any
) -> None:
    """Runs the cell that says what to install, where some modules are not there."""
    path = next(path for path in SOURCES if path.stem.startswith(name))
    monkeypatch.setattr("importlib.util.find_spec", lambda module: is_there(module) or None)
    exec("".join(generator.notebook(path)["cells"][1]["source"]), {})


def test_without_spark_it_is_said_what_to_install(
    generator: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    run_check(generator, "01", lambda module: False, monkeypatch)
    assert capsys.readouterr().out == (
        'Run this in a cell, and restart the kernel:  %pip install "matplotlib" "mlflow" "pyspark" '
        '"scikit-learn" "FOLDER[spark,torch,mlflow,estimator]" "torch"\n'
        "FOLDER is a clone of this project, or a wheel of it.\n"
        "Spark needs Java 17 or 21: install it, and set JAVA_HOME.\n"
        "This notebook needs Horovod, built by:  "
        f"!{sys.executable} -m sparkdl_runner build-horovod\n"
    )
    monkeypatch.chdir(ROOT / "notebooks")
    run_check(generator, "02", lambda module: module != "sparkdl_runner", monkeypatch)
    assert (
        capsys.readouterr()
        .out.splitlines()[0]
        .endswith('%pip install "..[spark,torch,mlflow,estimator]"')
    )
    run_check(generator, "02", lambda module: module != "pyspark", monkeypatch)
    assert capsys.readouterr().out.splitlines()[0].endswith('%pip install "pyspark"')


def test_where_all_is_there_nothing_is_said(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/java")
    for source in SOURCES:
        run_check(generator, source.stem, lambda module: True, monkeypatch)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# Databricks\nprint(1)\n", "begins with"),
        ("{HEADER}\n{MAGIC} %sql\n{MAGIC} SELECT 1\n", "neither"),
        ("{HEADER}\n1\n\n{CELL_MARK}\n\n{MAGIC} %md\n{MAGIC} # Title\nprint(1)\n", "neither"),
    ],
)
def test_what_databricks_would_read_differently_is_refused(
    generator: ModuleType, tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "notebook.py"
    path.write_text(text.format(**vars(generator)))
    with pytest.raises(ValueError, match=complaint):
        generator.read_source(path)
