"""From a command line to the settings and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from every_job import EVERY_JOB
from one_module import replace_in
from sparkdl_runner.cli import command_line
from sparkdl_runner.cli import main as cli
from sparkdl_runner.cli.where import ENTRY
from sparkdl_runner.errors import ConfigError, LaunchError, RunnerError
from sparkdl_runner.jobs import train
from sparkdl_runner.jobs.parsing import Settings, command


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch):
    """Jobs quieten MLflow, in their own process."""
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "ERROR")
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def job_that(run) -> command.Command:
    return command.Command(
        name="train",
        summary="",
        example="",
        settings=train.JOB.settings,
        run=lambda settings: run(settings) or {},
    )


def settings_of(*argv: str) -> Settings:
    found = []
    assert command.main(job_that(found.append), argv) == 0
    return found[0]


def test_flags_become_settings():
    settings = settings_of(
        *("--function", "123:main", "--num-proc", "-2", "--backend", "torch"),
        *("--data", "a=/data/a", "b={table: t, columns: [x]}"),
        *("--hyperparameters", "lr=1e-3", "sizes=[1, 2]", "--hyperparameters", "name=x=y"),
        *("--run-config", "max_restarts=2", "--tracking", "experiment=e"),
    )
    assert settings.function == "123:main"
    assert settings.num_proc == -2
    assert settings.data["a"].path == "/data/a"
    assert settings.data["b"].columns == ["x"]
    assert settings.hyperparameters == {"lr": 1e-3, "sizes": [1, 2], "name": "x=y"}
    assert settings.run_config.build().max_restarts == 2
    assert settings.wanted_tracking.experiment == "e"


def test_no_run_is_wanted_where_a_flag_says_so(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text("mlflow: false\n")
    settings = settings_of("--config", str(path), "--example", "digits", "--num-proc", "1")
    assert settings.wanted_tracking is False


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--nmu-proc", "2"], "there is no --nmu-proc; did you mean '--num-proc'?"),
        (["--num", "2"], "there is no --num; did you mean '--num-proc'?"),
        (["--hyper", "a=1"], "there is no --hyper; did you mean '--hyperparameters'?"),
        (
            ["--weight-decay=3"],
            "an argument of the function is given by --hyperparameters weight_decay=…; --help",
        ),
        (["--hyperparameters", "lr"], "'lr' is not KEY=VALUE"),
        (["--max-restarts", "2"], "there is no --max-restarts; did you mean --run-config max_rest"),
        (["--experiment=e"], "no --experiment=e; did you mean --tracking experiment=…?"),
        (["--num-proc"], "expected one argument"),
        ([], "give one of function, script, module, model and example."),
        (["--example", "digits"], "num_proc is missing."),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(capsys, argv, sentence):
    if not argv:
        argv = ["--num-proc", "1"]
    assert command.main(job_that(lambda settings: None), argv) == 2
    told = capsys.readouterr().err
    assert told.startswith("train: ")
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("c"), 2),
        (LaunchError("l"), 2),
        (RunnerError("r"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(capsys, error, code):
    def run(settings):
        raise error

    assert command.main(job_that(run), ["--example", "digits", "--num-proc", "1"]) == code
    assert capsys.readouterr().err.startswith("train: ")


def test_a_defect_keeps_its_traceback():
    def run(settings):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command.main(job_that(run), ["--example", "digits", "--num-proc", "1"])


def test_sigterm_is_an_end_as_ctrl_c_is_and_its_handler_goes_with_the_job(capsys):
    import os
    import signal
    import time

    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def run(settings):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(300)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # A second one does not tear up the cleaning.
            cleaned.append(True)

    argv = ["--example", "digits", "--num-proc", "1"]
    assert command.main(job_that(run), argv) == 143
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_driver_whose_spark_submit_is_gone_ends(monkeypatch):
    import threading
    import time

    is_watched, is_gone = threading.Event(), threading.Event()
    watchers = []

    def parent():
        is_watched.set()
        return 1 if is_gone.is_set() else 7

    def run(settings):
        assert is_watched.wait(300)
        watchers.extend(one for one in threading.enumerate() if one.name == "sparkdl-parent")
        is_gone.set()
        while True:
            time.sleep(0.01)

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    replace_in(monkeypatch, command_line, "os", getppid=parent)
    assert command.main(job_that(run), ["--example", "digits", "--num-proc", "1"]) == 143
    (watcher,) = watchers
    watcher.join()
    assert watcher.daemon, "else it would keep a driver that is done from ending"


@pytest.mark.parametrize("job", EVERY_JOB, ids=lambda job: job.name)
def test_help_names_every_setting_and_the_exit_codes(capsys, job):
    with pytest.raises(SystemExit) as ended:
        command.main(job, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name, field in job.settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description, f"{name} needs a description"
    assert "exit codes:" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("job", EVERY_JOB, ids=lambda job: job.name)
def test_each_has_a_file_for_spark_submit_which_the_package_links(job):
    file = Path(__file__).parents[3] / "jobs" / f"{job.name}.py"
    assert f"sparkdl_runner.jobs.{job.name} import JOB" in file.read_text()
    assert (ENTRY / file.name).readlink() == Path("../../..", "jobs", file.name)


def test_the_command_of_all_commands(capsys):
    assert cli(["chekpoints"]) == 2
    assert (
        "there is no command 'chekpoints'; did you mean 'checkpoints'?" in capsys.readouterr().err
    )
    assert cli([]) == 2
    assert cli(["run", "a:b"]) == 2
    assert "--np" in capsys.readouterr().err
    assert cli(["run", "a:b", "--np", "-1", "--epochs", "3"]) == 2
    assert (
        "there is no --epochs; an argument of the function is given by --hyperparameters epochs=…"
        in (capsys.readouterr().err)
    )
    assert cli(["run", "a:b", "--np", "-1", "--tracking", "experiment=e"]) == 2
    assert "there is no --tracking; train has it: see sparkdl-runner train --help." in (
        capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        cli(["--help"])
    text = capsys.readouterr().out
    for name in ("doctor", "run", "train", "checkpoints", "build-horovod"):
        assert f"\n  {name} " in text
