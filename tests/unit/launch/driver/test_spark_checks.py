"""What the launcher refuses of a session, and what the doctor is told of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.checks import check, check_settings, refusals

TORCH = get_backend("torch")


def session(master="spark://host:7077", **settings):
    settings = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return SimpleNamespace(master=master, version="3.5.9", _conf=settings)


@pytest.mark.parametrize("value", [None, "", "false"])
def test_a_session_of_a_fixed_size_passes_all_checks(value):
    context = session(dynamicAllocation_enabled=value, ssl_enabled=value)
    names = ["backend", "encryption", "allocation", "idle_timeout", "gpus"]
    assert list(refusals(context, TORCH, RunConfig())) == [(name, None) for name in names]
    check(context, TORCH, RunConfig())


def test_dynamic_allocation_is_refused_to_a_barrier_alone():
    context = session(dynamicAllocation_enabled="True")
    with pytest.raises(LaunchError, match=r"a fixed size .*, or use RunConfig\(gang='tasks'\)"):
        check(context, TORCH, RunConfig(gang="barrier"))
    check(context, TORCH, RunConfig())
    check(context, TORCH, RunConfig(gang="tasks"))


def test_encryption_that_no_backend_has_is_refused_unless_that_is_accepted():
    context = session(network_crypto_enabled="true")
    with pytest.raises(LaunchError, match=r"network\.crypto\.enabled is true.* the torch backend"):
        check(context, TORCH, RunConfig())
    check(context, TORCH, RunConfig(allow_unencrypted=True))
    check(session("local[2]", network_crypto_enabled="true"), TORCH, RunConfig())


@pytest.mark.parametrize(("kills", "seconds"), [("true", "300"), ("TRUE", "5s")])
def test_a_limit_of_silence_that_kills_is_refused(kills, seconds):
    silent = {"python_worker_killOnIdleTimeout": kills, "python_worker_idleTimeoutSeconds": seconds}
    with pytest.raises(LaunchError, match=r"killOnIdleTimeout is true, and .* to 0, before"):
        check(session("local[2]", **silent), TORCH, RunConfig())


@pytest.mark.parametrize(("kills", "seconds"), [("false", "300"), ("true", "0"), ("true", None)])
def test_a_limit_of_silence_that_does_not_kill_is_no_matter(kills, seconds):
    silent = {"python_worker_killOnIdleTimeout": kills, "python_worker_idleTimeoutSeconds": seconds}
    check(session("local[2]", **silent), TORCH, RunConfig())


def test_all_that_is_wrong_is_told():
    context = session(
        "yarn",
        dynamicAllocation_enabled="true",
        ssl_enabled="true",
        executor_resource_gpu_amount="2",
    )
    checked = refusals(context, TORCH, RunConfig(gang="barrier"))
    found = {name: str(refusal) for name, refusal in checked}
    assert found["backend"] == "None"
    assert found["encryption"].startswith("spark.ssl.enabled is true")
    assert found["allocation"].startswith("spark.dynamicAllocation.enabled is true")
    assert found["gpus"].endswith("Set spark.task.resource.gpu.amount to 1.")


def test_settings_alone_give_the_same_reasons():
    settings = {"spark.dynamicAllocation.enabled": "true"}
    barrier = RunConfig(gang="barrier")
    with pytest.raises(LaunchError, match="set it to false and give the cluster a fixed size"):
        check_settings(settings.get, TORCH, barrier, single_host=False)
    encrypted = {"spark.network.crypto.enabled": "true"}
    with pytest.raises(LaunchError, match=r"spark\.network\.crypto\.enabled is true"):
        check_settings(encrypted.get, TORCH, RunConfig(), single_host=False)
    check_settings(encrypted.get, TORCH, RunConfig(), single_host=True)
