"""Keys and flags of earlier versions: each is told of once, and works."""

from __future__ import annotations

import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import _tell_once, command, load
from sparkdl_runner.jobs.train import JOB
from sparkdl_runner.jobs.training.settings import TrainSettings

YAML = """
example: digits
num_proc: 1
runner: {max_restarts: 2}
mlflow: {experiment: e}
"""


@pytest.fixture(autouse=True)
def _told_nothing_yet():
    _tell_once.cache_clear()


def test_earlier_keys_are_todays(tmp_path, capsys):
    path = tmp_path / "t.yaml"
    path.write_text(YAML)
    for _ in range(2):
        settings = load(TrainSettings, str(path), {"run_config": {"spare_seconds": 5}})
    assert settings.run_config.build().max_restarts == 2
    assert settings.run_config.build().spare_seconds == 5, "a flag goes over the file's key"
    assert settings.tracking.experiment == "e"
    assert capsys.readouterr().err.splitlines() == [
        f"sparkdl_runner: {path}: {earlier} is called {today} now. The earlier name works for two "
        "more versions."
        for earlier, today in (("runner", "run_config"), ("mlflow", "tracking"))
    ]
    path.write_text(YAML + "tracking: false\n")
    with pytest.raises(ConfigError, match=r"t\.yaml: mlflow is called tracking now, and both are"):
        load(TrainSettings, str(path), {})


def test_earlier_flags_are_todays(monkeypatch, capsys):
    monkeypatch.setattr(command, "_quieten_libraries", lambda: None)
    found = []
    job = command.Command(
        name="train",
        summary="",
        example="",
        settings=JOB.settings,
        run=lambda settings: found.append(settings) or {},
    )
    argv = ["--example", "digits", "--np", "-2", "--runner", "max_restarts=2"]
    assert command.main(job, [*argv, "--mlflow", "experiment=e"]) == 0
    assert (found[0].num_proc, found[0].run_config.build().max_restarts) == (-2, 2)
    assert found[0].tracking.experiment == "e"
    told = capsys.readouterr().err
    assert "sparkdl_runner: --runner is called --run-config now." in told
    assert "--mlflow is called --tracking now." in told
    assert "--np" not in told, "it is the short name of --num-proc, and stays"
