"""The pods that Spark itself makes of conf/kubernetes, for clusters with and without GPUs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

pytestmark = pytest.mark.integration

CONF = Path(__file__).parents[3] / "conf"
BUILD = Path(__file__).parent / "build_pods.py"
# In Spark's place: prints what it would be started with.
RECORD = """#!/bin/sh
printf '%s\\0' "$@"; printf '\\0'; env -0
"""


@pytest.fixture(scope="module", params=["spark-defaults", "spark-defaults-gpu"])
def pods(request, tmp_path_factory) -> dict:
    """The driver's and an executor's pod of one submission."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "bin").mkdir()
    fake = folder / "bin" / "spark-submit"
    fake.write_text(RECORD)
    fake.chmod(0o755)
    defaults = CONF / "spark" / f"{request.param}.conf"
    recorded = subprocess.run(
        [CONF / "kubernetes" / "submit.sh", "local:///opt/sparkdl-runner/jobs/train.py"],
        env={
            "PATH": os.environ["PATH"],
            "SPARK_HOME": str(folder),
            "SPARK_DEFAULTS": str(defaults),
            "MASTER_URL": "k8s://https://10.0.0.1:6443",
            "NAMESPACE": "training",
            "IMAGE": "registry.example.com:5000/sparkdl-runner:0.1.0",
            # Somebody's own, which is not in the image.
            "PYSPARK_PYTHON": "/home/somebody/venv/bin/python",
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    argv, environment = (part.split("\0") for part in recorded.rstrip("\0").split("\0\0"))
    lines = [line.split(maxsplit=1) for line in defaults.read_text().splitlines() if line.strip()]
    settings = {words[0]: words[1].strip() for words in lines if not words[0].startswith("#")}
    pairs = itertools.pairwise(argv)
    settings |= dict(value.split("=", 1) for flag, value in pairs if flag == "--conf")
    settings |= {
        "spark.master": argv[argv.index("--master") + 1],
        "spark.app.name": "train",
    }
    python = dict(word.split("=", 1) for word in environment)["PYSPARK_PYTHON"]
    done = subprocess.run(
        [sys.executable, str(BUILD)],
        input=json.dumps(settings),
        env={**os.environ, "SPARK_CONF_DIR": str(CONF / "spark"), "PYSPARK_PYTHON": python},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout), "gpus": "gpu" in request.param}


def only_container(pod: dict) -> dict:
    (container,) = pod["spec"]["containers"]
    return container


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_they_fit_the_schemas_of_kubernetes(pods, role):
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(pods[role], version, strict=True)


def test_what_the_templates_say_is_kept(pods):
    for role, seconds in (("driver", 60), ("executor", 120)):
        spec = pods[role]["spec"]
        container = only_container(pods[role])
        assert container["name"] == f"spark-kubernetes-{role}"
        assert container["image"] == "registry.example.com:5000/sparkdl-runner:0.1.0"
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["terminationGracePeriodSeconds"] == seconds
        assert pods[role]["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sparkdl-runner"


def test_executors_keep_their_hook_and_their_shared_memory(pods):
    container = only_container(pods["executor"])
    script = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "[s]parkdl_runner.launch.worker" in script
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pods["executor"]["spec"]["volumes"]}
    shared = volumes[mounts["/dev/shm"]]["emptyDir"]
    assert shared["medium"] == "Memory"
    # The logging comes with Spark's own files.
    items = volumes[mounts["/opt/spark/conf"]]["configMap"]["items"]
    assert "log4j2.properties" in {one["key"] for one in items}
    # It counts as the container's memory, and ranks need the rest.
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert int(shared["sizeLimit"].removesuffix("Gi")) * 1024 < limit / 2


def test_executors_ask_for_gpus_where_the_settings_do(pods):
    container = only_container(pods["executor"])
    asked = {"nvidia.com/gpu": "1"} if pods["gpus"] else {}
    limits = container["resources"]["limits"]
    assert {name: value for name, value in limits.items() if "gpu" in name} == asked
    assert bool(pods["executor"]["spec"].get("tolerations")) is pods["gpus"]


def test_the_python_is_the_images(pods):
    environment = {one["name"]: one.get("value") for one in only_container(pods["driver"])["env"]}
    assert environment["PYSPARK_PYTHON"] == "/opt/environment/bin/python"
    dockerfile = (CONF / "kubernetes" / "Dockerfile").read_text()
    assert f"PYSPARK_PYTHON={environment['PYSPARK_PYTHON']} " in dockerfile


def test_the_driver_has_the_account_with_the_rights(pods):
    assert pods["driver"]["spec"]["serviceAccountName"] == "sparkdl-runner"
    assert pods["executor"]["spec"]["automountServiceAccountToken"] is False
