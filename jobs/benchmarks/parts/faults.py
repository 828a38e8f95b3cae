"""Breaks runs in every way that the table of promises names, and measures what the user gets.

Every fault strikes a real run on ``local[2]`` (an executor's loss one on ``local-cluster``) of each
backend. ``right`` is 1 if the error names the cause and the rank; ``left`` counts the processes,
listening ports and temporary files that stay. The logs of failed ranks stay on purpose and do not
count. After all of them a run of the same session must go through. ``PYSPARK_SUBMIT_ARGS`` may
choose another cluster for all but that loss, such as one of dynamic allocation.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.host.leftovers import belongings, leftovers
from benchmarks.ranks.faulty_ranks import LOOP_SECONDS, RANKS, Fault, healthy_run, work_of_a_rank
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "every fault of the table, and what it costs"
DEADLINE_SECONDS = 5.0
PLACES = ("start", "rendezvous", "allreduce", "data")
FAULTS = [
    *(Fault(f"{how} at {one}", how, one) for how in ("raise", "kill", "exit") for one in PLACES),
    Fault("kill at exit", "kill", "exit"),
    Fault("stopped rank (SIGSTOP)", "stop"),
    Fault("stuck rank (sleeps)", "sleep"),
    Fault("killed agent", "agent"),
    Fault("cancelled job", "cancel"),
]
RANDOM = [Fault(f"{how} at a random moment", how, "random") for how in ("raise", "kill")]
EXECUTOR = Fault("executor killed", "executor")
CLUSTER = "local-cluster[2,1,1024]"
HOW = {
    "raise": ("WorkerFailedError", "injected"),
    "kill": ("WorkerDiedError", "SIGKILL"),
    "exit": ("WorkerDiedError", "exited with code 7"),
    "stop": ("WorkerHungError", "SIGSTOP"),
    "sleep": ("WorkerHungError", "no progress"),
    "executor": ("WorkerDiedError", "is lost: executor"),
    "agent": ("WorkerDiedError", "the Python process of its Spark task was killed"),
    "cancel": ("RunCancelledError", "cancelled"),
}
"""Per kind, the error that is expected, and words of its text."""
HANGS = ("stop", "sleep")
GONE_SECONDS = 30.0
RIGHT = Figure(unit="", better="more", bound=1)
FIGURES = {
    "fault to error": Figure(unit="s", better="less"),
    "right": RIGHT,
    "left": Figure(unit="", better="less", bound=0),
}
FACTS = {
    "ranks": RANKS,
    "time": "from the fault to the error on the driver; of a rank that hangs, with its deadline of "
    f"{DEADLINE_SECONDS:g} s; of a cancelled job, to the end of its last process",
}

OPTIONS = (
    Option("backends", ["horovod", "torch"], quick=["torch"]),
    Option("random", 3, quick=1, type=int, help="moments, of each kind and backend"),
    Option("seed", 0, type=int, help="of the random moments"),
    Option("only", "", quick="kill at", help="faults whose name contains this"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """All faults, those that need executors in a session that has some."""
    faults = [*FAULTS, *(RANDOM if arguments.random else [])]
    with _temporary_folder():
        for master, known in (("", faults), (CLUSTER, [EXECUTOR])):
            if chosen := [one for one in known if arguments.only in one.name]:
                yield from _cases_of_a_session(arguments, master, chosen)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[None]:
    """Of this process alone: what others leave in the common one is no leftover of a run."""
    common = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            os.environ["TMPDIR"] = tempfile.tempdir = common


def _cases_of_a_session(
    arguments: argparse.Namespace, master: str, faults: list[Fault]
) -> Iterator[Case]:
    if master:
        import pyspark
        from pyspark.sql import SparkSession

        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
        builder.config("spark.executor.memory", "1g").getOrCreate()
    spark = start_spark("sparkdl_runner fault benchmark", slots=RANKS)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        breaks = _Breaks(spark, Path(folder), arguments.seed)
        for backend in arguments.backends:
            healthy_run(backend)  # It loads what later ones find loaded.
        for fault in faults:
            yield Case(
                name=fault.name,
                figures=FIGURES,
                ours={one: partial(breaks.measure, one, fault) for one in arguments.backends},
                turns=arguments.random if fault in RANDOM else 1,
                turns_repeat=False,
                facts=FACTS,
            )
        yield Case(
            name="no fault, after all of these",
            figures={"right": RIGHT},
            ours={one: partial(healthy_run, one) for one in arguments.backends},
            facts={"ranks": RANKS},
        )
    spark.stop()


class _Breaks:
    """Breaks runs of one session."""

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter

        self._spark = spark
        self._folder = folder
        self._dice = random.Random(seed)
        self._count = 0
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{folder}/cache")
        self._converter = make_spark_converter(spark.range(10_000).selectExpr("id", "id / 2 AS h"))

    def measure(self, backend: str, fault: Fault) -> dict[str, float]:
        """Injects one fault, and returns what became of it; no time, if it did not strike."""
        if fault in RANDOM:
            delay, rank = self._dice.uniform(0, LOOP_SECONDS), self._dice.randrange(RANKS)
            fault = replace(fault, delay_seconds=delay, rank=rank)
        self._count += 1
        mark = self._folder / f"mark-{self._count}"
        before = belongings()
        error, notes = self._run(backend, fault, mark)
        ended_at = time.time()
        latest = ended_at + (GONE_SECONDS if fault.how == "cancel" else 0)
        while ended_at < latest and belongings()["processes"] - before["processes"]:
            ended_at = time.time()
        left = leftovers(before)
        is_right = self._is_right(fault, error, notes)
        if left or not is_right:
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"  {backend}, {fault}: {told}; left: {', '.join(left) or 'nothing'}", flush=True)
        times = {"fault to error": ended_at - float(mark.read_text())} if mark.exists() else {}
        return {**times, "right": float(is_right), "left": len(left)}

    def _run(self, backend: str, fault: Fault, mark: Path) -> tuple[BaseException | None, str]:
        """Returns the error and what was said on standard error."""
        from sparkdl_runner import DistributedRunner, RunConfig, RunnerError

        # Only for ranks that hang: on a busy machine a starting rank may lack progress as long.
        deadline = {"hang_timeout_seconds": DEADLINE_SECONDS} if fault.how in HANGS else {}
        quiet: dict[str, Any] = {"driver_log_verbosity": "log_callback_only", **deadline}
        config = RunConfig(restart_backoff_seconds=0, **quiet)
        self._spark.sparkContext.setJobGroup(mark.name, fault.name)
        if fault.how == "cancel":
            threading.Thread(target=self._cancel_after, args=(mark,), daemon=True).start()
        notes = io.StringIO()
        try:
            with contextlib.redirect_stderr(notes):
                runner = DistributedRunner(num_proc=RANKS, backend=backend, run_config=config)
                runner.run(work_of_a_rank(), backend, fault, self._converter, str(mark))
        except RunnerError as caught:
            return caught, notes.getvalue()
        return None, notes.getvalue()

    def _is_right(self, fault: Fault, error: BaseException | None, notes: str) -> bool:
        name, words = HOW[fault.how]
        if fault.where == "exit":  # All ranks have returned: the value counts, and a note is shown.
            return error is None and words in notes
        is_rank = getattr(error, "rank", fault.rank) == fault.rank
        return type(error).__name__ == name and words in str(error) and is_rank

    def _cancel_after(self, mark: Path) -> None:
        while not mark.exists():
            time.sleep(0.02)
        self._spark.sparkContext.cancelJobGroup(mark.name)
