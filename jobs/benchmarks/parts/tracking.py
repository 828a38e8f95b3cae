"""The cost of tracking: a call, a slow server, and a server that goes away.

Beside ``log_metrics`` stand MLflow's own calls, in ranks of the same launcher and against the same
server; beside a training that logs every step, the same steps that log nothing.
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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.servers.slow_server import slow_server
from benchmarks.servers.tracking_server import TrackingServer
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

HELP = "what log_metrics costs, also with a slow server or none"
QUICK = [
    *("--repeat", "1", "--stretch", "100", "--calls", "1000"),
    *("--outage-seconds", "5", "--beside-seconds", "8"),
]
# Of a training, stretches of each kind. One lasts longer than sending its metrics.
STRETCHES = 8
# Products of matrices in a step: about 3 ms.
PRODUCTS = 9
# A step of the training during which the server goes away.
STEP_SECONDS = 0.01
CALLS = {"numbers": 1, "a tensor and a number": 1}
MLFLOW_CALLS = {"mlflow.log_metrics": 1000, "mlflow.log_metrics, synchronous=False": 10}
"""Which calls are timed, and which part of the number: some are slow."""
LOGGED, SILENT = "every step logged", "nothing logged"
WRONG = "points lost or doubled"
NONE_WRONG = Figure(unit="", better="less", bound=0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--repeat", type=positive, default=5, help="ranks that call, trainings")
    parser.add_argument("--calls", type=positive, default=10_000, help="of log_metrics, timed")
    parser.add_argument(
        "--stretch", type=positive, default=250, help="steps that are timed at once"
    )
    parser.add_argument("--delay-seconds", type=float, default=0.2, help="the server's answer")
    parser.add_argument("--outage-seconds", type=float, default=60.0, help="without a server")
    parser.add_argument(
        "--beside-seconds", type=float, default=20.0, help="before the outage (a quarter) and after"
    )


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Calls and trainings, against a slow server and one that goes away."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    facts = {"ranks": 1, "server": f"answers in {arguments.delay_seconds:g} s"}
    with tempfile.TemporaryDirectory(prefix="tracking-") as folder:
        server = TrackingServer(Path(folder))
        server.start()
        try:
            with slow_server(server.url, arguments.delay_seconds) as url:
                micros = Figure(unit="µs", better="less")
                yield Case(
                    name="call with two metrics",
                    figures={"median": micros, "mean": micros},
                    ours={one: partial(_calls, one, url, arguments.calls) for one in CALLS},
                    peers={one: partial(_calls, one, url, arguments.calls) for one in MLFLOW_CALLS},
                    turns=arguments.repeat,
                    facts={**facts, "time": "of calls alone; what they left to send is sent later"},
                )
                halves: dict[str, Mapping[str, float]] = {}
                half = partial(_half, halves, url, arguments.stretch)
                yield Case(
                    name="training",
                    figures={"steps": Figure(unit="steps/s", better="more"), WRONG: NONE_WRONG},
                    ours={LOGGED: partial(half, LOGGED)},
                    peers={SILENT: partial(half, SILENT)},
                    turns=arguments.repeat,
                    facts={**facts, "time": f"of steps, medians of {STRETCHES} stretches"},
                )
            yield Case(
                name=f"the server gone for {arguments.outage_seconds:g} s",
                figures={WRONG: NONE_WRONG},
                ours={"ours": partial(_outage, server, arguments)},
                facts={"ranks": 1, "step": f"{STEP_SECONDS:g} s"},
            )
        finally:
            server.stop()


def _calls(side: str, url: str, calls: int) -> dict[str, float]:
    """Microseconds of one call in rank 0."""
    count = max(1, calls // {**CALLS, **MLFLOW_CALLS}[side])
    found: dict[str, float] = _runner(url if side in CALLS else None).run(
        _time_calls, side=side, url=url, count=count
    )
    return found


def _half(
    halves: dict[str, Mapping[str, float]], url: str, stretch: int, side: str
) -> Mapping[str, float]:
    """Both sides of a turn are one training: who is asked second finds its half there."""
    if side not in halves:
        trainer = _runner(url)
        rates = trainer.run(_train_in_stretches, stretch=stretch)
        wrong = _wrong(url, trainer.mlflow_run_id, STRETCHES * stretch)
        halves[LOGGED] = {"steps": rates[True], WRONG: wrong}
        halves[SILENT] = {"steps": rates[False]}
    return halves.pop(side)


def _outage(server: TrackingServer, arguments: argparse.Namespace) -> dict[str, float]:
    """A training that goes on while the server is killed, and started again later."""
    steps = int((arguments.outage_seconds + arguments.beside_seconds) / STEP_SECONDS)
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
    trainer.run(_train, steps=steps)
    accident.join()
    return {WRONG: _wrong(server.url, trainer.mlflow_run_id, steps)}


def _runner(url: str | None) -> DistributedRunner:
    """A runner whose trainings are runs at ``url``, however long its server takes to start."""
    tracking = Tracking(
        tracking_uri=url, experiment="benchmark", report=False, delivery_timeout_seconds=300
    )
    config = RunConfig(
        tracking=tracking if url else False, driver_log_verbosity="log_callback_only"
    )
    return DistributedRunner(num_proc=-1, backend="torch", run_config=config)


def _wrong(url: str, run_id: str | None, steps: int) -> int:
    """How many steps' losses are not in MLflow, or are there more than once."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=url)
    found = [metric.step for metric in client.get_metric_history(run_id, "loss")]
    return len(found) - len(set(found)) + len(set(range(1, steps + 1)) - set(found))


