"""Code for Horovod's elastic mode runs unchanged, and goes on from its last commit."""

from __future__ import annotations

import elastic_functions as functions
import pytest

from sparkdl_runner import DistributedRunner, RunConfig, WorkerFailedError

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def runner(place):
    config = RunConfig(max_restarts=2, restart_backoff_seconds=0, elastic_state_url=str(place))
    return DistributedRunner(num_proc=-2, backend="horovod", run_config=config)


def test_after_a_lost_rank_each_row_is_still_read_once_an_epoch_and_weights_are_equal(tmp_path):
    whole = runner(tmp_path / "whole").run(functions.train, fail_at=None)
    cut = runner(tmp_path / "cut").run(functions.train, fail_at=16)
    assert whole["resets"] == []
    assert cut["resets"] == [15]
    del whole["resets"], cut["resets"]
    assert cut == whole
    read = [row for rows in whole["seen"] for row in rows]
    half = functions.ROWS
    assert sorted(read[:half]) == sorted(read[half:]) == list(range(half))


def test_what_horovod_refuses_is_raised_and_not_tried_again(tmp_path):
    with pytest.raises(WorkerFailedError, match="No Adasum operation enabled") as raised:
        runner(tmp_path).run(functions.refuse)
    assert raised.value.attempt == 0
    assert "Take op=hvd.Average" in raised.value.remote_traceback
