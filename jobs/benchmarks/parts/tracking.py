"""The cost of tracking: a call, a slow server, and a server that goes away.

Beside ``log_metrics`` stand MLflow's own calls, in the same rank and against the same server.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import listed, positive, ratio, with_and_without
from benchmarks.servers.slow_server import slow_server
from benchmarks.servers.tracking_server import TrackingServer
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

HELP = "what log_metrics costs, also with a slow server or none"
# Stretches of each kind. One lasts longer than sending its metrics.
STRETCHES = 40
# A step of the training during which the server goes away.
STEP_SECONDS = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--steps", type=positive, default=10_000, help="steps of a training")
    parser.add_argument("--step-seconds", type=float, default=0.003, help="computing in a step")
    parser.add_argument("--delay-seconds", type=float, default=0.2, help="the server's answer")
    parser.add_argument("--outage-seconds", type=float, default=60.0, help="without a server")
    parser.add_argument(
        "--beside-seconds", type=float, default=20.0, help="before the outage (a quarter) and after"
    )
    parser.add_argument("--calls", type=positive, default=10_000, help="of log_metrics, timed")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures calls and trainings, against a slow server and one that goes away."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory(prefix="tracking-") as folder:
        server = TrackingServer(Path(folder))
        server.start()
        try:
            with slow_server(server.url, arguments.delay_seconds) as slow_url:
                calls = _calls(slow_url, arguments.calls)
                speed = _speed(slow_url, arguments)
            outage = _outage(server, arguments)
        finally:
            server.stop()
    return {"calls": calls, "speed": speed, "outage": outage}


def table(report: Mapping[str, Any]) -> str:
    """The cost of a call, the speed of a training, and what arrived."""
    settings, speed, outage = report["settings"], report["speed"], report["outage"]
    steps = {
        "steps/s, every step logged": f"{speed['logged']:,.1f}",
        "steps/s, nothing logged": f"{speed['silent']:,.1f}",
        "slower by": f"{speed['slower_by']:.2%}",
        f"metrics that arrived, of {speed['said']:,}": f"{speed['arrived']:,}",
    }
    arrived = {f"metrics that arrived, of {outage['said']:,}": f"{outage['arrived']:,}"}
    return (
        "One call with two metrics, median, microseconds:\n"
        f"{listed({name: f'{micros:,.1f}' for name, micros in report['calls'].items()})}\n\n"
        f"{settings['steps']:,} steps, a server that answers in {settings['delay_seconds']:g} s, "
        f"medians of {STRETCHES} stretches:\n{listed(steps)}\n\n"
        f"The server gone for {outage['seconds']:g} s in the middle:\n{listed(arrived)}"
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether every metric has arrived."""
    return all(report[part]["arrived"] == report[part]["said"] for part in ("speed", "outage"))


