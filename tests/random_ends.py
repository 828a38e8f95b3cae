"""Runs that log and then fail at a random moment: is each entry in MLflow, and there once?

``make random-ends N=200 SEED=1`` takes some seconds a run, and so is no test of the suites.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.servers.slow_server import slow_server
from benchmarks.servers.tracking_server import TrackingServer

from mlflow_stores import copy_empty, make_empty
from sparkdl_runner import DistributedRunner, RunConfig, WorkerFailedError, current_world
from sparkdl_runner.tracking import Tracking

DELAY_SECONDS, DOWN_SECONDS = 0.2, 5.0
MOST_RANKS, MOST_POINTS, MOST_PARAMS = 4, 600, 20
LAST_SECONDS = 2.0


@dataclass(frozen=True)
class Plan:
    """One run: what rank 0 logs, and which rank then fails how many seconds later."""

    store: str
    ranks: int
    who: int
    exits: bool
    params: int
    points: int
    seconds: float

    @classmethod
    def drawn(cls, draw: random.Random) -> Plan:
        ranks = draw.randint(1, MOST_RANKS)
        return cls(
            store=draw.choice(["sqlite", "slow", "down"]),
            ranks=ranks,
            who=draw.randrange(ranks),
            exits=draw.random() < 0.3,
            params=draw.randint(0, MOST_PARAMS),
            points=draw.randint(1, MOST_POINTS),
            seconds=draw.choice([0.0, draw.uniform(0.0, LAST_SECONDS)]),
        )


def log_and_fail(folder: str, plan: Plan) -> None:
    """What the ranks run."""
    import mlflow

    has_logged = Path(folder, "has logged")
    for number in range(plan.params):
        mlflow.log_param(f"p{number}", number)
    for step in range(plan.points):
        mlflow.log_metric("loss", step / 7, step=step)
    if current_world().rank == 0:
        has_logged.touch()
    while current_world().rank != plan.who or not has_logged.exists():
        time.sleep(0.005)
    time.sleep(plan.seconds)
    if plan.exits:
        sys.exit(1)
    raise OSError("no such file")


class Outages:
    """A way to a server that can be closed for a while, as if the server was down."""

    def __init__(self, url: str) -> None:
        behind = urlsplit(url)
        self._behind = (behind.hostname or "", behind.port or 0)
        self._open: list[socket.socket] = []
        self._is_down = False
        self._front = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._front.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def go_down(self, seconds: float) -> None:
        self._is_down = True
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()
        time.sleep(seconds)
        self._is_down = False

    def _serve(self) -> None:
        while True:
            near, _ = self._front.accept()
            if self._is_down:
                near.close()
                continue
            far = socket.create_connection(self._behind)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def stores(folder: Path) -> Iterator[tuple[dict[str, str], Outages]]:
    """The stores by name."""
    server = TrackingServer(folder)
    server.start()
    try:
        with slow_server(server.url, DELAY_SECONDS) as slow:
            outages = Outages(server.url)
            own = folder / "sqlite"
            own.mkdir()
            sqlite = copy_empty(make_empty(folder), own)
            yield {"sqlite": sqlite, "slow": slow, "down": outages.url}, outages
    finally:
        server.stop()


def wrong_in(client: Any, run_id: str, plan: Plan) -> list[str]:
    """What the run lacks, or has more than once."""
    run = client.get_run(run_id)
    found = client.get_metric_history(run_id, "loss")
    params = {key: value for key, value in run.data.params.items() if key[1:].isdigit()}
    wrong = []
    if run.info.status != "FAILED":
        wrong.append(f"it is {run.info.status}")
    if params != {f"p{number}": str(number) for number in range(plan.params)}:
        wrong.append(f"{len(params)} of {plan.params} parameters")
    if sorted((one.step, one.value) for one in found) != [
        (step, step / 7) for step in range(plan.points)
    ]:
        steps = {one.step for one in found}
        wrong.append(f"{len(found)} points of {len(steps)} steps, not {plan.points}")
    return wrong


def run(plan: Plan, uri: str, outages: Outages) -> list[str]:
    """Makes the run. Returns what is wrong with it."""
    from mlflow import MlflowClient

    config = RunConfig(tracking=Tracking(tracking_uri=uri, report=False))
    runner = DistributedRunner(num_proc=-plan.ranks, backend="horovod", run_config=config)
    with tempfile.TemporaryDirectory() as folder:

        def end_the_server() -> None:
            while not Path(folder, "has logged").exists():
                time.sleep(0.005)
            outages.go_down(DOWN_SECONDS)

        down = threading.Thread(target=end_the_server, daemon=True)
        if plan.store == "down":
            down.start()
        said = io.StringIO()
        quiet = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
        with quiet[0], quiet[1], contextlib.suppress(WorkerFailedError):
            runner.run(log_and_fail, folder, plan)
        if plan.store == "down":
            down.join()
    assert runner.mlflow_run_id is not None
    return wrong_in(MlflowClient(tracking_uri=uri), runner.mlflow_run_id, plan)


def main() -> None:
    """Makes all runs, tells of each that is wrong, and exits with 1 if one is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw, made, wrong = random.Random(arguments.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        # torch is not needed here, and takes most of the time of a start.
        Path(name, "torch.py").write_text("raise ImportError('not needed here')\n")
        sys.path.insert(0, name)
        os.chdir(name)  # Where MLflow puts the artifacts of a store that is a file.
        with stores(Path(name)) as (uris, outages):
            for number in range(1, arguments.count + 1):
                plan = Plan.drawn(draw)
                made[plan.store] += 1
                if found := run(plan, uris[plan.store], outages):
                    wrong += 1
                    print(f"run {number}: {', '.join(found)}: {plan}", flush=True)
                elif number % 20 == 0:
                    print(f"{number} runs, {wrong} of them wrong", flush=True)
    print(f"{sum(made.values())} runs ({dict(made)}), {wrong} of them wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
