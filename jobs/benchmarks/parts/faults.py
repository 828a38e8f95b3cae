"""Breaks runs in every way that the table of promises names, and measures what the user gets.

Every fault is injected into a real run on ``local[2]`` (an executor's loss into one on
``local-cluster``). Reported for each: whether the error names the cause and the rank, the time from
the fault to the error, and what was left behind: processes, listening ports, temporary files.
The logs of failed ranks stay on purpose and do not count. ``--gang tasks`` starts ranks as ordinary
tasks, on executors that come for them (dynamic allocation). ``--mixed 200`` adds so many
faults, one to three at once, to ranks on two hosts; ``--only none`` leaves out all others.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.parts import mixed_faults
from benchmarks.ranks.faulty_ranks import LOOP_SECONDS, RANKS, Fault, healthy_run, work_of_a_rank
from benchmarks.figures import aligned
from benchmarks.host.leftovers import belongings, leftovers
from benchmarks.ranks.processes import JOBS
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "every fault of the table, and what it costs"
DEADLINE_SECONDS = 5.0
FAULTS = [
    *(
        Fault(name=f"{how} at {where}", how=how, where=where)
        for how in ("raise", "kill", "exit")
        for where in ("start", "rendezvous", "allreduce", "data")
    ),
    Fault(name="kill at exit", how="kill", where="exit"),
    Fault(name="stopped rank (SIGSTOP)", how="stop", where="allreduce"),
    Fault(name="stuck rank (sleeps)", how="sleep", where="allreduce"),
    Fault(name="killed agent", how="agent", where="allreduce"),
    Fault(name="cancelled job", how="cancel", where="allreduce"),
]
CLUSTER = "local-cluster[2,1,1024]"
# Executors come for each run, and go.
GROWING = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.executor.cores": "1",
}
EXECUTOR = Fault(name="executor killed", how="executor", where="allreduce")
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--backends", nargs="+", default=["horovod", "torch"])
    parser.add_argument("--random", type=int, default=50, help="faults at random moments")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--mixed", type=int, default=0, help="faults over several hosts, see there")
    parser.add_argument("--gang", choices=["barrier", "tasks"], default="barrier", help="of ranks")
    parser.add_argument("--ranks-per-task", type=int, default=1, help="1 or 2, of two ranks")
    parser.add_argument("--only", default="", help="faults whose name contains this")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Injects all faults, those that need executors in a process with a cluster of its own."""
    dice = random.Random(arguments.seed)
    on_a_cluster = CLUSTER in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    is_elsewhere = arguments.gang == "tasks" and not on_a_cluster
    each = arguments.random // len(arguments.backends)
    faults = [*FAULTS, *_random_faults(dice, each), *([EXECUTOR] if on_a_cluster else [])]
    plan = [
        (backend, fault)
        for backend in arguments.backends
        for fault in faults
        if arguments.only in fault.name and not is_elsewhere
    ]
    results = _run_all(plan, arguments.ranks_per_task) if plan else []
    if arguments.mixed:
        results += mixed_faults.run(arguments.mixed, arguments.seed, arguments.backends)
    if is_elsewhere:
        results += _on_a_cluster(arguments, arguments.only, GROWING)
    elif not on_a_cluster and arguments.only in EXECUTOR.name:
        results += _on_a_cluster(arguments, EXECUTOR.name, {})
    return {"summary": _summary(results), "results": results}


