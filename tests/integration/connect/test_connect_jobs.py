"""Jobs whose Spark is the server that SPARK_REMOTE names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from connect_server import ConnectServer

from sparkdl_runner.data import make_spark_converter

pytestmark = pytest.mark.integration

BOWL = """
def train(x, rows, steps=1):
    from sparkdl_runner import current_world

    assert len(rows) == 20
    return {"height": x * x, "ranks": current_world().size}
"""


@pytest.fixture
def job(server: ConnectServer, tmp_path: Path):
    """Calls a job there; gets its arguments, returns how it ended."""
    python = sys.executable

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "SPARK_REMOTE": server.url, "PYTHONPATH": paths}
        command = [python, "-m", "sparkdl_runner", *argv]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return call


def test_a_table_is_converted_and_searched(job, tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n" + "".join(f"{i},{i}.5\n" for i in range(20)))
    (tmp_path / "bowl.py").write_text(BOWL)
    converted = job("convert", "--source", "./table.csv", "--output", "./rows")
    assert converted.returncode == 0, converted.stderr
    assert "20 rows in 1 file" in converted.stdout
    assert len(make_spark_converter(f"file://{tmp_path}/rows")) == 20
    again = job("convert", "--source", "./table.csv", "--output", "./rows")
    assert again.returncode == 2
    assert "there are files in ./rows already: choose another" in again.stderr

    settings = {
        "function": "bowl:train",
        "backend": "horovod",
        "num_proc": 2,
        "data": {"rows": {"path": f"{tmp_path}/rows"}},
        # By default a worker without work waits a minute for more of it, and the test for its end.
        "run_config": {"require_collectives": False, "spare_seconds": 5},
        "tracking": {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"},
        "tune": {
            "metric": "height",
            "direction": "minimize",
            "trials": 2,
            "parallel": 2,
            "search_space": {"x": {"choices": [1.0, 2.0]}},
            "seed": 1,
        },
    }
    (tmp_path / "tune.yaml").write_text(json.dumps(settings))
    searched = job("tune", "--config", "tune.yaml")
    assert searched.returncode == 0, searched.stderr
    assert "best: trial " in searched.stdout


def test_what_is_not_there_is_told_in_a_sentence(job):
    done = job("convert", "--source", "./nothing.csv", "--output", "./rows")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("there is nothing at ./nothing.csv.")


def test_the_doctor_looks_at_the_servers_executors(job):
    done = job("doctor", "--json", "--backend", "torch", "--np", "2")
    findings = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert "through Spark Connect" in findings["spark.start"]["found"]
    for check in ("spark.connect", "spark.slots", "spark.executors", "network.driver", "versions"):
        assert findings[check]["status"] == "ok", findings[check]
    assert "java" not in findings
