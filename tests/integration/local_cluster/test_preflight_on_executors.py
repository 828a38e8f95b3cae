"""The executor of a rank that is slow gets none of the training's ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.launch.driver import preflight
from sparkdl_runner.rank.world import current_world

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def measure_slow_rank_1(level: str) -> dict[str, Any]:
    world = current_world()
    place = {"rank": world.rank, "host_rank": 0, "place": world.place, "faults": [], "same": {}}
    rates = {"matrices": 1e9 if world.rank else 9e9}
    return {**place, "rates": rates, "started": 0.0, "ended": 0.0, "seconds": 0.1}


def size() -> int:
    return current_world().size


@pytest.fixture
def both_executors_again(cluster):
    yield
    context = cluster.sparkContext
    none = context._jvm.PythonUtils.toScalaMap(context._jvm.java.util.HashMap())
    context._jsc.sc().requestTotalExecutors(2, 0, none)


def test_the_training_does_without_the_executor_of_a_slow_rank(
    light_cluster, two_slots, both_executors_again, tmp_path, monkeypatch
):
    monkeypatch.setattr(preflight, "measure", measure_slow_rank_1)
    events = tmp_path / "events"
    config = RunConfig(
        preflight="quick", preflight_excludes=True, tracking=False, events=str(events)
    )
    # Of as many ranks as there are slots, one may be left out.
    runner = DistributedRunner(num_proc=(1, 2), backend="horovod", run_config=config)
    assert runner.run(size) == 1
    told = [json.loads(line) for line in events.read_text().splitlines()]
    reports = [one for one in told if one["event"] == "preflight"]
    assert [(len(one["ranks"]), one["kept_out"]) for one in reports] == [(2, [1]), (1, [])]
