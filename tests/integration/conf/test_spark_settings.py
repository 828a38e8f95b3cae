"""Spark itself on what conf/ tells it: it knows the settings, takes the values, logs as said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import yaml

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
SPARK = CONF / "spark"
ASK = Path(__file__).parent / "ask_spark.py"
FILES = sorted(SPARK.glob("*.conf"))

# Names that Spark makes of a part that is the user's own.
MADE_UP = re.compile(
    r"spark\.(driver|executor|task|worker)\.resource\.\w+\.(amount|discoveryScript|vendor)"
    r"|spark\.(yarn\.appMasterEnv|executorEnv)\.\w+"
    r"|spark\.kubernetes\.(driver|executor)\.secretKeyRef\.\w+"
)

# What the other lane's Spark goes by.
ONLY_IN_SPARK_4 = {"spark.kubernetes.executor.terminationGracePeriodSeconds"}


def settings_of(path: Path) -> dict[str, str]:
    """The settings of a properties file."""
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    pairs = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    assert len({key for key, _ in pairs}) == len(pairs), f"{path.name} says something twice"
    return {key: value.strip() for key, value in pairs}


def mentioned() -> set[str]:
    """Every setting that anything below conf/ names, also in comments."""
    paths = [path for path in CONF.rglob("*") if path.suffix in (".conf", ".sh", ".yml", ".md")]
    text = "\n".join(path.read_text() for path in [*paths, CONF / "kubernetes" / "Dockerfile"])
    return set(re.findall(r"(?<![\w./-])spark\.[a-z][\w.]*\w", text))


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> subprocess.CompletedProcess[str]:
    """What Spark says of all settings, and what it logs meanwhile."""
    asked: dict[str, str | None] = dict.fromkeys(mentioned())
    for path in FILES:
        asked |= settings_of(path)
    asked |= {"spark.barrier.sync.timeouts": "1s", "spark.executor.cores": "four"}
    done = subprocess.run(
        [sys.executable, str(ASK)],
        input=json.dumps(asked),
        env={**os.environ, "SPARK_CONF_DIR": str(SPARK)},
        cwd=tmp_path_factory.mktemp("ask"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done


def test_spark_knows_every_setting_and_takes_its_value(answers):
    complaints = json.loads(answers.stdout)
    assert len(complaints) > 30
    # That complaints are made at all.
    assert complaints.pop("spark.barrier.sync.timeouts") == "unknown"
    assert "four" in complaints.pop("spark.executor.cores")
    for key in ONLY_IN_SPARK_4:
        assert complaints.pop(key) == (None if pyspark.__version__ >= "4" else "unknown")
    wrong = {
        key: words for key, words in complaints.items() if words and not MADE_UP.fullmatch(key)
    }
    assert not wrong


def test_databricks_clusters_are_told_what_spark_knows():
    job = yaml.safe_load((CONF / "databricks" / "job.yml").read_text())
    (only,) = job["resources"]["jobs"].values()
    told = {key for one in only["job_clusters"] for key in one["new_cluster"].get("spark_conf", {})}
    assert told <= mentioned()


def test_the_log_has_the_form_that_is_claimed(answers):
    lines = answers.stderr.splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)"
    for words in (
        "WARN Named: a warning",
        "INFO Backend: an executor came",
        "INFO BarrierCoordinator: a task is there",
        "ERROR Named: a failure",
    ):
        assert any(re.fullmatch(f"{stamp} {words}", line) for line in lines), words
    assert "java.lang.IllegalStateException: it broke" in lines
    assert "not worth a line" not in answers.stderr
    # Log4j's own word for a configuration that it cannot use.
    assert "main ERROR" not in answers.stderr
    assert "Unable to" not in answers.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_barrier_stages_can_start_and_strangers_cannot_speak(path):
    settings = settings_of(path)
    assert settings["spark.dynamicAllocation.enabled"] == "false"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.scheduler.minRegisteredResourcesRatio"] == "1.0"


def test_the_files_say_the_same_of_what_they_share():
    cpu, shared, gpu = (
        settings_of(SPARK / f"spark-defaults{kind}.conf") for kind in ("", "-gpu-shared", "-gpu")
    )
    sizes = {"spark.executor.cores", "spark.task.cpus", "spark.executor.memory"}
    sizes |= {"spark.executor.memoryOverhead"}
    for other in (gpu, shared):
        assert {key for key in cpu if key in other and cpu[key] != other[key]} <= sizes
        assert {key for key in other if key not in cpu} <= {
            "spark.executor.resource.gpu.amount",
            "spark.task.resource.gpu.amount",
        }
    assert cpu.keys() <= gpu.keys()
    # launch/driver/spark/gpu_scheduling.py goes by this setting when it asks for GPUs.
    assert gpu["spark.task.resource.gpu.amount"] == "1"
    assert "spark.task.resource.gpu.amount" not in shared
    assert int(shared["spark.executor.cores"]) >= 2
