"""Breaks runs in every way that the table of promises names, and measures what the user gets.

Every fault is injected into a real run on ``local[2]`` (an executor's loss into one on
``local-cluster``). Reported for each: whether the error names the cause and the rank, the time from
the fault to the error, and what was left behind: processes, listening ports, temporary files.
The logs of failed ranks stay on purpose and do not count.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faulty_ranks import LOOP_SECONDS, RANKS, Fault, healthy_run, work_of_a_rank
from sparkdl_runner.jobs.spark.session import start_spark

DEADLINE_SECONDS = 5.0
# Spark's own folders, and the logs that are kept on purpose.
_NOT_OURS = ("spark-", "blockmgr-", "hsperfdata", "liblz4-java", "sparkdl_runner-logs")

Strike = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of it."""

    fault: str
    backend: str
    is_correct: bool
    seconds: float
    """From the fault to the error; for a cancelled run, to the end of the last process."""
    processes_left: int
    ports_left: int
    files_left: list[str]
    error: str


FAULTS = [
    *(
        Fault(name=f"{how} at {where}", how=how, where=where)
        for how in ("raise", "kill", "exit")
        for where in ("start", "rendezvous", "allreduce", "data")
    ),
    Fault(name="kill at exit", how="kill", where="exit"),
    Fault(name="stopped rank (SIGSTOP)", how="stop", where="allreduce"),
    Fault(name="stuck rank (sleeps)", how="sleep", where="allreduce"),
    Fault(name="cancelled job", how="cancel", where="allreduce"),
]
CLUSTER = "local-cluster[2,1,1024]"
EXECUTOR = Fault(name="executor killed", how="executor", where="allreduce")
HOW = {
    "raise": ("WorkerFailedError", "injected"),
    "kill": ("WorkerDiedError", "SIGKILL"),
    "exit": ("WorkerDiedError", "exited with code 7"),
    "stop": ("WorkerHungError", "SIGSTOP"),
    "sleep": ("WorkerHungError", "no progress"),
    "executor": ("WorkerDiedError", "is lost: executor"),
    "cancel": ("RunCancelledError", "cancelled"),
}
"""Per kind, the error that is expected, and words of its text."""
HANGS = ("stop", "sleep")


def add_parser(benchmarks: Any) -> None:
    """Adds this benchmark to the command line."""
    parser = benchmarks.add_parser("faults", help="every fault of the table, and what it costs")
    parser.add_argument("--backends", nargs="+", default=["horovod", "torch"])
    parser.add_argument("--random", type=int, default=50, help="faults at random moments")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-faults.json"), help="the JSON file"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark; returns 1 if an error was wrong or something was left behind."""
    dice = random.Random(arguments.seed)
    on_a_cluster = CLUSTER in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    faults = [EXECUTOR]
    if not on_a_cluster:
        each = arguments.random // len(arguments.backends)
        faults = [*FAULTS, *_random_faults(dice, each)]
    plan = [
        (backend, fault)
        for backend in arguments.backends
        for fault in faults
        if arguments.only in fault.name
    ]
    results = _run_all(plan) if plan else []
    if not on_a_cluster and arguments.only in EXECUTOR.name:
        results += _on_a_cluster(arguments)
    summary = _summary(results)
    report = {"summary": summary, "results": [asdict(one) for one in results]}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{'':<28}{'runs':>5}{'right':>7}{'median':>9}{'worst':>9}   left")
    for name, one in summary.items():
        print(
            f"{name:<28}{one['runs']:>5}{one['correct']:>7}{one['median_seconds']:>7.2f} s"
            f"{one['worst_seconds']:>7.2f} s   {one['left']}"
        )
    print(f"\nWritten to {arguments.output}")
    return 0 if all(one.is_correct and not _left(one) for one in results) else 1


def _on_a_cluster(arguments: argparse.Namespace) -> list[Result]:
    """Runs what needs executors of their own, in a process of its own: it has another JVM."""
    import pyspark

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "faults.json"
        command = [sys.executable, str(Path(__file__).parents[1] / "benchmark.py"), "faults"]
        command += ["--only", EXECUTOR.name, "--output", str(output)]
        subprocess.run(
            [*command, "--backends", *arguments.backends],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": f"--master {CLUSTER} --conf spark.ui.enabled=false "
                "--conf spark.executor.memory=1g pyspark-shell",
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
            },
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return [Result(**one) for one in json.loads(output.read_text())["results"]]


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


