"""``Trainer`` on ranks: the same training as in one process, whatever joins them."""

from __future__ import annotations

import pytest
import trainer_functions as functions

from every_backend import EVERY_BACKEND
from sparkdl_runner import DistributedRunner, RunConfig, WorkerFailedError
from training_tables import TABLES, write_sklearn

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def near(wanted):
    if isinstance(wanted, dict):
        return {name: near(one) for name, one in wanted.items()}
    return pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def alone():
    return DistributedRunner(num_proc=-1, backend="torch").run(
        functions.train_in_many_ways, size=12
    )


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diabetes")
    write_sklearn(folder, "diabetes")
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Of each table, the rows to train with and the rest."""
    folder = tmp_path_factory.mktemp("tables")
    for name in TABLES:
        for part, rows in (name, slice(300)), (f"{name}-rest", slice(300, None)):
            (folder / part).mkdir()
            write_sklearn(folder / part, name, rows)
    return folder


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_two_ranks_train_and_evaluate_as_one_does(alone, backend):
    found = DistributedRunner(num_proc=-2, backend=backend).run(
        functions.train_in_many_ways, size=12
    )
    for way, one in found.items():
        if isinstance(one, dict):
            for part in ("loss", "weights", "evaluation"):
                assert one[part] == near(alone[way][part]), (way, part)
    assert found["accumulated"]["weights"] == near(found["plain"]["weights"])
    assert found["buffers"][0] == found["buffers"][1]
    assert found["should_stop"]
    if backend == "torch":
        assert found["sharded"]["loss"] == near(found["clipped"]["loss"])
        assert found["sharded"]["weights"] == near(found["clipped"]["weights"])
        whole = found["plain"]["local_numbers"]
        assert found["sharded"]["local_numbers"] <= 0.6 * whole


def test_more_ranks_end_with_the_metrics_of_one(tables):
    one, *others = (
        DistributedRunner(num_proc=-size, backend="torch").run(
            functions.final_metrics, folder=tables
        )
        for size in (1, 2, 4)
    )
    assert min(one.values()) > 0.4
    for other in others:
        assert other == pytest.approx(one, rel=0.01)


@pytest.mark.parametrize(
    ("backend", "strategy"), [("torch", "ddp"), ("torch", "fsdp2"), ("horovod", "ddp")]
)
def test_a_training_that_lost_a_rank_goes_on_bit_for_bit(
    diabetes, tmp_path, backend, strategy, capfd
):
    config = RunConfig(max_restarts=1, tracking=False)
    whole, cut = (
        DistributedRunner(num_proc=-2, backend=backend, run_config=config).run(
            functions.train_and_lose_a_rank,
            folder=diabetes,
            checkpoints=tmp_path / f"checkpoints-{die_at}",
            die_at=die_at,
            strategy=strategy,
        )
        for die_at in (None, 5)
    )
    # 442 rows: an epoch has 6 batches of 64, which are 2 steps of 4 and 2 batches. The checkpoint
    # was of step 3, in the middle of the second epoch.
    assert whole["steps"] == [1, 2, 3, 4, 5, 6]
    assert cut["steps"] == [4, 5, 6]
    assert cut["history"] == whole["history"]
    assert cut["weights"] == whole["weights"]
    # It had saved a checkpoint, which the driver knows although nothing is tracked.
    assert "Restarting all ranks at once: restart 1 of 1." in capfd.readouterr().err


def test_a_loss_that_is_nan_names_step_rank_and_batch():
    with pytest.raises(WorkerFailedError) as caught:
        DistributedRunner(num_proc=-2, backend="torch").run(functions.fail_with_nan)
    assert "The loss of step 2 is nan on rank 1" in str(caught.value)
    assert "1 of 4 NaN or infinite" in str(caught.value)
