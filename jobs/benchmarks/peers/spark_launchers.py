"""Launchers of Spark jobs, called in the session there is: horovod's, and Spark's own for torch.

Both give a function that runs the work as so many ranks, and returns what rank 0 did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Work = Callable[[], Any]


def horovod_spark_run(ranks: int, work: _Work) -> _Work:
    import horovod.spark

    # Its ranks' addresses are logged at every start unless it is told to be silent.
    return lambda: horovod.spark.run(work, num_proc=ranks, verbose=0)[0]


def torch_distributor(ranks: int, work: _Work) -> _Work:
    from pyspark.ml.torch.distributor import TorchDistributor

    # It can be made only in a session.
    options: dict[str, Any] = {"num_processes": ranks, "local_mode": False, "use_gpu": False}
    return lambda: TorchDistributor(**options).run(work)
