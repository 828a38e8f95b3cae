"""A training under conf/spark's settings on an executor with (fake) GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.integration

SPARK = Path(__file__).parents[3] / "conf" / "spark"
LOOK_AROUND = Path(__file__).parent / "look_around.py"

# Not the first two: that an address is a place in a list would show.
LISTING = """\
GPU 3: NVIDIA A10G (UUID: GPU-0c1d6c7e-30ad-4ff5-0d2d-7d1e1a0b9e51)
GPU 5: NVIDIA A10G (UUID: GPU-93a5b1f0-7d5c-9b1e-f7a4-5c0c3b8a6f22)
"""


def submit(tmp_path: Path, defaults: str, master: str, **environment: str) -> dict:
    """Runs look_around.py under a file of settings; returns what it prints."""
    home = Path(pyspark.__file__).parent
    # A local cluster is given its secret as a standalone one is, in a file of its owner's.
    file = tmp_path / "settings.conf"
    file.touch(mode=0o600)
    file.write_text((SPARK / defaults).read_text() + f"spark.authenticate.secret {'5' * 32}\n")
    overridden = OVERRIDDEN.get(defaults, {})
    done = subprocess.run(
        [
            *(str(home / "bin" / "spark-submit"), "--master", master),
            *("--properties-file", str(file)),
            *(word for key, value in overridden.items() for word in ("--conf", f"{key}={value}")),
            str(LOOK_AROUND),
        ],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            **environment,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


# What the size of this machine asks for, and what start_worker.sh says on a standalone cluster.
OVERRIDDEN = {
    "spark-defaults-gpu.conf": {
        "spark.executor.instances": "1",
        "spark.executor.cores": "2",
        "spark.task.cpus": "1",
        "spark.executor.memory": "1g",
        "spark.executor.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(SPARK / "discover_gpus.sh"),
        "spark.ui.enabled": "false",
    },
}


@pytest.mark.one_lane
def test_ranks_find_the_gpus_that_the_discovery_script_found(tmp_path):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f'#!/bin/sh\n[ "$*" = -L ] && cat <<"END"\n{LISTING}END\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = submit(tmp_path, "spark-defaults-gpu.conf", "local-cluster[1,2,1024]", **environment)
    first, second = found["ranks"]
    assert {first["gpus"], second["gpus"]} < {"3,5", "5,3"}
    # torch.cuda.set_device(local_rank) picks a rank's own.
    assert [first["local_rank"], second["local_rank"]] == [0, 1]
    assert first["gpus"] == second["gpus"]
    assert first["weight"] == second["weight"]
    assert found["settings"]["spark.task.resource.gpu.amount"] == "1"
