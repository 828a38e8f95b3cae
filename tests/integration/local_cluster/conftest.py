"""A cluster whose executors are processes of their own."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from spark_sessions import session_on

from sparkdl_runner.launch.driver.spark import slots

# Two executors of one machine are two users of one set of GPUs; a lock folder shares them out.
DISCOVERY = """#!/bin/sh
for gpu in 5 3; do
    if mkdir "{folder}/$gpu" 2>/dev/null; then
        echo "{{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$gpu\\"]}}"
        exit 0
    fi
done
exit 1
"""


@pytest.fixture(scope="package")
def gpu_script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpus")
    script = folder / "discover.sh"
    script.write_text(DISCOVERY.format(folder=folder))
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return script


@pytest.fixture
def cluster(sessions, gpu_script, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    return session_on(
        sessions,
        "local-cluster[2,1,1024]",
        **{
            "spark.executor.memory": "1g",
            "spark.decommission.enabled": "true",
            "spark.worker.resource.gpu.amount": "1",
            "spark.worker.resource.gpu.discoveryScript": str(gpu_script),
            "spark.executor.resource.gpu.amount": "1",
            "spark.task.resource.gpu.amount": "1",
        },
    )


@pytest.fixture
def light_cluster(cluster, no_torch, monkeypatch):
    """Whose ranks do without torch, see light_ranks."""
    monkeypatch.setitem(cluster.sparkContext.environment, "PYTHONPATH", no_torch)
    return cluster


@pytest.fixture
def two_slots(cluster):
    """Executors that earlier tests ended have been replaced."""
    deadline = time.monotonic() + 300
    while (
        cluster.sparkContext._jsc.sc().maxNumConcurrentTasks(
            cluster.sparkContext._jsc.sc().resourceProfileManager().defaultResourceProfile()
        )
        < 2
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return cluster


@pytest.fixture
def no_replacement_while(monkeypatch) -> Callable[[Callable[[], bool]], None]:
    """Keeps a lost executor's slot from coming back while something holds.

    Spark starts another executor at once, and how soon that is there depends on the machine.
    """
    count = slots.count_places

    def begin(holds: Callable[[], bool]) -> None:
        monkeypatch.setattr(
            slots, "count_places", lambda *what: min(count(*what), 1) if holds() else count(*what)
        )

    return begin