def _summary(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    summary: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(one["fault"] for one in results):
        those = [one for one in results if one["fault"] == name]
        seconds = [one["seconds"] for one in those]
        summary[name] = {
            "runs": len(those),
            "correct": sum(one["is_correct"] for one in those),
            "median_seconds": statistics.median(seconds),
            "worst_seconds": max(seconds),
            "left": [left for one in those for left in one["left"]],
        }
    return summary


def table(report: Mapping[str, Any]) -> str:
    """For each fault the share of right errors, their time, and leftovers."""
    rows = [("", "runs", "right", "median", "worst", "left")]
    for name, one in report["summary"].items():
        seconds = [f"{one[key]:.2f} s" for key in ("median_seconds", "worst_seconds")]
        left = ", ".join(one["left"]) or "nothing"
        rows.append((name, str(one["runs"]), str(one["correct"]), *seconds, left))
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether every error was right, and nothing was left behind."""
    return all(one["is_correct"] and not one["left"] for one in report["results"])


def _on_a_cluster(
    arguments: argparse.Namespace, only: str, settings: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Runs what needs executors of their own, in a process of its own: it has another JVM."""
    import pyspark

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "faults.json"
        command = [sys.executable, str(JOBS / "benchmark.py"), "faults"]
        command += ["--only", only, "--output", str(output), "--gang", arguments.gang]
        command += ["--random", str(arguments.random), "--seed", str(arguments.seed)]
        command += ["--ranks-per-task", str(arguments.ranks_per_task)]
        conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        subprocess.run(
            [*command, "--backends", *arguments.backends],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": f"--master {CLUSTER} --conf spark.ui.enabled=false "
                f"--conf spark.executor.memory=1g {conf} pyspark-shell",
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
            },
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return list(json.loads(output.read_text())["results"])


def _random_faults(dice: random.Random, count: int) -> list[Fault]:
    return [
        Fault(
            name=f"{how} at a random moment",
            how=how,
            where="random",
            delay_seconds=dice.uniform(0, LOOP_SECONDS),
            rank=dice.randrange(RANKS),
        )
        for how in (dice.choice(("raise", "kill")) for _ in range(count))
    ]


def _run_all(plan: list[tuple[str, Fault]], ranks_per_task: int) -> list[dict[str, Any]]:
    spark = start_spark("sparkdl_runner fault benchmark", slots=RANKS)
    with tempfile.TemporaryDirectory() as folder:
        # The first run loads what later ones find loaded.
        converter = _data(spark, Path(folder))
        healthy_run(plan[0][0])
        results = []
        for number, (backend, fault) in enumerate(plan):
            mark = Path(folder) / f"mark-{number}"
            result = _break(spark, backend, fault, converter, mark, ranks_per_task)
            results.append(result)
            print(
                f"{backend}, {fault.name} ({fault.delay_seconds:.2f} s): "
                f"{'right' if result['is_correct'] else 'WRONG: ' + result['error']} "
                f"after {result['seconds']:.2f} s, left: {', '.join(result['left'])}",
                file=sys.stderr,
            )
            if not result["is_correct"] or number % 10 == 9:
                healthy_run(backend)  # the session must still be good
    healthy_run(plan[-1][0])
    spark.stop()
    return results


def _data(spark: Any, folder: Path) -> Any:
    from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter

    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{folder}/cache")
    return make_spark_converter(spark.range(10_000).selectExpr("id", "id / 2 AS half"))


def _break(
    spark: Any, backend: str, fault: Fault, converter: Any, mark: Path, ranks_per_task: int
) -> dict[str, Any]:
    """Injects one fault, and says what became of it.

    ``seconds`` are from the fault to the error; of a cancelled run, to its last process's end.
    """
    from sparkdl_runner import DistributedRunner, RunConfig, RunnerError

    # Only for ranks that hang: on a busy machine a starting rank may lack progress as long.
    deadline: dict[str, Any] = (
        {"hang_timeout_seconds": DEADLINE_SECONDS} if fault.how in HANGS else {}
    )
    config = RunConfig(
        driver_log_verbosity="log_callback_only",
        restart_backoff_seconds=0,
        ranks_per_task=ranks_per_task,
        **deadline,
    )
    before = belongings()
    group = f"fault-{mark.name}"
    spark.sparkContext.setJobGroup(group, fault.name)
    if fault.how == "cancel":
        threading.Thread(target=_cancel_after_mark, args=(spark, group, mark), daemon=True).start()
    error: BaseException | None = None
    notes = io.StringIO()
    try:
        with contextlib.redirect_stderr(notes):
            DistributedRunner(num_proc=RANKS, backend=backend, run_config=config).run(
                work_of_a_rank(), backend=backend, fault=fault, converter=converter, mark=str(mark)
            )
    except RunnerError as caught:
        error = caught
    ended_at = time.time()
    if fault.how == "cancel":
        while belongings()["processes"] - before["processes"]:
            time.sleep(0.02)
        ended_at = time.time()
    struck_at = float(mark.read_text()) if mark.exists() else float("nan")
    left = leftovers(before)
    name, words = HOW[fault.how]
    is_correct = type(error).__name__ == name and words in str(error)
    if fault.where == "exit":  # All ranks have returned: the value counts, and a note is shown.
        is_correct = error is None and words in notes.getvalue()
    if error is not None and hasattr(error, "rank"):
        # The ranks of a task are lost together.
        alike = ranks_per_task if fault.how in ("agent", "executor") else 1
        is_correct = is_correct and error.rank // alike == fault.rank // alike
    return {
        "fault": fault.name,
        "backend": backend,
        "is_correct": is_correct,
        "seconds": round(ended_at - struck_at, 3),
        "left": left,
        "error": f"{type(error).__name__}: {error}".splitlines()[0],
    }


def _cancel_after_mark(spark: Any, group: str, mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.02)
    spark.sparkContext.cancelJobGroup(group)
