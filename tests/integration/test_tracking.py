"""One training is one MLflow run, on a real server, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
import textwrap
import threading
import time
import venv
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tracked_functions
from benchmarks.servers.tracking_server import TrackingServer

from processes import wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    HorovodRunner,
    LaunchError,
    NotPicklableError,
    RanksApartError,
    RunConfig,
    WorkerFailedError,
)
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.launch.agent import supervision
from sparkdl_runner.launch.config import RunConfig as AnyConfig
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run import log_uploads

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackingServer]:
    running = TrackingServer(tmp_path_factory.mktemp("mlflow"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def client(server: TrackingServer) -> Any:
    import mlflow

    return mlflow.MlflowClient(tracking_uri=server.url)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """mlflow sets variables of its own when it is first imported."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


LIGHT = pytest.mark.usefixtures("light_ranks")


def runner(
    server: TrackingServer,
    *,
    backend: str = "torch",
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    tracking = Tracking(**{"tracking_uri": server.url, "experiment": "tests", **options})
    settings = RunConfig(tracking=tracking, restart_backoff_seconds=0, **(config or {}))
    return DistributedRunner(num_proc=-2, backend=backend, run_config=settings)


def light(server: TrackingServer, **options: Any) -> Any:
    """For what does without torch, in tests that are ``LIGHT``."""
    return runner(server, backend="horovod", **options)


def history(client: Any, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in client.get_metric_history(run_id, name)]


def all_runs(client: Any) -> set[str]:
    ids = [one.experiment_id for one in client.search_experiments()]
    return {run.info.run_id for run in client.search_runs(ids, max_results=1000)}


def artifacts(client: Any, run_id: str, path: str | None = None) -> list[str]:
    found = []
    for one in client.list_artifacts(run_id, path):
        found += artifacts(client, run_id, one.path) if one.is_dir else [one.path]
    return found


def text_of(client: Any, run_id: str, path: str, folder: Path) -> str:
    return Path(client.download_artifacts(run_id, path, str(folder))).read_text()


@LIGHT
def test_horovod_runner_says_which_run_it_was(
    server: TrackingServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    trainer = HorovodRunner(np=-1)
    assert trainer.mlflow_run_id is None
    trainer.run(lambda: None)
    assert client.get_run(trainer.mlflow_run_id).info.status == "FINISHED"


def test_plain_mlflow_calls_on_every_rank_make_one_run(
    server: TrackingServer, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "open-sesame-1001")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ali")
    before = all_runs(client)
    trainer = runner(server, run_name="the one", tags={"team": "vision"})
    inside = trainer.run(tracked_functions.plain_mlflow, secret="open-sesame-1001")
    (run_id,) = all_runs(client) - before
    assert inside == run_id == trainer.mlflow_run_id
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "the one"
    assert history(client, run_id, "plain") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert run.data.metrics["by_client"] == 1.0
    params, tags = run.data.params, run.data.tags
    assert params["learning_rate"] == "0.1"
    assert tags["said_by"] == "rank 0"
    assert tags["team"] == "vision"
    assert "sparkdl_runner.warning" not in tags, "they have joined one another"
    assert params["secret"] == "[redacted]"
    assert params["world_size"] == "2"
    settings = {
        name.removeprefix("sparkdl_runner."): value
        for name, value in tags.items()
        if name.startswith("sparkdl_runner.")
    }
    known = {"num_proc", "backend", "gpus", "restart_backoff_seconds"}
    assert [settings[name] for name in sorted(known)] == ["torch", "0", "-2", "0"]
    not_asked_for = set(AnyConfig.__dataclass_fields__) - known
    assert not not_asked_for & (params.keys() | settings.keys())
    assert "torch 2." in tags["mlflow.sparkdl_runner.versions"]
    theirs = [name for name in tags if not name.startswith(("sparkdl_runner.", "mlflow."))]
    assert sorted(theirs) == ["said_by", "team"], "ours are together"
    assert tags["sparkdl_runner.attempt"] == "0"
    assert tags["sparkdl_runner.attempt.0.ended_by"] == "all ranks returned"

    kept = artifacts(client, run_id)
    assert text_of(client, run_id, "note.txt", tmp_path) == "text of rank 0"
    for rank in (0, 1):
        log = text_of(client, run_id, f"logs/rank_{rank}/attempt-0-00.chunk.txt", tmp_path)
        assert f"rank {rank} says [redacted]" in log
    for path in kept:
        whole = Path(client.download_artifacts(run_id, path, str(tmp_path))).read_bytes()
        assert b"open-sesame-1001" not in whole, path
    assert "open-sesame-1001" not in json.dumps([params, tags])


@LIGHT
def test_logs_are_in_mlflow_while_the_training_runs_and_once_in_the_end(
    server: TrackingServer, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LOG_SECONDS", 0.2)
    monkeypatch.setattr(log_uploads, "UPLOAD_SECONDS", 0.2)
    trainer, sign = light(server), tmp_path / "sign"
    training = trainer.submit(tracked_functions.says_and_waits, str(sign))
    chunk = "logs/rank_1/attempt-0-00.chunk.txt"
    try:
        deadline = time.monotonic() + 120
        while trainer.mlflow_run_id is None or not client.list_artifacts(
            trainer.mlflow_run_id, "logs/rank_1"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run_id = trainer.mlflow_run_id
        assert text_of(client, run_id, chunk, tmp_path) == "first words\n"
        assert client.get_run(run_id).info.status == "RUNNING"
    finally:
        sign.touch()
        training.result(120)
    assert text_of(client, run_id, chunk, tmp_path) == "first words\n<b>last words\n"
    assert artifacts(client, run_id, "logs/rank_1") == [chunk]
    page = text_of(client, run_id, "report/summary.html", tmp_path)
    assert "[rank 1] first words\n" in page
    assert "[rank 1] &lt;b&gt;last words" in page
    assert "<figure>loss <b>0.25</b>" in page


@LIGHT
def test_the_page_says_that_ranks_never_joined_one_another(
    server: TrackingServer, client: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = light(server)
    trainer.run(tracked_functions.only_log, 1)
    told = "The 2 ranks never joined one another: each ran by itself."
    shown, run_id = capfd.readouterr(), trainer.mlflow_run_id
    assert shown.err.count(told) == 1
    assert (shown.out + shown.err).count(f"/runs/{run_id}") == 1, "its address"
    assert client.get_run(run_id).data.tags["sparkdl_runner.warning"].startswith(told)
    assert told in text_of(client, run_id, "report/summary.html", tmp_path)

    strict = light(server, config={"require_collectives": True})
    with pytest.raises(RanksApartError, match=told):
        strict.run(tracked_functions.only_log, 1)
    assert client.get_run(strict.mlflow_run_id).info.status == "FAILED"


@LIGHT
def test_a_nested_run_on_rank_0_is_a_run_of_its_own(server: TrackingServer, client: Any) -> None:
    before = all_runs(client)
    parent_id, child_id = light(server).run(tracked_functions.nested)
    assert all_runs(client) - before == {parent_id, child_id}
    child, parent = client.get_run(child_id), client.get_run(parent_id)
    assert child.data.tags["mlflow.parentRunId"] == parent_id
    assert child.data.params == {"of_the_child": "yes"}
    assert parent.data.params["of_the_parent"] == "yes"
    assert "of_the_child" not in parent.data.params
    assert (child.info.status, parent.info.status) == ("FINISHED", "FINISHED")


@LIGHT
def test_autologging_lands_in_the_run_once(server: TrackingServer, client: Any) -> None:
    before = all_runs(client)
    trainer = light(server)
    trainer.run(tracked_functions.autologged)
    assert all_runs(client) - before == {trainer.mlflow_run_id}
    run = client.get_run(trainer.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["max_iter"] == "5"
    assert len(history(client, run.info.run_id, "training_accuracy_score")) == 1
    assert len(run.outputs.model_outputs) == 1, "one model, not one of each rank"


@LIGHT
def test_other_ranks_may_be_told_that_mlflow_is_not_theirs(server: TrackingServer) -> None:
    sentence = r"Rank 1 on host .* called MLflow to write to the training's run; only rank 0 may"
    with pytest.raises(WorkerFailedError, match=sentence):
        light(server, other_ranks="error").run(tracked_functions.log_parameter)


@LIGHT
def test_a_function_with_an_experiment_of_its_own_has_one_run_there(
    server: TrackingServer, client: Any
) -> None:
    before = all_runs(client)
    trainer = light(server, experiment=None)
    trainer.run(tracked_functions.in_an_experiment_of_its_own, "its place")
    (run_id,) = all_runs(client) - before
    assert run_id == trainer.mlflow_run_id
    run = client.get_run(run_id)
    assert (run.info.run_name, run.data.metrics["plain"]) == ("its own", 1.0)
    assert client.get_experiment(run.info.experiment_id).name == "its place"
    assert "report" in {one.path for one in client.list_artifacts(run_id)}


@LIGHT
def test_a_run_that_the_function_made_elsewhere_is_named_in_the_trainings(
    server: TrackingServer, client: Any
) -> None:
    before = all_runs(client)
    trainer = light(server)
    trainer.run(tracked_functions.in_an_experiment_that_no_source_tells, "some", "where")
    (own,) = all_runs(client) - before - {trainer.mlflow_run_id}
    assert client.get_run(own).data.metrics == {"plain": 1.0}
    told = client.get_run(trainer.mlflow_run_id).data.tags["mlflow.note.content"]
    assert told.startswith(f"What the function logged is in [a run that it made](#/runs/{own}).")


@LIGHT
def test_a_failed_training_says_why(server: TrackingServer, client: Any, tmp_path: Path) -> None:
    trainer = light(server)
    with pytest.raises(WorkerFailedError, match="the data are bad"):
        trainer.run(tracked_functions.fail_late)
    run = client.get_run(trainer.mlflow_run_id)
    assert run.info.status == "FAILED"
    assert run.info.run_name.startswith("fail_late-")
    assert run.data.tags["mlflow.note.content"].startswith("**Failed: Rank 1 of 2 on host ")
    assert "Rank 1 of 2" in run.data.tags["sparkdl_runner.attempt.0.ended_by"]
    told = text_of(client, run.info.run_id, "attempts/attempt-0.txt", tmp_path)
    assert "ValueError: the data are bad" in told
    page = text_of(client, run.info.run_id, "report/summary.html", tmp_path)
    assert "the data are bad" in page


@LIGHT
def test_an_interrupted_training_is_killed_in_mlflow(server: TrackingServer, client: Any) -> None:
    trainer = light(server)

    def interrupt() -> None:
        while len(workers()) < 2 or trainer.mlflow_run_id is None:
            time.sleep(0.1)
        time.sleep(3)
        os.kill(os.getpid(), signal.SIGINT)

    # A Spark session of an earlier test leaves a handler of its own, for jobs that are no more.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, name="interrupts", daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.run(tracked_functions.wait_for_ever)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert client.get_run(trainer.mlflow_run_id).info.status == "KILLED"


def deliver(folder: Path, waits: Path) -> tuple[int, str]:
    """As a person does it who has set no variable."""
    environment = {name: text for name, text in os.environ.items() if "MLFLOW" not in name}
    environment["TMPDIR"] = str(waits)
    command = [sys.executable, "-m", "sparkdl_runner", "deliver"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return ended.returncode, ended.stdout


@LIGHT
def test_no_metric_is_lost_while_the_server_is_down_or_stays_down(
    server: TrackingServer,
    client: Any,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics that never reached the server are named; all that waits is sent by ``deliver``."""
    steps = 1000
    here, waits = tmp_path / "here", tmp_path / "waits"
    here.mkdir()
    waits.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(waits))

    def end(trainer: Any, folder: Path) -> None:
        while not (folder / "half").exists():
            time.sleep(0.1)
        time.sleep(2)  # Some of it has been sent.
        server.stop()
        (folder / "go on").touch()

    def interrupt(trainer: Any, folder: Path) -> None:
        end(trainer, folder)
        time.sleep(5)
        server.start()

    def train(trainer: Any, accident: Any) -> None:
        folder = tmp_path / accident.__name__
        folder.mkdir()
        beside = threading.Thread(target=accident, args=(trainer, folder), name="outage")
        beside.start()
        trainer.run(tracked_functions.log_and_wait_in_the_middle, steps=steps, folder=folder)
        beside.join()

    try:
        waiting = light(server, delivery_timeout_seconds=300)
        train(waiting, interrupt)
        giving_up = light(server, delivery_timeout_seconds=2)
        train(giving_up, end)
        told = capfd.readouterr().out
        assert "were not delivered in 2 s" in told
        assert "Connection refused" in told
        folder = re.search(r"its files are left in (\S+); sparkdl-runner deliver", told)
        assert folder is not None
        code, said = deliver(here, waits)
        assert code == 1
        assert "does not answer" in said
    finally:
        server.stop()
        server.start()
    code, said = deliver(here, waits)
    assert re.search(
        rf"^run {giving_up.mlflow_run_id}: [0-9]+ entries delivered; logs and report are sent; "
        r"the run has ended as FINISHED$",
        said,
        re.MULTILINE,
    )
    assert code == 0
    assert deliver(here, waits) == (0, "There is nothing to deliver.\n")
    assert list(here.iterdir()) == []  # No store of its own.
    assert not Path(folder[1]).exists()
    kept = artifacts(client, giving_up.mlflow_run_id)
    assert "report/summary.html" in kept
    assert client.get_run(giving_up.mlflow_run_id).info.status == "FINISHED"
    light(server, run_id=giving_up.mlflow_run_id).run(tracked_functions.only_log, steps=3)
    for run_id in (waiting.mlflow_run_id, giving_up.mlflow_run_id):
        found = [step for step, _ in history(client, run_id, "loss")]
        assert found == list(range(1, steps + 1))
        assert client.get_run(run_id).info.status == "FINISHED"


def test_a_rank_that_is_killed_costs_nothing_that_is_seen(
    server: TrackingServer, client: Any, tmp_path: Path
) -> None:
    """Weights bit for bit, and metrics without a gap or a repetition, at any step of death."""
    task = {"steps": 40, "every": 8}
    undisturbed = runner(server).run(
        tracked_functions.train_with_checkpoints, url=str(tmp_path / "quiet"), **task
    )
    # Before the first checkpoint, at one, after it and before the next: an attempt each.
    deaths = [5, 8, 9, 23]
    trainer = runner(server, config={"max_restarts": len(deaths)})
    found = trainer.run(
        tracked_functions.train_with_checkpoints,
        url=str(tmp_path / "deaths"),
        die_at=deaths,
        **task,
    )
    assert found["weights"] == undisturbed["weights"]
    assert found["attempt"] == len(deaths)
    assert deaths[-1] - found["first_step"] <= task["every"]
    steps = [step for step, _ in history(client, trainer.mlflow_run_id, "loss")]
    assert steps == list(range(1, 41))
    tags = client.get_run(trainer.mlflow_run_id).data.tags
    for attempt in range(len(deaths)):
        assert "SIGKILL" in tags[f"sparkdl_runner.attempt.{attempt}.ended_by"]
    assert tags[f"sparkdl_runner.attempt.{len(deaths)}.ended_by"] == "all ranks returned"
    assert tags["sparkdl_runner.checkpoint_step"] == "40"


def test_a_driver_that_died_is_followed_by_another(
    server: TrackingServer, client: Any, tmp_path: Path
) -> None:
    code = """
        import sys
        import tracked_functions
        from sparkdl_runner import DistributedRunner, RunConfig
        from sparkdl_runner.tracking import Tracking

        if __name__ == "__main__":
            tracking = Tracking(tracking_uri=sys.argv[1], experiment="tests")
            runner = DistributedRunner(
                num_proc=-2, backend="torch", run_config=RunConfig(tracking=tracking)
            )
            runner.run(
                tracked_functions.train_with_checkpoints, url=sys.argv[2], steps=40000, every=20
            )
    """
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(code))
    before = all_runs(client)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(
        [sys.executable, str(script), server.url, str(tmp_path / "checkpoints")], env=environment
    )
    run_id, saved = "", CheckpointManager(tmp_path / "checkpoints")
    while (
        not run_id
        or len(history(client, run_id, "loss")) < 60
        or max((name.step for name in saved.list()), default=0) < 40
    ):
        run_id = next(iter(all_runs(client) - before), "")
        assert driver.poll() is None
        time.sleep(0.2)
    saved.close()
    elsewhere = runner(server, run_id=run_id)
    with pytest.raises(LaunchError, match=r"active elsewhere: the driver with process id \d+ on"):
        elsewhere.run(tracked_functions.only_log, steps=1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert client.get_run(run_id).info.status == "RUNNING"

    # It may have trained for long before it was killed.
    begun = [int(path.name.removeprefix("step-")) for path in tmp_path.glob("checkpoints/step-*")]
    steps = max(begun) + 100
    resumed = runner(server, run_id=run_id, config={"max_restarts": 1})
    found = resumed.run(
        tracked_functions.train_with_checkpoints,
        url=str(tmp_path / "checkpoints"),
        steps=steps,
        every=20,
    )
    assert found["attempt"] == 1
    assert found["first_step"] >= 40
    assert [step for step, _ in history(client, run_id, "loss")] == list(range(1, steps + 1))
    assert client.get_run(run_id).info.status == "FINISHED"


def test_ranks_whose_host_goes_save_and_are_started_again(
    server: TrackingServer, client: Any, tmp_path: Path
) -> None:
    trainer = runner(server, config={"max_restarts": 1})
    found = trainer.run(tracked_functions.asked_to_end, url=str(tmp_path / "checkpoints"))
    assert found["attempt"] == 1
    assert 7 <= found["first_step"] <= 10
    steps = [step for step, _ in history(client, trainer.mlflow_run_id, "loss")]
    assert steps == list(range(1, 30))
    ended_by = client.get_run(trainer.mlflow_run_id).data.tags["sparkdl_runner.attempt.0.ended_by"]
    assert "was asked to stop" in ended_by


@LIGHT
def test_odd_metrics_and_parameters(
    server: TrackingServer, client: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = light(server)
    trainer.run(tracked_functions.odd_metrics)
    run_id = trainer.mlflow_run_id
    assert history(client, run_id, "loss")[1] == (2, 0.5)
    assert len(history(client, run_id, "norm")) == 2
    assert len(client.get_run(run_id).data.params["long"]) == 6000
    light(server, run_id=run_id).run(tracked_functions.odd_metrics)
    params = client.get_run(run_id).data.params
    assert params["attempt_dependent"] == "0"
    assert params["attempt_1/attempt_dependent"] == "1"
    told = capfd.readouterr()
    assert "the metric 'loss' is nan at step 1" in told.err
    assert "'long' is longer than the 6000" in told.out
    assert "'attempt_dependent' was 0 and is now 1" in told.out


@LIGHT
def test_a_run_under_an_active_one_is_its_child(server: TrackingServer, client: Any) -> None:
    import mlflow

    experiment = client.create_experiment("parents")
    mlflow.set_tracking_uri(server.url)
    with mlflow.start_run(experiment_id=experiment) as parent:
        # Nothing is asked for: MLflow is set up, so there is a run.
        trainer = HorovodRunner(np=-2)
        trainer.run(tracked_functions.only_log, steps=3)
        joined = light(server, run_id=parent.info.run_id)
        joined.run(tracked_functions.only_log, steps=3)
        assert client.get_run(parent.info.run_id).info.status == "RUNNING"
    child = client.get_run(trainer.mlflow_run_id)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.info.experiment_id == experiment
    assert child.info.status == "FINISHED"
    assert len(history(client, parent.info.run_id, "loss")) == 3


@LIGHT
def test_where_mlflow_is_not_set_up_there_is_no_run() -> None:
    trainer = HorovodRunner(np=-2)
    trainer.run(tracked_functions.only_log, steps=3)
    assert trainer.mlflow_run_id is None


@LIGHT
def test_ranks_that_call_mlflow_where_nobody_has_set_it_up_share_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    trainer = HorovodRunner(np=-2)
    trainer.run(tracked_functions.log_parameter)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    found = client.search_runs(["0"])
    assert [run.info.run_id for run in found] == [trainer.mlflow_run_id]
    assert found[0].data.params["learning_rate"] == "0.1"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tracking_uri": "http://127.0.0.1:9"}, "does not answer: .*Connection refused.* Start"),
        ({"tracking_uri": "htp://127.0.0.1:5000"}, "begins with 'htp'.* Did you mean http"),
        ({"tracking_uri": "http://u:pw@127.0.0.1:9"}, r"\[redacted\]@127.0.0.1:9 does not answer"),
        ({"run_id": "0" * 32}, "cannot resume run 0000.* It is not there"),
    ],
)
def test_what_cannot_be_is_said_before_ranks_start(
    server: TrackingServer, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(LaunchError, match=sentence):
        runner(server, **options).run(tracked_functions.only_log, steps=1)
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_credentials_that_may_do_nothing_are_told_as_that() -> None:
    class Forbidding(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_allowed = self.path == "/health"
            text = b"OK" if is_allowed else b'{"error_code": "PERMISSION_DENIED", "message": "no"}'
            self.send_response(200 if is_allowed else 403)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: Any) -> None:
            """Says nothing of requests."""

    front = ThreadingHTTPServer(("127.0.0.1", 0), Forbidding)
    serving = threading.Thread(target=front.serve_forever, args=(0.01,), name="forbids")
    serving.start()
    try:
        tracking = Tracking(tracking_uri=f"http://127.0.0.1:{front.server_port}", experiment="x")
        refused = DistributedRunner(
            num_proc=-2, backend="torch", run_config=RunConfig(tracking=tracking)
        )
        with pytest.raises(LaunchError, match=r"PERMISSION_DENIED.* refuses these credentials"):
            refused.run(tracked_functions.only_log, steps=1)
    finally:
        front.shutdown()
        serving.join()
        front.server_close()
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


@LIGHT
def test_a_value_that_the_driver_cannot_unpickle_is_an_artifact_of_the_run(
    server: TrackingServer, client: Any, tmp_path: Path
) -> None:
    trainer = light(server)
    with pytest.raises(NotPicklableError, match="cannot be unpickled on the driver") as caught:
        trainer.run(tracked_functions.return_what_is_no_number)
    (name,) = artifacts(client, trainer.mlflow_run_id, "returned")
    assert caught.value.__notes__ == [f"It goes to the MLflow run's artifacts as well: {name}."]
    kept = Path(client.download_artifacts(trainer.mlflow_run_id, name, str(tmp_path)))
    assert b"no number" in kept.read_bytes()


def test_a_progress_bar_is_shown_on_a_terminal_with_lines_above_it(
    tmp_path: Path, no_torch: str
) -> None:
    script = tmp_path / "bar.py"
    script.write_text(
        textwrap.dedent(
            """
            import tracked_functions
            from sparkdl_runner import DistributedRunner, RunConfig

            runner = DistributedRunner(
                num_proc=-2, backend="horovod", run_config=RunConfig(tracking=False)
            )
            runner.run(tracked_functions.only_log, steps=200, pause_seconds=0.01)
            """
        )
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([no_torch, *sys.path])},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # That is how a terminal's end is told.
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert driver.wait() == 0, shown.decode()
    last = [line for line in re.split(rb"[\r\n]+", shown) if b"training:" in line][-1].decode()
    assert "200/200" in last
    assert "step/s" in last
    assert "loss=0.005" in last


def test_a_deleted_run_is_not_resumed(server: TrackingServer, client: Any) -> None:
    run = client.create_run("0")
    client.delete_run(run.info.run_id)
    with pytest.raises(LaunchError, match="was deleted"):
        runner(server, run_id=run.info.run_id).run(tracked_functions.only_log, steps=1)


def test_traces_are_kept_by_one_setting_each(
    server: TrackingServer, client: Any, tmp_path: Path
) -> None:
    import gzip

    tracking = Tracking(
        tracking_uri=server.url, experiment="tests", torch_profiler=True, horovod_timeline=True
    )
    trainer = DistributedRunner(
        num_proc=-2, backend="horovod", run_config=RunConfig(tracking=tracking)
    )
    trainer.run(tracked_functions.traced, steps=15)
    run_id = trainer.mlflow_run_id
    path = "traces/attempt-0/torch-profiler-rank-0.json.gz"
    trace = client.download_artifacts(run_id, path, str(tmp_path))
    assert json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]
    timeline = text_of(client, run_id, "traces/attempt-0/horovod-timeline.json", tmp_path)
    assert "ALLREDUCE" in timeline


# The two between the oldest and the newest take one rank, which costs a third less.
@pytest.mark.parametrize(
    ("version", "ranks"), [("2.13.1", 2), ("2.21.3", 1), ("3.0.1", 1), ("3.8.1", 2)]
)
def test_the_mlflow_of_databricks_runtimes_tracks_a_training(
    server: TrackingServer, tmp_path: Path, version: str, ranks: int
) -> None:
    """The part of ``make compat`` that costs least: other MLflows, with this lane's torch."""
    venv.create(tmp_path / "venv", symlinks=True)
    python, packages = tmp_path / "venv/bin/python", tmp_path / "venv/lib"
    (site_packages,) = packages.glob("python*/site-packages")
    (site_packages / "lane.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    # MLflow's client alone, and those of its packages that the lane has in other versions.
    wanted = [f"mlflow-skinny=={version}", "--quiet", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *wanted]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    done = subprocess.run(
        [str(python), str(ROOT / "tests/compat/tracked_training.py"), str(ranks)],
        env={**os.environ, "MLFLOW_TRACKING_URI": server.url},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"MLflow {version}: all is there" in done.stdout
