"""Rows of the table of failures that are the same on every kind of cluster."""

from __future__ import annotations

import pytest
import rank_functions

from processes import wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    RunConfig,
    WorkerDiedError,
    WorkerFailedError,
    WorkerHungError,
)

# The name of a host, and its address if another host has the same name.
HOST = r"\S+(?: \(\S+\))?"
ROWS = {
    "raise": (
        WorkerFailedError,
        rf"Rank 1 of 2 on host {HOST} raised ValueError: the data of rank 1",
    ),
    "kill": (WorkerDiedError, rf"Rank 1 of 2 on host {HOST} was ended by SIGKILL"),
    "exit": (WorkerDiedError, rf"Rank 1 of 2 on host {HOST} exited with code 7"),
    "stop": (WorkerHungError, rf"Rank 1 of 2 on host {HOST} has .*stopped \(SIGSTOP\)"),
}


def check(backend: str, how: str) -> None:
    """Breaks rank 1 in one way and looks at the error; nothing may be left."""
    error, words = ROWS[how]
    # Short where it is what is waited for; else a busy machine might have it first.
    deadline = {"hang_timeout_seconds": 10} if how == "stop" else {}
    config = RunConfig(driver_log_verbosity="log_callback_only", **deadline)
    runner = DistributedRunner(num_proc=2, backend=backend, run_config=config)
    with pytest.raises(error, match=words) as caught:
        runner.run(rank_functions.fail_in_rank, backend=backend, rank=1, how=how)
    assert caught.value.rank == 1
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
