"""What Horovod's estimators are told before any rank starts."""

from __future__ import annotations

import io
import sys
from importlib import metadata

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl_runner import LaunchError, RunConfig
from sparkdl_runner.horovod import SparkBackend, create_store, spark_backend


def make_training_function():
    # As in horovod.spark.torch.remote: a class of this name, in the enclosing function.
    class PetastormDataModule:
        pass

    data_module = PetastormDataModule

    def train():
        return data_module()

    return train


def test_petastorm_that_cannot_run_is_refused_before_ranks_start(monkeypatch):
    version = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "22.0.0" if name == "pyarrow" else version(name)
    )
    sentence = (
        r"read their data by petastorm, and petastorm needs pyarrow below 15, and this is pyarrow "
        r"22\.0\.0: use sparkdl_runner\.estimator\.TorchEstimator, which needs none, or an"
    )
    with pytest.raises(LaunchError, match=sentence):
        SparkBackend(-1).run(make_training_function())


def test_variables_cannot_come_on_top_of_patterns():
    backend = SparkBackend(-1, run_config=RunConfig(environment=["MY_*"]))
    sentence = r"a list of patterns, .* variables besides \(LIBHDFS_OPTS\): give environment as a"
    with pytest.raises(ValueError, match=sentence):
        backend.run(print, env={"LIBHDFS_OPTS": "-Xmx2g"})


def test_it_takes_what_distributed_runner_takes():
    assert SparkBackend(-3).num_processes() == 3
    assert SparkBackend(4, run_config=RunConfig(tracking=False)).num_processes() == 4
    with pytest.raises(TypeError, match="num_proc is None"):
        SparkBackend(None)
    with pytest.raises(ValueError, match="'loud'; it must be one of"):
        SparkBackend(2, driver_log_verbosity="loud")
    with pytest.raises(TypeError, match="it must be a RunConfig"):
        SparkBackend(2, run_config={})


def test_as_many_ranks_as_slots_need_a_session(monkeypatch):
    # Other tests of this process may still have theirs.
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(LaunchError, match="no Spark session"):
        SparkBackend().num_processes()


@pytest.mark.parametrize("parent", ["file://{tmp_path}", "memory://fits"])
def test_horovod_reads_what_is_in_a_store_by_todays_arrow(tmp_path, parent):
    from horovod.spark.common.util import get_simple_meta_from_parquet

    # The paths of fsspec's memory are others than its URLs', as those of Azure's stores are.
    url = parent.format(tmp_path=tmp_path) + "/store"
    store = create_store(url)
    for name, lengths in ("train", (3, 4)), ("val", (2,)):
        for part, length in enumerate(lengths):
            table = pa.table({"x": [0.5] * length, "y": [1] * length})
            path = f"{url}/intermediate_{name}_data.0/part-{part}.parquet"
            with fsspec.open(path, "wb", auto_mkdir=True) as file:
                pq.write_table(table, file)
    train_rows, val_rows, columns, row_bytes = get_simple_meta_from_parquet(
        store, ["y"], ["x"], sample_weight_col=None, dataset_idx=0
    )
    assert (train_rows, val_rows) == (7, 2)
    assert sorted(columns) == ["x", "y"]
    assert row_bytes > 0
    assert store.is_parquet_dataset(store.get_train_data_path(0))
    assert not store.is_parquet_dataset(store.get_train_data_path(1))
    store.fs.rm(url, recursive=True)


def test_it_takes_what_horovods_own_example_gives(recwarn):
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    backend = SparkBackend(
        2,
        **streams,
        prefix_output_with_timestamp=True,
        verbose=2,
        start_timeout=300,
        env={"A": "1"},
    )
    assert backend._run_config.start_timeout_seconds == 300
    assert backend._run_config.slot_wait_seconds == 300
    assert not recwarn.list


def test_an_unknown_name_and_mpi_are_told():
    with pytest.raises(TypeError, match="has no start_timeouts; did you mean 'start_timeout'"):
        SparkBackend(2, start_timeouts=3)
    SparkBackend(2, use_mpi=False, use_gloo=True, executable=sys.executable, extra_mpi_args="-x")
    for mpi in {"use_mpi": True}, {"use_gloo": False}:
        with pytest.raises(LaunchError, match="ranks are not started by MPI here: leave both out"):
            SparkBackend(2, **mpi)
    with pytest.raises(LaunchError, match="executable is '/usr/bin/python2', and ranks run in"):
        SparkBackend(2, executable="/usr/bin/python2")


def test_one_interface_is_where_ranks_meet():
    for nics in "eth1", {"eth1"}, ["eth1"]:
        assert SparkBackend(2, nics=nics)._run_config.network_interface == "eth1"
    assert SparkBackend(2, nics=set())._run_config.network_interface is None
    with pytest.raises(ValueError, match=r"nics names 2 interfaces \(eth0, eth1\), and ranks meet"):
        SparkBackend(2, nics={"eth1", "eth0"})


def test_variables_of_the_backend_and_of_a_fit_come_together(monkeypatch):
    made = []

    class Runner:
        mlflow_run_id = None

        def __init__(self, **options):
            made.append(options["run_config"].environment)

        def gather(self, *_, **__):
            return []

    backend = SparkBackend(-1, env={"A": "1", "B": "1", "PYTHONPATH": "/mine"})
    monkeypatch.setattr(spark_backend, "DistributedRunner", Runner)
    backend.run(print, env={"B": "2"})
    assert made == [{"A": "1", "B": "2"}]


def test_streams_get_what_ranks_print(monkeypatch):
    made = []

    class Runner:
        mlflow_run_id = None

        def __init__(self, **options):
            self.reports = []
            self.verbosity = options["run_config"].driver_log_verbosity
            made.append(self)

        def gather(self, function):
            return [function()]

    # Only with "all" do agents send what ranks print.
    quiet = RunConfig(driver_log_verbosity="log_callback_only")
    out, error = io.StringIO(), io.StringIO()
    backends = [
        SparkBackend(2, run_config=quiet),
        SparkBackend(2, run_config=quiet, stdout=out),
        SparkBackend(2, run_config=quiet, prefix_output_with_timestamp=True),
        SparkBackend(2, run_config=quiet, stdout=out, stderr=out),
    ]
    monkeypatch.setattr(spark_backend, "DistributedRunner", Runner)
    monkeypatch.setattr(sys, "stderr", error)
    for backend in backends:
        backend.run(lambda: print("e", file=sys.stderr))
    assert [len(runner.reports) for runner in made] == [0, 1, 1, 1]
    assert [runner.verbosity for runner in made] == ["log_callback_only", "all", "all", "all"]
    # Those of the two that tell stderr from stdout are marked.
    assert error.getvalue() == "e\n<stderr>:e\n<stderr>:e\ne\n"
