"""TensorFlow's own code as ranks: its strategy, Keras' fit, and the data that they read."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow_functions as functions

from sparkdl_runner import DistributedRunner, RunConfig, WorkerHungError

pytestmark = pytest.mark.integration


def on_ranks(num_proc: int = -2, **config) -> DistributedRunner:
    return DistributedRunner(
        num_proc=num_proc, backend="tensorflow", run_config=RunConfig(**config)
    )


@pytest.fixture(scope="module")
def fitted_on_spark(spark, converter, tmp_path_factory) -> list[dict[str, Any]]:
    """What both ranks tell of a training that nothing disturbs."""
    return on_ranks(2).gather(functions.fit, converter, str(tmp_path_factory.mktemp("backup")))


def test_gradients_of_two_ranks_are_those_of_one_process(table, converter, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # Peers are not reached by a proxy.
    told = on_ranks().gather(functions.train_by_hand, converter)
    rows = pq.read_table(table)
    inputs = np.stack(rows["features"].to_numpy())
    error = inputs @ [[0.5], [-0.5], [1.0]] - rows["label"].to_numpy()[:, None]
    expected = 2 * inputs.T @ error / len(error)
    for one in told:
        assert one["replicas"] == 2
        np.testing.assert_allclose(one["gradient"], expected, rtol=1e-5)
        # The server listens on all interfaces, for the run's own addresses alone.
        assert one["reached_from"] == ["127.0.0.1"]
        assert "pip install tf_keras" in one["keras_3"]
        # Else TensorFlow notes it and goes on, and a rank would not end when it is told to.
        assert not one["catches_sigterm"]
        assert one["modules"] == []


def test_ranks_share_the_rows_and_go_on_at_another_number_of_ranks(converter):
    first, second = on_ranks().gather(functions.read_and_resume, converter)
    assert len(first["ids"]) == len(second["ids"]) == 2 * first["steps_per_epoch"] == 8
    for epoch in (slice(4), slice(4, 8)):
        rows = [row for one in (first, second) for ids in one["ids"][epoch] for row in ids]
        assert len(rows) == len(set(rows)) == 96
    assert first["names"][0] == [b"row %d" % row for row in first["ids"][0]]
    assert first["state"] == second["state"]
    alone = on_ranks(-1).run(functions.read_and_resume, converter, first["state"])
    both = zip(first["ids"][5:], second["ids"][5:], strict=True)
    assert [sorted(ids) for ids in alone["ids"]] == [sorted(a + b) for a, b in both]
    assert first["third_epoch"] not in first["ids"]
    assert sorted(alone["third_epoch"]) == sorted(first["third_epoch"] + second["third_epoch"])


def test_on_spark(fitted_on_spark):
    assert [one["epochs"] for one in fitted_on_spark] == [3, 3]
    assert fitted_on_spark[0]["weights"] == fitted_on_spark[1]["weights"]


def test_a_killed_rank_is_named_and_keras_goes_on_from_its_backup(
    converter, fitted_on_spark, tmp_path, capfd
):
    told = on_ranks(max_restarts=1).run(functions.fit, converter, str(tmp_path), dies=True)
    assert "Rank 1 of 2 on host" in (said := capfd.readouterr().err)
    assert "SIGKILL" in said
    assert (told["attempt"], told["steps_before"], told["epochs"]) == (1, 8, 1)
    whole = fitted_on_spark[0]["weights"]
    np.testing.assert_allclose(told["weights"][0], whole[0], rtol=1e-5)


def test_who_is_late_is_named_and_not_who_waits():
    with pytest.raises(WorkerHungError, match="has not joined its peers") as caught:
        on_ranks(rendezvous_timeout_seconds=2).run(functions.join_late, 600)
    assert caught.value.rank == 1


def test_on_another_backend_the_strategy_is_refused():
    code = (
        "from sparkdl_runner.launch.backends import get_backend\n"
        "get_backend('horovod').join_in_worker(None)\n"
        "import tensorflow as tf\n"
        "tf.distribute.MultiWorkerMirroredStrategy()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
    )
    assert "choose the tensorflow backend" in done.stderr
    assert "or call hvd.init() in its place" in done.stderr
