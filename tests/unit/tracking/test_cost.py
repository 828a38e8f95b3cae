"""What a training cost: hours of its GPUs or cores by part, and energy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.tracking.report.cost import cost_of, in_words
from sparkdl_runner.tracking.report.goodput import AttemptTime
from sparkdl_runner.tracking.run.rank_reports import RankReports

HOUR = 3600.0
FAILED = AttemptTime(
    began_at=0.0,
    ended_at=HOUR,
    first_step_at=0.0,
    running_seconds=HOUR,
    input_seconds=HOUR / 4,
    steps=100,
    last_step=100,
    checkpoint_step=50,
    has_failed=True,
    gpus=8,
    cores=64,
    energy_joules=3.6e6,
)
WENT_ON = AttemptTime(
    began_at=HOUR,
    ended_at=2 * HOUR,
    first_step_at=1.5 * HOUR,
    running_seconds=HOUR / 2,
    began_after=50,
    steps=50,
    last_step=100,
    gpus=8,
    cores=64,
    energy_joules=1.8e6,
)


def test_hours_of_gpus_by_what_was_lost_and_energy():
    cost = cost_of([FAILED, WENT_ON])
    assert cost == pytest.approx(
        {
            "gpu_hours": 16,
            "gpu_hours_restarts": 4,
            "gpu_hours_lost_steps": 3,
            "gpu_hours_data_wait": 2,
            "energy_kwh": 1.5,
        }
    )
    told = "16 GPU hours (of which restarts 4, lost steps 3, data wait 2), 1.5 kWh"
    assert in_words(cost) == told


def test_a_run_without_gpus_has_hours_of_cores_and_one_that_told_nothing_has_no_cost():
    idle = {"energy_joules": 0.0, "input_seconds": 0.0}
    alone = replace(FAILED, gpus=0, **idle, has_failed=False)
    assert cost_of([alone]) == {"core_hours": 64}
    assert in_words({"core_hours": 64}) == "64 core hours"
    assert in_words({"core_hours": 64, "core_hours_data_wait": 0.1}) == "64 core hours"
    assert cost_of([replace(alone, cores=0)]) == {}
    assert cost_of([]) == {}


def test_the_time_between_two_attempts_costs_nothing():
    a_day_later = replace(
        WENT_ON, began_at=25 * HOUR, first_step_at=25.5 * HOUR, ended_at=26 * HOUR
    )
    assert cost_of([FAILED, a_day_later]) == pytest.approx(cost_of([FAILED, WENT_ON]))


def test_an_attempt_that_failed_before_its_ranks_told_held_as_many():
    silent = AttemptTime(began_at=2 * HOUR, ended_at=3 * HOUR, has_failed=True)
    assert cost_of([FAILED, WENT_ON, silent])["gpu_hours"] == pytest.approx(24)


def test_ranks_tell_what_they_hold_and_hosts_their_energy():
    peers = [
        Peer(
            partition=i, host=f"h{i // 2}", host_key=f"h{i // 2}", address="10.0.0.1", interface="e"
        )
        for i in range(4)
    ]
    ranks = RankReports()
    worlds = assign_ranks(peers, backend="torch").values()
    counts = {"steps": 0, "samples": 0, "running_seconds": 0.0, "seconds": {}, "step": None}
    for world in worlds:
        ranks.add(world, {**counts, "facts": {"gpus": ["0", "1"], "cores": 3}})
        ranks.add_host(world, {"gpu_energy_kilojoules": 5.0})
        ranks.add_host(world, {"cpu_utilization_percentage": 9.0})
    spent = ranks.time(0.0, 1.0, has_failed=False)
    assert (spent.gpus, spent.cores, spent.energy_joules) == (4, 12, 10_000)
    ranks.begin_attempt()
    assert ranks.time(0.0, 1.0, has_failed=False).energy_joules == 0