def _calls(url: str, count: int) -> dict[str, float]:
    """Microseconds of one call in rank 0, of ours and, a thousandth as many, of MLflow's."""
    ours = _runner(url, num_proc=-1).run(_time_our_calls, count=count)
    theirs = DistributedRunner(
        num_proc=-1, backend="torch", run_config=RunConfig(tracking=False)
    ).run(_time_mlflow_calls, url=url, count=max(1, count // 1000))
    return {**ours, **theirs}


def _speed(url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A training of which every other stretch of steps is logged, and the others are not."""
    trainer = _runner(url, num_proc=-1)
    rates = trainer.run(
        _train_in_stretches,
        steps=arguments.steps,
        step_seconds=arguments.step_seconds,
        order=list(with_and_without(STRETCHES)),
    )
    return {
        "steps_per_second": rates,
        "logged": statistics.median(rates["logged"]),
        "silent": statistics.median(rates["silent"]),
        "slower_by": 1 - ratio(rates["logged"], rates["silent"]),
        "said": arguments.steps,
        "arrived": _count_metrics(url, trainer.mlflow_run_id),
    }


def _outage(server: TrackingServer, arguments: argparse.Namespace) -> dict[str, Any]:
    """A training that goes on while the server is killed, and started again later."""
    seconds = arguments.outage_seconds
    beside = arguments.beside_seconds
    steps = int((seconds + beside) / STEP_SECONDS)
    trainer = _runner(server.url, num_proc=-1)

    def fail_for_a_while() -> None:
        while trainer.mlflow_run_id is None:
            time.sleep(0.1)
        time.sleep(beside / 4)
        server.stop()
        time.sleep(seconds)
        server.start()

    accident = threading.Thread(target=fail_for_a_while)
    accident.start()
    trainer.run(_train, steps=steps)
    accident.join()
    arrived = _count_metrics(server.url, trainer.mlflow_run_id)
    return {"seconds": seconds, "said": steps, "arrived": arrived}


def _runner(url: str, *, num_proc: int) -> DistributedRunner:
    """A runner whose trainings are runs at ``url``."""
    # However long a server takes to start where the machine is busy.
    tracking = Tracking(
        tracking_uri=url, experiment="benchmark", report=False, delivery_timeout_seconds=300
    )
    config = RunConfig(tracking=tracking, driver_log_verbosity="log_callback_only")
    return DistributedRunner(num_proc=num_proc, backend="torch", run_config=config)


def _count_metrics(url: str, run_id: str | None) -> int:
    """How many different steps of the loss are in MLflow."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=url)
    return len({metric.step for metric in client.get_metric_history(run_id, "loss")})


def _train_in_stretches(
    steps: int, step_seconds: float, order: list[bool]
) -> dict[str, list[float]]:
    """Steps a second of stretches with ``log_metrics`` after every step, and without."""
    from sparkdl_runner.tracking import log_metrics

    compute = _computing(step_seconds)
    rates: dict[str, list[float]] = {"logged": [], "silent": []}
    stretch = max(1, steps // order.count(True))
    step = 0
    for is_logged in order:
        start = time.perf_counter()
        for _ in range(stretch):
            loss = compute()
            if is_logged:
                step += 1
                log_metrics(step, loss=loss, accuracy=0.5, samples=32)
        rates["logged" if is_logged else "silent"].append(stretch / (time.perf_counter() - start))
    return rates


def _train(steps: int) -> None:
    """Waits for a while in each step, as for a GPU, and logs it."""
    from sparkdl_runner.tracking import log_metrics

    for step in range(1, steps + 1):
        time.sleep(STEP_SECONDS)
        log_metrics(step, loss=1 / step, accuracy=0.5, samples=32)


def _computing(step_seconds: float) -> Callable[[], Any]:
    """Returns a function that computes for about so long and returns a loss."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    start = time.perf_counter()
    for _ in range(200):
        matrix @ matrix
    repeats = max(1, round(step_seconds / ((time.perf_counter() - start) / 200)))

    def compute() -> torch.Tensor:
        for _ in range(repeats):
            result = matrix @ matrix
        return result.mean()

    return compute


def _time_our_calls(count: int) -> dict[str, float]:
    """Times ``log_metrics``, which returns before anything is sent."""
    import torch

    from sparkdl_runner.tracking import log_metrics

    found = {}
    step = 0
    for name, loss in (("numbers", 0.5), ("a tensor and a number", torch.tensor(0.5))):
        seconds = []
        for _ in range(count):
            step += 1
            start = time.perf_counter()
            log_metrics(step, loss=loss, accuracy=0.5, samples=32)
            seconds.append(time.perf_counter() - start)
        found[f"log_metrics, {name}"] = 1e6 * statistics.median(seconds)
        found[f"log_metrics, {name}, mean"] = 1e6 * statistics.mean(seconds)
    return found


def _time_mlflow_calls(url: str, count: int) -> dict[str, float]:
    """Times ``mlflow.log_metrics`` against the same server."""
    import mlflow

    mlflow.set_tracking_uri(url)
    mlflow.set_experiment("benchmark")
    found = {}
    with contextlib.redirect_stdout(io.StringIO()), mlflow.start_run():
        for name, synchronous, calls in (
            ("mlflow.log_metrics", True, count),
            ("mlflow.log_metrics, synchronous=False", False, 100 * count),
        ):
            seconds = []
            for step in range(calls):
                start = time.perf_counter()
                mlflow.log_metrics(
                    {"loss": 0.5, "accuracy": 0.5}, step=step, synchronous=synchronous
                )
                seconds.append(time.perf_counter() - start)
            found[name] = 1e6 * statistics.median(seconds)
    return found