def _run_all(plan: list[tuple[str, Fault]]) -> list[Result]:
    spark = start_spark("sparkdl_runner fault benchmark", slots=RANKS)
    with tempfile.TemporaryDirectory() as folder:
        # The first run loads what later ones find loaded.
        converter = _data(spark, Path(folder))
        healthy_run(plan[0][0])
        results = []
        for number, (backend, fault) in enumerate(plan):
            result = _break(spark, backend, fault, converter, Path(folder) / f"mark-{number}")
            results.append(result)
            print(
                f"{backend}, {fault.name} ({fault.delay_seconds:.2f} s): "
                f"{'right' if result.is_correct else 'WRONG: ' + result.error} "
                f"after {result.seconds:.2f} s, left: {_left(result)}",
                file=sys.stderr,
            )
            if not result.is_correct or number % 10 == 9:
                healthy_run(backend)  # the session must still be good
    healthy_run(plan[-1][0])
    spark.stop()
    return results


def _data(spark: Any, folder: Path) -> Any:
    from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter

    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{folder}/cache")
    return make_spark_converter(spark.range(10_000).selectExpr("id", "id / 2 AS half"))


def _break(spark: Any, backend: str, fault: Fault, converter: Any, mark: Path) -> Result:
    from sparkdl_runner import DistributedRunner, RunConfig, RunnerError

    # Only where a rank hangs: on a busy machine one that starts may be as long without progress.
    deadline = {"hang_timeout_seconds": DEADLINE_SECONDS} if fault.how in HANGS else {}
    config = RunConfig(
        driver_log_verbosity="log_callback_only", restart_backoff_seconds=0, **deadline
    )
    before = _belongings()
    group = f"fault-{mark.name}"
    spark.sparkContext.setJobGroup(group, fault.name)
    if fault.how == "cancel":
        threading.Thread(target=_cancel_after_mark, args=(spark, group, mark), daemon=True).start()
    error: BaseException | None = None
    notes = io.StringIO()
    try:
        with contextlib.redirect_stderr(notes):
            DistributedRunner(num_proc=RANKS, backend=backend, config=config).run(
                work_of_a_rank(), backend=backend, fault=fault, converter=converter, mark=str(mark)
            )
    except RunnerError as caught:
        error = caught
    ended_at = time.time()
    if fault.how == "cancel":
        while _belongings()["processes"] - before["processes"]:
            time.sleep(0.02)
        ended_at = time.time()
    struck_at = float(mark.read_text()) if mark.exists() else float("nan")
    left = _left_after(before)
    name, words = HOW[fault.how]
    is_correct = type(error).__name__ == name and words in str(error)
    if fault.where == "exit":  # All ranks have returned: the value counts, and the death is told.
        is_correct = error is None and words in notes.getvalue()
    if hasattr(error, "rank"):
        is_correct = is_correct and error.rank == fault.rank
    return Result(
        fault=fault.name,
        backend=backend,
        is_correct=is_correct,
        seconds=round(ended_at - struck_at, 3),
        error=f"{type(error).__name__}: {error}".splitlines()[0],
        **left,
    )


def _cancel_after_mark(spark: Any, group: str, mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.02)
    spark.sparkContext.cancelJobGroup(group)


def _belongings() -> dict[str, set[Any]]:
    """The workers, listening ports and temporary files that there are now."""
    driver = psutil.Process()
    workers, ports = set(), set()
    for process in [driver, *driver.children(recursive=True)]:
        try:
            if "sparkdl_runner.worker" in process.cmdline():
                workers.add(process.pid)
            parent = process.parent()
            # Java's and its children's, the daemons for Python, are Spark's own.
            if "java" in process.name() or (parent is not None and "java" in parent.name()):
                continue
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        ports |= {one.laddr for one in connections if one.status == "LISTEN"}
    names = (path.name for path in Path(tempfile.gettempdir()).iterdir())
    files = {name for name in names if not name.startswith(_NOT_OURS)}
    return {"processes": workers, "ports": ports, "files": files}


def _left_after(before: dict[str, set[Any]]) -> dict[str, Any]:
    now = _belongings()
    return {
        "processes_left": len(now["processes"] - before["processes"]),
        "ports_left": len(now["ports"] - before["ports"]),
        "files_left": sorted(now["files"] - before["files"]),
    }


def _left(result: Result) -> str:
    counts = {"processes": result.processes_left, "ports": result.ports_left}
    parts = [f"{count} {kind}" for kind, count in counts.items() if count]
    return ", ".join([*parts, *result.files_left])


def _summary(results: list[Result]) -> dict[str, dict[str, Any]]:
    summary: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(one.fault for one in results):
        those = [one for one in results if one.fault == name]
        seconds = [one.seconds for one in those]
        summary[name] = {
            "runs": len(those),
            "correct": sum(one.is_correct for one in those),
            "median_seconds": statistics.median(seconds),
            "worst_seconds": max(seconds),
            "left": "; ".join(filter(None, map(_left, those))) or "nothing",
        }
    return summary
