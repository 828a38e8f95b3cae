"""What telling MLflow costs a training: a call, a slow server, and a server that goes away.

Beside ``log_metrics`` stand MLflow's own calls, in the same rank and against the same server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.tracking_server import TrackingServer
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

# Pairs of them; each is longer than what is said takes to be sent.
STRETCHES = 40
# Of the training during which the server goes.
STEP_SECONDS = 0.01


def add_parser(benchmarks: Any) -> None:
    """Adds ``tracking`` and its options to the command line."""
    parser = benchmarks.add_parser(
        "tracking", help="what log_metrics costs, also with a slow server or none"
    )
    parser.add_argument("--steps", type=int, default=10_000, help="steps of a training")
    parser.add_argument("--step-seconds", type=float, default=0.003, help="computing in a step")
    parser.add_argument("--delay-seconds", type=float, default=0.2, help="the server's answer")
    parser.add_argument("--outage-seconds", type=float, default=60.0, help="without a server")
    parser.add_argument(
        "--beside-seconds", type=float, default=20.0, help="before the outage (a quarter) and after"
    )
    parser.add_argument("--calls", type=int, default=10_000, help="of log_metrics that are timed")
    parser.add_argument("--output", type=Path, default=Path("benchmark-tracking.json"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes the figures."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory(prefix="tracking-") as folder:
        server = TrackingServer(Path(folder))
        server.start()
        try:
            with slowly(server.url, arguments.delay_seconds) as slow_url:
                calls = measure_calls(slow_url, arguments.calls)
                speed = measure_speed(slow_url, arguments)
            outage = measure_outage(server, arguments)
        finally:
            server.stop()
    report = {"calls": calls, "speed": speed, "outage": outage}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print("One call with two metrics, median, microseconds:")
    for name, micros in calls.items():
        print(f"  {name:<44}{micros:12,.1f}")
    print(
        f"\n{arguments.steps:,} steps, a server that answers in {arguments.delay_seconds:g} s, "
        f"medians of {STRETCHES} stretches:"
    )
    print(f"  steps/s, every step logged                  {speed['logged']:12,.1f}")
    print(f"  steps/s, nothing logged                     {speed['silent']:12,.1f}")
    print(f"  slower by                                   {speed['slower_by']:12.2%}")
    print(f"  metrics that arrived, of {speed['said']:<18,} {speed['arrived']:12,}")
    print(f"\nThe server gone for {outage['seconds']:g} s in the middle:")
    print(f"  metrics that arrived, of {outage['said']:<18,} {outage['arrived']:12,}")
    print(f"\nWritten to {arguments.output}")
    return 0


def measure_calls(url: str, count: int) -> dict[str, float]:
    """Microseconds of one call in rank 0, of ours and, a thousandth as many, of MLflow's."""
    ours = runner(url, num_proc=-1).run(time_our_calls, count=count)
    theirs = DistributedRunner(num_proc=-1, backend="torch", config=RunConfig(tracking=False)).run(
        time_mlflow_calls, url=url, count=max(1, count // 1000)
    )
    return {**ours, **theirs}


def measure_speed(url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A training of which every other stretch of steps is logged, and the others are not."""
    trainer = runner(url, num_proc=-1)
    rates = trainer.run(
        train_in_stretches, steps=arguments.steps, step_seconds=arguments.step_seconds
    )
    # Of stretches beside each other, as the machine may be busier at one time than another.
    pairs = zip(rates["logged"], rates["silent"], strict=True)
    return {
        "steps_per_second": rates,
        "logged": statistics.median(rates["logged"]),
        "silent": statistics.median(rates["silent"]),
        "slower_by": 1 - statistics.median(logged / silent for logged, silent in pairs),
        "said": arguments.steps,
        "arrived": count_metrics(url, trainer.mlflow_run_id),
    }


def measure_outage(server: TrackingServer, arguments: argparse.Namespace) -> dict[str, Any]:
    """A training that goes on while the server is killed, and started again later."""
    seconds = arguments.outage_seconds
    beside = arguments.beside_seconds
    steps = int((seconds + beside) / STEP_SECONDS)
    trainer = runner(server.url, num_proc=-1)

    def fail_for_a_while() -> None:
        while trainer.mlflow_run_id is None:
            time.sleep(0.1)
        time.sleep(beside / 4)
        server.stop()
        time.sleep(seconds)
        server.start()

    accident = threading.Thread(target=fail_for_a_while)
    accident.start()
    trainer.run(train, steps=steps)
    accident.join()
    arrived = count_metrics(server.url, trainer.mlflow_run_id)
    return {"seconds": seconds, "said": steps, "arrived": arrived}


def runner(url: str, *, num_proc: int) -> DistributedRunner:
    """A runner whose trainings are runs at ``url``."""
    # However long a server takes to start where the machine is busy.
    tracking = Tracking(
        tracking_uri=url, experiment="benchmark", report=False, delivery_timeout_seconds=300
    )
    config = RunConfig(tracking=tracking, driver_log_verbosity="log_callback_only")
    return DistributedRunner(num_proc=num_proc, backend="torch", config=config)


def count_metrics(url: str, run_id: str | None) -> int:
    """How many different steps of the loss are in MLflow."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=url)
    return len({metric.step for metric in client.get_metric_history(run_id, "loss")})


def train_in_stretches(steps: int, step_seconds: float) -> dict[str, list[float]]:
    """Steps a second of stretches with ``log_metrics`` after every step, and without."""
    from sparkdl_runner.tracking import log_metrics

    compute = computing(step_seconds)
    rates: dict[str, list[float]] = {"logged": [], "silent": []}
    stretch = max(1, steps // STRETCHES)
    step = 0
    for number in range(2 * STRETCHES):
        # In the order of a palindrome, so that neither gains from a machine that slows down.
        kind = "logged" if number % 4 in (0, 3) else "silent"
        start = time.perf_counter()
        for _ in range(stretch):
            loss = compute()
            if kind == "logged":
                step += 1
                log_metrics(step, loss=loss, accuracy=0.5, samples=32)
        rates[kind].append(stretch / (time.perf_counter() - start))
    return rates


def train(steps: int) -> None:
    """Waits for a while in each step, as for a GPU, and logs it."""
    from sparkdl_runner.tracking import log_metrics

    for step in range(1, steps + 1):
        time.sleep(STEP_SECONDS)
        log_metrics(step, loss=1 / step, accuracy=0.5, samples=32)


def computing(step_seconds: float) -> Any:
    """What takes about so long and returns a loss."""
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


def time_our_calls(count: int) -> dict[str, float]:
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


def time_mlflow_calls(url: str, count: int) -> dict[str, float]:
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


@contextlib.contextmanager
def slowly(url: str, delay_seconds: float) -> Iterator[str]:
    """A server that passes everything on to ``url``, and answers after a delay."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port

    class Slow(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def _pass_on(self) -> None:
            time.sleep(delay_seconds)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            behind = http.client.HTTPConnection(host, port, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            behind.request(self.command, self.path, body, {**headers, "Host": f"{host}:{port}"})
            answer = behind.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", "text/plain"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            behind.close()

        def log_message(self, *_: Any) -> None:
            """Says nothing of requests."""

    front = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    front.daemon_threads = True
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{front.server_address[1]}"
    finally:
        front.shutdown()
        front.server_close()
