"""Real ranks measure their host, and then train."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from rank_functions import init

from sparkdl_runner import DistributedRunner, RunConfig

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

COLLECTIVE = {"latency", "bandwidth", "clock", "pairs"}


@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_ranks_join_again_after_a_preflight(backend, tmp_path):
    events = tmp_path / "events"
    config = RunConfig(preflight="quick", tracking=False, events=str(events))
    runner = DistributedRunner(num_proc=-2, backend=backend, run_config=config)
    assert runner.run(init, backend) == 0
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["event"] for one in told[:3]] == ["started", "preflight", "attempt"]
    ranks = told[1]["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert all(rank.keys() >= COLLECTIVE for rank in ranks)
    assert min(rank["bandwidth"] for rank in ranks) > 1e6
    assert ranks[0]["rates"].keys() == {"matrices", "writing to the disk", "reading the disk"}
    assert ranks[1]["rates"].keys() == {"matrices"}


def test_the_command_measures_one_rank_without_a_collective():
    command = [sys.executable, "-m", "sparkdl_runner", "preflight", "--np", "-1", "--json"]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    ((ranks, fault, is_bad),) = report["findings"]
    assert (ranks, is_bad) == ([0], True)
    assert "/nowhere" in fault
    assert report["lines"][0].endswith("no collective, no GPU.")
    assert not COLLECTIVE & report["ranks"][0].keys()
