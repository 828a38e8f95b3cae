"""An MLflow server that says it is well, and then hangs, holds up the start for a limited time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from processes import wait_until_gone, workers
from sparkdl_runner import DistributedRunner, LaunchError, RunConfig
from sparkdl_runner.jobs import train
from sparkdl_runner.jobs.parsing import command
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run import server_calls

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

RUN_ID = "0123456789abcdef0123456789abcdef"
RUN = {
    "run": {
        "info": {
            "run_id": RUN_ID,
            "experiment_id": "1",
            "status": "FAILED",
            "lifecycle_stage": "active",
            "start_time": 1,
            "artifact_uri": "mlflow-artifacts:/1",
        },
        "data": {"metrics": [{"key": "loss", "value": 0.5, "timestamp": 1, "step": 1}]},
    }
}
ANSWERS: dict[str, dict[str, Any]] = {
    "experiments/get-by-name": {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}},
    "runs/search": {"runs": []},
    "runs/create": RUN,
    "runs/get": RUN,
    "runs/update": {"run_info": RUN["run"]["info"]},
    "metrics/get-history": {"metrics": []},
}


class HangingServer:
    """Answers all requests, but for one kind, on which it hangs until it is woken."""

    def __init__(self, hangs_at: str) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.hangs, self.awake = threading.Event(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                name = path.removeprefix("/api/2.0/mlflow/")
                server.asked.append((name, json.loads(body or b"{}")))
                if name == hangs_at:
                    server.hangs.set()
                    server.awake.wait()
                known = path == "/health" or name in ANSWERS
                self.send_response(200 if known else 404)
                self.end_headers()
                self.wfile.write(json.dumps(ANSWERS.get(name, {})).encode())

            do_POST = do_GET  # noqa: N815 - http.server's name

            def log_message(self, *_: Any) -> None:
                """Says nothing of requests."""

        self._front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._front.server_port}"
        self._serving = threading.Thread(target=self._front.serve_forever, name="hangs")
        self._serving.start()

    def wake(self) -> None:
        """Lets it answer, and waits until nobody of this process asks it any more."""
        self.awake.set()
        for thread in threading.enumerate():
            if thread.name == "sparkdl-mlflow-call":
                thread.join()

    def stop(self) -> None:
        self.wake()
        self._front.shutdown()
        self._serving.join()
        self._front.server_close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts servers, and stops them; mlflow sets variables when it is first imported.

    Time is up for a call once the server hangs in it. By the clock, it might be up for an earlier
    call on a busy machine.
    """
    environment = dict(os.environ)
    started: list[HangingServer] = []

    def start(hangs_at: str) -> HangingServer:
        started.append(HangingServer(hangs_at))
        return started[-1]

    def wait_until_it_hangs(calls: Collection[Future[Any]], _: float) -> None:
        while not wait(calls, 0.02).done:
            for server in started:
                if server.hangs.is_set():
                    server.hangs.clear()
                    return

    monkeypatch.setattr(server_calls, "wait", wait_until_it_hangs)
    yield start
    for server in started:
        server.stop()
    os.environ.clear()
    os.environ.update(environment)


def refusal_of(server: HangingServer, **options: Any) -> str:
    """The error that refuses to start a training."""
    import mlflow  # noqa: F401 - its import takes seconds of its own

    tracking = Tracking(tracking_uri=server.url, opening_timeout_seconds=60, **options)
    runner = DistributedRunner(
        num_proc=-2, backend="torch", run_config=RunConfig(tracking=tracking)
    )
    environment = dict(os.environ)
    with pytest.raises(LaunchError) as raised:
        runner.run(print)
    assert dict(os.environ) == environment
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
    return str(raised.value)


@pytest.mark.parametrize(
    ("hangs_at", "options", "asked_to"),
    [
        ("experiments/get-by-name", {"experiment": "x"}, "find experiment 'x'"),
        ("runs/search", {"experiment": "x"}, "count the runs of experiment 1"),
        ("runs/create", {"experiment": "x"}, "make a run in experiment 1"),
        ("runs/get", {"run_id": RUN_ID}, f"resume run {RUN_ID}"),
        ("runs/update", {"run_id": RUN_ID}, f"resume run {RUN_ID}"),
    ],
)
def test_what_hangs_is_said_in_time(serve, hangs_at, options, asked_to):
    server = serve(hangs_at)
    told = refusal_of(server, **options)
    assert told == (
        f"MLflow at {server.url} gave no answer within 60 s when it was to {asked_to}. Look at the "
        "server's log, and whether its database answers; wait longer, with a greater "
        "opening_timeout_seconds; or run without MLflow: RunConfig(tracking=False), or tracking: "
        "false for the train job."
    )


def test_a_history_that_hangs_is_said_too(serve, monkeypatch):
    attempt = [{"key": "sparkdl_runner.attempt", "value": "0"}]
    with_attempt = {"run": {**RUN["run"], "data": {**RUN["run"]["data"], "tags": attempt}}}
    monkeypatch.setitem(ANSWERS, "runs/get", with_attempt)
    told = refusal_of(serve("metrics/get-history"), run_id=RUN_ID)
    assert (
        f"gave no answer within 600 s when it was to tell the metric loss of run {RUN_ID}." in told
    )


@pytest.mark.parametrize(
    ("hangs_at", "options"),
    [("runs/create", {"experiment": "x"}), ("runs/update", {"run_id": RUN_ID})],
)
def test_a_run_that_nobody_waits_for_any_more_does_not_stay_running(serve, hangs_at, options):
    server = serve(hangs_at)
    refusal_of(server, **options)
    server.wake()
    updates = [body for name, body in server.asked if name == "runs/update"]
    assert updates[-1]["run_id"] == RUN_ID
    assert updates[-1]["status"] == "FAILED"


def test_a_train_job_that_is_resumed_says_it_and_is_refused(serve, tmp_path, monkeypatch, capfd):
    import mlflow  # noqa: F401

    monkeypatch.setattr(server_calls, "wait", wait)  # This one goes by the clock.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("def train():\n    pass\n")
    server = serve("runs/get")
    mlflow_settings = (
        f"tracking_uri={server.url}",
        f"run_id={RUN_ID}",
        "opening_timeout_seconds=5",
    )
    flags = [part for setting in mlflow_settings for part in ("--tracking", setting)]
    argv = ["--function", "shop.py:train", "--num-proc", "-1", "--backend", "torch", *flags]
    assert command.main(train.JOB, argv) == 2
    told = capfd.readouterr().err
    assert f"MLflow at {server.url} gave no answer within 5 s when it was to resume run" in told