# What ranks run. -------------------------------------------------------------------------------


def _time_calls(side: str, url: str, count: int) -> dict[str, float]:
    import mlflow
    import torch

    from sparkdl_runner.tracking import log_metrics

    run: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    loss = 0.5 if side == "numbers" else torch.tensor(0.5)
    call: Callable[[int], Any] = partial(log_metrics, loss=loss, accuracy=0.5, samples=32)
    if side in MLFLOW_CALLS:
        mlflow.set_tracking_uri(url)
        mlflow.set_experiment("benchmark")
        run = mlflow.start_run()
        metrics, is_synchronous = {"loss": 0.5, "accuracy": 0.5}, side == "mlflow.log_metrics"

        def call(step: int) -> Any:
            return mlflow.log_metrics(metrics, step=step, synchronous=is_synchronous)

    seconds = []
    with contextlib.redirect_stdout(io.StringIO()), run:
        for step in range(1, count + 1):
            started = time.perf_counter()
            call(step)
            seconds.append(time.perf_counter() - started)
    return {"median": 1e6 * statistics.median(seconds), "mean": 1e6 * statistics.mean(seconds)}


def _train_in_stretches(stretch: int) -> dict[bool, float]:
    """Steps a second, the median of stretches, with ``log_metrics`` after each step and without."""
    import torch

    from sparkdl_runner.tracking import log_metrics

    torch.set_num_threads(1)
    matrix = torch.randn(256, 256)
    rates: dict[bool, list[float]] = {True: [], False: []}
    step = 0
    for number in range(2 * STRETCHES):
        is_logged = number % 4 in (0, 3)
        started = time.perf_counter()
        for _ in range(stretch):
            for _ in range(PRODUCTS):
                result = matrix @ matrix
            loss = result.mean()
            if is_logged:
                step += 1
                log_metrics(step, loss=loss, accuracy=0.5, samples=32)
        rates[is_logged].append(stretch / (time.perf_counter() - started))
    return {kind: statistics.median(found) for kind, found in rates.items()}


def _train(steps: int) -> None:
    """Waits for a while in each step, as for a GPU, and logs it."""
    from sparkdl_runner.tracking import log_metrics

    for step in range(1, steps + 1):
        time.sleep(STEP_SECONDS)
        log_metrics(step, loss=1 / step, accuracy=0.5, samples=32)
