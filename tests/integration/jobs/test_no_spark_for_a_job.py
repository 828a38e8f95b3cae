"""A job whose Spark does not start: one sentence, exit code 2, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def sparkdl_runner(tmp_path: Path, *argv: str, **environment: str) -> str:
    """Runs the command, and returns its sentence."""
    (tmp_path / "some.py").write_text("def main():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "sparkdl_runner", *argv],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    # A JVM that ends may still write a line of its own.
    return [line for line in done.stderr.splitlines() if line.startswith("sparkdl-runner ")][-1]


CONVERT = ("convert", "--source", "./small.parquet", "--output", "./converted")
RUN = ("run", "some:main", "--np", "2")


@pytest.mark.parametrize("argv", [CONVERT, RUN])
def test_java_is_not_there(tmp_path, argv):
    said = sparkdl_runner(tmp_path, *argv, JAVA_HOME="/nope")
    assert "Spark did not start: JAVA_HOME is /nope, where there is no bin/java. Install" in said
    assert "and set JAVA_HOME to its folder. What it wrote" in said
    assert "sparkdl-runner doctor" in said


@pytest.mark.parametrize("argv", [CONVERT, RUN])
@pytest.mark.parametrize(
    ("remote", "told"),
    [
        ("sc://127.0.0.1:9/;token=secret", "The Spark Connect server at 127.0.0.1:9 does not"),
        ("local[2];token=secret", "SPARK_REMOTE is no address of a Spark Connect server: set it"),
    ],
)
def test_the_environment_names_a_spark_connect_server_that_is_not_there(
    tmp_path, argv, remote, told
):
    said = sparkdl_runner(tmp_path, *argv, SPARK_REMOTE=remote)
    assert told in said or "Spark Connect's client is not complete here" in said
    assert "secret" not in said


# Spark itself asks three times, twenty seconds apart.
@pytest.mark.one_lane
def test_the_master_does_not_answer(tmp_path):
    said = sparkdl_runner(
        tmp_path, *CONVERT, PYSPARK_SUBMIT_ARGS="--master spark://127.0.0.1:9 pyspark-shell"
    )
    assert "Spark did not start on spark://127.0.0.1:9: no master has answered." in said
    assert "sparkdl-runner doctor" in said
