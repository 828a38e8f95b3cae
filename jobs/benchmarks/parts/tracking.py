"""The cost of tracking: a call, a slow server, and a server that goes away.

Beside ``log_metrics`` stand MLflow's own calls, in ranks of the same launcher and against the same
server; beside a training that logs every step, the same steps that log nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.servers.slow_server import slow_server
from benchmarks.servers.tracking_server import TrackingServer
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

HELP = "what log_metrics costs, also with a slow server or none"
STRETCHES = 8  # of each kind in a training; one lasts longer than sending its metrics
PRODUCTS, STEP_SECONDS = 9, 0.003  # of matrices in a step, and about how long these take
ANSWER_SECONDS = 0.2  # of the slow server
OURS = ("numbers", "a tensor and a number")
MLFLOW = {"mlflow.log_metrics": 1000, "mlflow.log_metrics, synchronous=False": 10}
"""How many times fewer of these calls are timed: they are slow."""
LOGGED, SILENT = "every step logged", "nothing logged"
WRONG = "points lost or doubled"
NONE_WRONG = Figure(unit="", better="less", bound=0)

OPTIONS = (
    Option("repeat", 2, quick=1, help="ranks that call, trainings"),
    Option("calls", 10_000, quick=100, help="of log_metrics, timed"),
    Option("stretch", 250, quick=50, help="steps that are timed at once"),
    Option("outage-seconds", 30.0, quick=2, help="without a server"),
    Option("beside-seconds", 12.0, quick=4, help="a quarter before it"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Calls and trainings, against a slow server and one that goes away."""
    for setting in ("DISABLE_TELEMETRY", "SUPPRESS_PRINTING_URL_TO_STDOUT"):
        os.environ[f"MLFLOW_{setting}"] = "true"
    micros, rate = Figure(unit="µs", better="less"), Figure(unit="steps/s", better="more")
    slow = f"against a server that answers in {ANSWER_SECONDS:g} s"
    with tempfile.TemporaryDirectory(prefix="tracking-") as folder:
        server = TrackingServer(Path(folder))
        server.start()
        try:
            with slow_server(server.url, ANSWER_SECONDS) as url:
                calls = partial(_calls, url, arguments.calls)
                yield Case(
                    name="call with two metrics",
                    figures={"median": micros, "mean": micros},
                    ours={side: partial(calls, side) for side in OURS},
                    peers={side: partial(calls, side) for side in MLFLOW},
                    turns=arguments.repeat,
                    facts={"ranks": 1, "time": f"of calls in a rank, {slow}"},
                )
                half = partial(_half, {}, url, arguments.stretch)
                yield Case(
                    name="training",
                    figures={"steps": rate, WRONG: NONE_WRONG},
                    ours={LOGGED: partial(half, LOGGED)},
                    peers={SILENT: partial(half, SILENT)},
                    turns=arguments.repeat,
                    facts={"ranks": 1, "time": f"of steps, {STRETCHES} stretches of each, {slow}"},
                )
            yield Case(
                name=f"the server gone for {arguments.outage_seconds:g} s",
                figures={WRONG: NONE_WRONG},
                ours={"ours": partial(_outage, server, arguments)},
                facts={"ranks": 1},
            )
        finally:
            server.stop()


def _runner(url: str | None) -> DistributedRunner:
    """A runner whose trainings are runs at ``url``, however long its server takes to start."""
    tracking = Tracking(tracking_uri=url, report=False, delivery_timeout_seconds=300)
    config = RunConfig(
        tracking=tracking if url else False, driver_log_verbosity="log_callback_only"
    )
    return DistributedRunner(num_proc=-1, backend="torch", run_config=config)


def _calls(url: str, calls: int, side: str) -> Mapping[str, float]:
    """Microseconds of one call in rank 0."""
    count = max(1, calls // MLFLOW.get(side, 1))
    rank = _runner(url if side in OURS else None)
    found: Mapping[str, float] = rank.run(_time_calls, side=side, url=url, count=count)
    return found


def _half(halves: dict[str, Any], url: str, stretch: int, side: str) -> Mapping[str, float]:
    """Both sides of a turn are one training: who is asked second finds its half there."""
    if side not in halves:
        halves |= _trained(_runner(url), url, stretch)
    return halves.pop(side)  # type: ignore[no-any-return]


def _outage(server: TrackingServer, arguments: argparse.Namespace) -> Mapping[str, float]:
    """A training that goes on while the server is killed, and started again later."""
    seconds = arguments.outage_seconds + arguments.beside_seconds
    trainer = _runner(server.url)

    def fail_for_a_while() -> None:
        while trainer.mlflow_run_id is None:
            time.sleep(0.1)
        time.sleep(arguments.beside_seconds / 4)
        server.stop()
        time.sleep(arguments.outage_seconds)
        server.start()

    accident = threading.Thread(target=fail_for_a_while, daemon=True)
    accident.start()
    trained = _trained(trainer, server.url, int(seconds / STEP_SECONDS / 3 / STRETCHES))
    accident.join()
    return {WRONG: trained[LOGGED][WRONG]}


def _trained(trainer: DistributedRunner, url: str, stretch: int) -> dict[str, dict[str, float]]:
    """The speed of both kinds of stretches, and what is wrong in MLflow once all was sent."""
    logged, silent = trainer.run(_train, stretch=stretch)
    wrong = _wrong(url, trainer.mlflow_run_id, STRETCHES * stretch)
    return {LOGGED: {"steps": logged, WRONG: wrong}, SILENT: {"steps": silent}}


def _wrong(url: str, run_id: str | None, steps: int) -> int:
    """How many steps' losses are not in MLflow, or are there more than once."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=url)
    found = [metric.step for metric in client.get_metric_history(run_id, "loss")]
    return len(found) - len(set(found)) + len(set(range(1, steps + 1)) - set(found))


# The functions of ranks. -----------------------------------------------------------------------


def _time_calls(side: str, url: str, count: int) -> dict[str, float]:
    import mlflow
    import torch

    from sparkdl_runner.tracking import log_metrics

    loss = 0.5 if side == "numbers" else torch.tensor(0.5)
    call: Callable[..., Any] = partial(log_metrics, loss=loss, accuracy=0.5, samples=32)
    if side in MLFLOW:
        mlflow.set_tracking_uri(url)
        mlflow.start_run()
        call = partial(mlflow.log_metrics, {"loss": 0.5, "accuracy": 0.5})
        call = partial(call, synchronous="synchronous=False" not in side)
    seconds = []
    for step in range(1, count + 1):
        started = time.perf_counter()
        call(step=step)
        seconds.append(time.perf_counter() - started)
    return {"median": 1e6 * statistics.median(seconds), "mean": 1e6 * statistics.mean(seconds)}


def _train(stretch: int) -> list[float]:
    """Steps a second, the median of stretches, with ``log_metrics`` after each step and without."""
    import torch

    from sparkdl_runner.tracking import log_metrics

    torch.set_num_threads(1)
    matrix, step = torch.randn(256, 256), 0
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(3 * STRETCHES):
        is_logged, still_sends = number % 3 == 0, number % 3 == 1
        started = time.perf_counter()
        for _ in range(stretch):
            for _ in range(PRODUCTS):
                result = matrix @ matrix
            loss = result.mean()
            if is_logged:
                step += 1
                log_metrics(step, loss=loss, accuracy=0.5, samples=32)
        if not still_sends:  # What was logged last is sent in the first silent steps after that.
            rates[is_logged].append(stretch / (time.perf_counter() - started))
    return [statistics.median(found) for found in rates.values()]
