"""How many ranks a Spark task starts, and what is said where that does not fit."""

from __future__ import annotations

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.allocation import chosen_gang
from sparkdl_runner.launch.driver.spark.task_shape import ranks_per_task

GPUS = "spark.task.resource.gpu.amount"
MASTER = "spark://host:7077"


def ranks(num_proc, *, gpus="", asked=None, master=MASTER):
    settings = {"spark.master": master, GPUS: gpus}
    return ranks_per_task(settings.get, RunConfig(ranks_per_task=asked), num_proc)


@pytest.mark.parametrize(
    ("gpus", "asked", "num_proc", "expected"),
    [
        ("", None, 6, 1),
        ("0.25", None, 6, 1),
        ("1", None, 6, 1),
        ("4.0", None, 8, 4),
        ("8", None, 0, 8),
        # One task has room for all of them: a rank then has several GPUs.
        ("8", None, 2, 2),
        ("8", None, 1, 1),
        ("", 3, 6, 3),
        ("4", 2, 6, 2),
        ("4", 1, 6, 1),
    ],
)
def test_a_task_starts_a_rank_for_each_gpu_or_as_many_as_is_said(gpus, asked, num_proc, expected):
    assert ranks(num_proc, gpus=gpus, asked=asked) == expected


def test_local_tasks_have_no_gpus():
    assert ranks(6, gpus="4", master="local[4]") == 1
    assert ranks(8, gpus="4", master="local-cluster[2,4,1024]") == 4


def test_ranks_that_do_not_fill_their_tasks_are_refused_with_what_would():
    sentence = (
        r"6 ranks are no multiple of 4, which each Spark task starts \(one for each of its GPUs, "
        rf"{GPUS}\): ask for 4 or 8 ranks, or set RunConfig\.ranks_per_task to a number"
    )
    with pytest.raises(LaunchError, match=sentence):
        ranks(6, gpus="4")
    with pytest.raises(LaunchError, match=r"starts \(RunConfig\.ranks_per_task\): ask for 3 or 6"):
        ranks(5, asked=3)


def test_ranks_that_would_share_gpus_are_refused():
    with pytest.raises(LaunchError, match=r"ranks_per_task is 4, and a task has 2 GPUs .* share"):
        ranks(4, gpus="2", asked=4)


@pytest.mark.parametrize("value", [0, -1])
def test_a_task_has_a_rank_at_least(value):
    with pytest.raises(ValueError, match="ranks_per_task is"):
        RunConfig(ranks_per_task=value)


def test_a_limit_of_executors_counts_tasks():
    settings = {
        "spark.master": MASTER,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.executor.cores": "1",
    }
    assert not chosen_gang(settings.get, RunConfig(), 8, ranks_per_task=4)
    with pytest.raises(LaunchError, match=r"12 ranks need 3 task slots at once, and .*=2 allows 2"):
        chosen_gang(settings.get, RunConfig(), 12, ranks_per_task=4)
