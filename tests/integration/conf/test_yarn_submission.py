"""What Spark makes of conf/yarn/submit.sh: files are merged, archives named, settings read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CONF = Path(__file__).parents[3] / "conf"
PREPARE = Path(__file__).parent / "prepare_submission.py"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> dict:
    """A submission in cluster mode, with GPUs and a file of the user's own."""
    folder = tmp_path_factory.mktemp("yarn")
    for name in ("environment.tar.gz", "train.yaml", "train.py"):
        (folder / name).touch()
    (folder / "bin").mkdir()
    # In Spark's place, its own reading of the arguments.
    fake = folder / "bin" / "spark-submit"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} {PREPARE} "$@"\n')
    fake.chmod(0o755)
    # Where this Python finds its own Spark, the script's SPARK_HOME must not be it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [
            CONF / "yarn" / "submit.sh",
            *("--files", "train.yaml", "train.py", "--config", "train.yaml"),
        ],
        env={
            **{name: value for name, value in kept.items() if name != "SPARK_HOME"},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HADOOP_CONF_DIR": str(folder),
            "ENVIRONMENT": "environment.tar.gz",
            "YARN_QUEUE": "training",
            "PYSPARK_DRIVER_PYTHON": "/home/somebody/venv/bin/python",
            "PYSPARK_PYTHON": "/home/somebody/venv/bin/python",
            "SPARK_DEFAULTS": str(CONF / "spark" / "spark-defaults-gpu.conf"),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_driver_is_started_by_yarn_with_the_jobs_arguments(prepared):
    assert prepared["class"] == "org.apache.spark.deploy.yarn.YarnClusterApplication"
    arguments = prepared["arguments"]
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
    assert [value for flag, value in pairs if flag == "--arg"] == ["--config", "train.yaml"]
    (script,) = [value for flag, value in pairs if flag == "--primary-py-file"]
    assert script.endswith("/train.py")


def test_the_discovery_script_and_the_users_files_are_both_taken_along(prepared):
    files = prepared["settings"]["spark.yarn.dist.files"].split(",")
    assert sorted(Path(file).name for file in files) == ["discover_gpus.sh", "train.yaml"]
    (archive,) = prepared["settings"]["spark.yarn.dist.archives"].split(",")
    assert archive.endswith("/environment.tar.gz#environment")


def test_settings_of_file_and_script_are_both_there(prepared):
    settings = prepared["settings"]
    assert settings["spark.executor.resource.gpu.amount"] == "1"
    assert settings["spark.executor.resource.gpu.discoveryScript"] == "./discover_gpus.sh"
    assert settings["spark.yarn.queue"] == "training"
    assert settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "./environment/bin/python"
    assert settings["spark.yarn.maxAppAttempts"] == "1"


def test_the_shells_own_python_is_not_the_drivers(prepared):
    assert prepared["pythons"] == []
