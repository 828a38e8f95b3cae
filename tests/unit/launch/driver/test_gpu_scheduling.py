"""When a rank's GPU is asked for by stage-level scheduling, and what is said where it cannot be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark.gpu_scheduling import rank_profile


def context(master="spark://host:7077", version="3.5.9", **settings):
    names = {
        "gpus": "spark.executor.resource.gpu.amount",
        "per_task": "spark.task.resource.gpu.amount",
        "cores": "spark.executor.cores",
        "dynamic": "spark.dynamicAllocation.enabled",
        "script": "spark.executor.resource.gpu.discoveryScript",
    }
    found = {names[name]: str(value) for name, value in settings.items()}
    return SimpleNamespace(
        master=master,
        version=version,
        _conf=SimpleNamespace(get=lambda name: found.get(name)),
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"gpus": 0}, {"gpus": 4, "per_task": 1, "cores": 8}, {"gpus": 4, "per_task": "2.0"}],
)
def test_where_tasks_have_whole_gpus_or_there_are_none_nothing_is_asked_for(settings):
    assert rank_profile(context(**settings)) is None
    assert rank_profile(context("local[4]", **settings)) is None


def test_ranks_of_a_task_have_a_gpu_each():
    one = context(gpus=2, cores=8)
    with pytest.raises(LaunchError, match=r"ranks_per_task is 4, and executors have 2 GPU\(s\)"):
        rank_profile(one, 4)


@pytest.mark.parametrize(
    ("arguments", "obstacle"),
    [
        ({"master": "local-cluster[2,4,1024]"}, r"the master local-cluster\S+ has none"),
        (
            {"master": "yarn", "version": "3.5.0"},
            r"on yarn it needs Spark 3\.5\.1, and this is \S+",
        ),
        ({"master": "k8s://https://host"}, r"spark\.executor\.cores to be set, to 2 or more"),
        ({"cores": 1}, r"spark\.executor\.cores to be set, to 2 or more"),
    ],
)
@pytest.mark.parametrize("per_task", ["0.25", None])
def test_shared_gpus_are_refused_with_the_setting_to_change(arguments, obstacle, per_task):
    shared = {"gpus": 2, **arguments} | ({"per_task": per_task} if per_task else {})
    with pytest.raises(LaunchError, match=rf"{obstacle}\. Set spark\.task\.resource\.gpu\.amount"):
        rank_profile(context(**shared))


def test_executors_that_come_for_the_ranks_are_asked_for_with_their_gpus():
    """A profile of another task alone fits no executor that is yet to come."""
    shared = {"gpus": 2, "per_task": "0.25", "cores": 8, "script": "/opt/gpus.sh"}
    assert not rank_profile(context(**shared)).executorResources
    found = rank_profile(context(**shared, dynamic="true"))
    assert found.taskResources["cpus"].amount == 4
    assert found.executorResources["cores"].amount == 8
    gpus = found.executorResources["gpu"]
    assert (gpus.amount, gpus.discoveryScript, gpus.vendor) == (2, "/opt/gpus.sh", "")
