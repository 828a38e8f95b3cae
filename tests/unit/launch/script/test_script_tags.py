"""What an MLflow run says of its script."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.launch.script.tags import script_tags, shown_arguments
from sparkdl_runner.tracking.run import parameters_and_tags
from sparkdl_runner.tracking.run.parameters_and_tags import git_commit


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--epochs", "3", "a file"], "--epochs 3 'a file'"),
        (["--api-key", "abc", "--epochs", "3"], "--api-key '[redacted]' --epochs 3"),
        (["--hf_token=abc", "-x"], "'--hf_token=[redacted]' -x"),
        (["--password", "--epochs", "3"], "--password --epochs 3"),
        (["s3://u:secret12@host/x"], "s3://[redacted]host/x"),
    ],
)
def test_arguments_are_shown_without_secrets(args, shown):
    assert shown_arguments(args).replace("[redacted]@", "[redacted]") == shown


def test_a_run_has_its_scripts_name_and_arguments(tmp_path):
    (tmp_path / "train.py").touch()
    path = str(tmp_path / "train.py")
    tags = script_tags(Script.find(path, ["--epochs", "3" * 5000], travels=False))
    assert tags["mlflow.source.name"] == path
    assert tags["sparkdl_runner.launch.script"] == "train.py"
    assert tags["sparkdl_runner.script_args"].startswith("--epochs 333")
    assert len(tags["sparkdl_runner.script_args"]) == 2000


@pytest.mark.parametrize(
    ("commit", "changes", "told"),
    [("0a1b", "", "0a1b"), ("0a1b", " M train.py", "0a1b-dirty"), ("", " M train.py", None)],
)
def test_the_commit_of_a_folder_and_whether_it_was_changed(
    tmp_path, monkeypatch, commit, changes, told
):
    answers = {"rev-parse": commit, "status": changes}
    monkeypatch.setattr(parameters_and_tags, "_git", lambda folder, name, *_: answers[name])
    assert git_commit(tmp_path) == told


def test_a_host_without_git_knows_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path) is None
