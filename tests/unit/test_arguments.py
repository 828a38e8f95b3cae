"""Bad input that is refused before anything is started."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparkdl_runner import DistributedRunner, HorovodRunner, RunConfig
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.driver.local_launcher import LocalLauncher
from sparkdl_runner.launch.worker.driver_log import log_to_driver


@pytest.mark.parametrize("np", [True, "2", 2.5, None])
def test_np_must_be_an_int(np):
    with pytest.raises(TypeError, match=r"np is .*; it must be an int"):
        HorovodRunner(np=np)
    with pytest.raises(TypeError, match=r"num_proc is .*; it must be an int"):
        DistributedRunner(num_proc=np)


def test_np_is_keyword_only_as_databricks_documents():
    with pytest.raises(TypeError):
        HorovodRunner(2)


def test_more_ranks_than_this_host_could_start_are_refused_at_once(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    LocalLauncher(16, get_backend("torch"))
    sentence = "64 ranks .* the 2 cores of this host.* ask for at most 16 ranks here, or for 64"
    for runner in (HorovodRunner(np=-64), DistributedRunner(num_proc=-64)):
        with pytest.raises(LaunchError, match=sentence):
            runner.run(print)


def test_np_zero_is_deprecated():
    with pytest.warns(DeprecationWarning, match="np=0"):
        HorovodRunner(np=0)


def test_unknown_verbosity_lists_the_known_ones():
    with pytest.raises(ValueError, match="'loud'; it must be one of 'all' and 'log_callback_only'"):
        HorovodRunner(np=-1, driver_log_verbosity="loud")


def test_torch_is_the_default_where_databricks_does_not_say_horovod():
    assert DistributedRunner(num_proc=-1).backend.name == "torch"
    assert HorovodRunner(np=-1)._runner.backend.name == "horovod"


def test_the_verbosity_is_an_argument_or_a_setting():
    quiet = RunConfig(driver_log_verbosity="log_callback_only", max_restarts=1)
    assert DistributedRunner(num_proc=1, run_config=quiet).run_config == quiet
    loud = DistributedRunner(num_proc=1, driver_log_verbosity="all", run_config=quiet).run_config
    assert loud == RunConfig(driver_log_verbosity="all", max_restarts=1)
    with pytest.raises(ValueError, match="'loud'; it must be one of"):
        DistributedRunner(num_proc=1, driver_log_verbosity="loud")


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(ValueError, match="'mpi'; it must be one of 'horovod', 'torch', "):
        DistributedRunner(num_proc=-1, backend="mpi")


@pytest.mark.parametrize("value", ["5", True, None])
def test_seconds_must_be_numbers(value):
    with pytest.raises(TypeError, match="slot_wait_seconds"):
        RunConfig(slot_wait_seconds=value)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_seconds_must_be_finite_and_not_negative(value):
    with pytest.raises(ValueError, match="shutdown_grace_seconds"):
        RunConfig(shutdown_grace_seconds=value)


def test_config_must_be_a_run_config():
    with pytest.raises(TypeError, match="it must be a RunConfig"):
        DistributedRunner(num_proc=-1, run_config={"driver_log_verbosity": "all"})
    with pytest.raises(TypeError, match="it must be a RunConfig"):
        HorovodRunner(np=-1, run_config={"tracking": False})


def test_horovod_runner_takes_all_settings_and_its_verbosity_by_name():
    runner = HorovodRunner(np=-1, run_config=RunConfig(tracking=False, max_restarts=2))
    taken = runner._runner.run_config
    assert (taken.tracking, taken.max_restarts) == (False, 2)
    assert taken.driver_log_verbosity == "log_callback_only", "Databricks' default"


@pytest.mark.parametrize("num_proc", [2, -2])
def test_a_restart_cannot_need_more_ranks_than_there_are(num_proc):
    enough = RunConfig(max_restarts=1, min_num_proc=2)
    assert DistributedRunner(num_proc=num_proc, run_config=enough).num_proc == num_proc
    with pytest.raises(
        ValueError, match=rf"min_num_proc is 3, and num_proc={num_proc} starts only 2"
    ):
        DistributedRunner(num_proc=num_proc, run_config=RunConfig(min_num_proc=3))


def test_a_range_of_ranks_is_their_number_and_the_least_that_will_do():
    for config in (None, RunConfig(min_num_proc=2)):
        runner = DistributedRunner(num_proc=(2, 4), run_config=config)
        assert (runner.num_proc, runner.run_config.min_num_proc) == (4, 2)
    assert DistributedRunner(num_proc=(1, 4)).run_config.min_num_proc == 1
    for wrong in ((4, 2), (0, 2), (-4, -2)):
        with pytest.raises(ValueError, match="it must be the least and the most ranks on Spark"):
            DistributedRunner(num_proc=wrong)
    for wrong in ((2,), (1, 2, 3), (1.0, 2), (True, 2), "24", b"24", range(2, 4), None):
        with pytest.raises(TypeError, match="it must be an int"):
            DistributedRunner(num_proc=wrong)
    with pytest.raises(ValueError, match="min_num_proc is 3; either says with how few"):
        DistributedRunner(num_proc=(2, 4), run_config=RunConfig(min_num_proc=3))


def test_ports_and_networks_are_checked():
    assert RunConfig(port_range=[40000, 40010]).port_range == (40000, 40010)
    for ports in ((40010, 40000), (80, 90), (40000, 70000)):
        with pytest.raises(ValueError, match="two ports from 1024 to 65535, the lower first"):
            RunConfig(port_range=ports)
    for ports in (40000, (40000,), "40000-40010", (40000.0, 40010), (True, 2000)):
        with pytest.raises(TypeError, match="it must be the first and the last port"):
            RunConfig(port_range=ports)
    for interface in ("eth1", "10.1.0.0/16", "10.1.2.3/16", "fd00::/8"):
        assert RunConfig(network_interface=interface).network_interface == interface
    with pytest.raises(ValueError, match=r"is no network .* write it as '10\.1\.0\.0/16'"):
        RunConfig(network_interface="10.1.0.0/99")
    with pytest.raises(TypeError, match="it must be the name of an interface"):
        RunConfig(network_interface=3)


def test_how_many_ranks_all_slots_make_is_asked_later():
    DistributedRunner(num_proc=0, run_config=RunConfig(min_num_proc=3))


def test_main_must_be_callable():
    with pytest.raises(TypeError, match="main is 'train', a str; it must be a function"):
        HorovodRunner(np=-1).run("train")


def train(learning_rate, epochs=1):
    return learning_rate, epochs


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"lr": 0.1}, r"train\(learning_rate, epochs=1\) cannot be called .*\(lr\)"),
        ((), {}, r"\(none\): missing a required argument: 'learning_rate'"),
        ((1, 2, 3), {}, r"\(3 by position\): too many positional arguments"),
        ((1,), {"learning_rate": 2}, r"\(1 by position, learning_rate\): multiple values for"),
    ],
)
def test_arguments_that_main_does_not_take_are_named(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        DistributedRunner(num_proc=-1).run(train, *args, **kwargs)


def test_horovod_runner_takes_arguments_by_name_as_databricks_documents():
    with pytest.raises(TypeError, match="positional"):
        HorovodRunner(np=-1).run(train, 0.1)


def test_log_to_driver_takes_strings_only():
    with pytest.raises(TypeError, match="takes a string; it was given 3"):
        log_to_driver(3)


def test_log_to_driver_outside_a_rank_prints_at_most_4000_characters(capsys):
    log_to_driver("x" * 5000)
    assert capsys.readouterr().out == "x" * 4000 + "\n"


def test_a_task_of_spark_is_not_the_driver(monkeypatch):
    in_a_task = SimpleNamespace(TaskContext=SimpleNamespace(get=object))
    monkeypatch.setitem(sys.modules, "pyspark", in_a_task)
    with pytest.raises(LaunchError, match="inside a Spark task; it must be called on the driver"):
        DistributedRunner(num_proc=-1).run(print)


def test_gather_returns_what_the_ranks_returned(monkeypatch):
    called = []

    def run(self, main, *args, **kwargs):
        called.append((args, kwargs))
        return [3, 5]

    monkeypatch.setattr(DistributedRunner, "run", run)
    assert DistributedRunner(num_proc=-2).gather(train, 0.1, epochs=2) == [3, 5]
    assert called == [((0.1,), {"epochs": 2})]
