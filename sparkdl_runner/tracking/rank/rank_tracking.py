"""The tracking of one rank, from the start of its worker to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from types import ModuleType
from typing import Any

from sparkdl_runner.base.importing import when_imported
from sparkdl_runner.rank import rank_facts
from sparkdl_runner.tracking.rank import metrics, other_ranks, rank_zero
from sparkdl_runner.tracking.rank.recorder import Recorder, Send
from sparkdl_runner.tracking.rank.step_trace import StepTrace
from sparkdl_runner.tracking.rank_run import RankRun, artifacts_in


def begin(rank: int, run: Mapping[str, Any] | None, send: Send, *, trace_steps: bool) -> Recorder:
    """Sets tracking up in this rank. Called once, by the worker.

    Args:
        rank: This rank.
        run: The MLflow run, as ``RankRun.to_json`` made it; None if there is none.
        send: Takes reports; see ``Recorder``.
        trace_steps: Whether rank 0 traces its first steps.

    Returns:
        The recorder, to be closed at the end.
    """
    rank_facts.note(gpus=_visible_gpus(), cores=_threads())
    trace = None
    if run is not None and trace_steps and rank == 0:
        trace = StepTrace(artifacts_in(run["folder"]) / "torch-profiler-rank-0.json.gz")
    recorder = Recorder(rank, send, trace, run_id="" if run is None else str(run["run_id"]))
    if run is not None:
        recorder.start()
        set_up_mlflow(RankRun(**run), recorder)
    metrics.use(recorder)

    def report() -> None:
        with suppress(OSError):  # The agent is gone, and this process will be.
            recorder.flush()

    rank_facts.send_by(report)
    report()  # Once all ranks have reported, the driver prints that they started.
    return recorder


def set_up_mlflow(run: RankRun, recorder: Recorder) -> None:
    """Sets MLflow up when it is imported, and not before: rank 0's calls go to ``recorder``.

    Importing it takes seconds, and many functions never do.
    """

    def set_up(_: ModuleType) -> None:
        if run.rank == 0:
            rank_zero.set_up(run, recorder)
        else:
            other_ranks.set_up(run)

    when_imported("mlflow", set_up)


def _threads() -> int:
    """The CPU threads that the rank was given; 0 if that is unknown."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(threads) if threads.isdecimal() else 0


def _visible_gpus() -> list[str]:
    """The names of the GPUs that the rank sees; another task's ranks may see others of the host."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:  # CUDA reads it up to the first entry that is no GPU, such as -1.
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, named.split(","))))
    torch = sys.modules.get("torch")
    return [str(gpu) for gpu in range(torch.cuda.device_count())] if torch is not None else []
