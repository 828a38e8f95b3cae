"""Each notebook runs from top to bottom, as a plain script and cell by cell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_in_databricks_source_format(notebook):
    text = notebook.read_text()
    assert text.startswith("# Databricks notebook source\n# MAGIC %md\n# MAGIC # ")
    assert text.count("# COMMAND ----------") >= 4


def test_the_first_notebook_learns_and_shows_a_failure(tmp_path):
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS[0])],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    accuracy = next(line for line in lines if line.startswith("accuracy on Spark: "))
    assert float(accuracy.rpartition(" ")[2]) > 0.95
    assert "[rank 0] epoch 80: loss" in done.stdout
    assert lines[-1].endswith("ValueError('rank 1 has met bad data')")
