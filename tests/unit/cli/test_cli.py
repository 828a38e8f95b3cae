"""The command itself: what its commands need, and what they say of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.cli import _COMMANDS, build_horovod, main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("missing", ["pydantic", "yaml"])
@pytest.mark.parametrize("command", ["run", "train"])
def test_a_command_without_what_it_imports_names_the_extra(command, missing):
    code = (
        f"import sys\nsys.modules[{missing!r}] = None\n"
        f"from sparkdl_runner.cli import main\nsys.exit(main([{command!r}, '--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        (
            f"sparkdl-runner {command}: {command} needs {missing}, which is not installed here: "
            "run pip install 'sparkdl-runner[jobs]'."
        )
    ]


def test_the_help_of_run_says_its_default(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "init_process_group() (torch, the default), hvd.init() (horovod)" in told
    assert "let train run it: sparkdl-runner train --function" in told


@pytest.mark.parametrize("command", list(_COMMANDS))
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: sparkdl-runner {command} ")
    assert f"\n  sparkdl-runner {command}" in told, "an example to copy"


def test_a_misspelt_flag_is_told_before_the_required_one_that_it_was_to_be(capsys):
    assert main(["run", "--num_procs", "2", "train.py"]) == 2
    assert "there is no --num_procs; did you mean '--num-proc'?" in capsys.readouterr().err


def test_where_prints_a_file_that_runs_the_job(capsys):
    assert main(["where", "jobs/train.py"]) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert Path(path).read_bytes() == (ROOT / "jobs" / "train.py").read_bytes()
    assert main(["where", "jobs/trian.py"]) == 2
    assert "there is no file jobs/trian.py; did you mean 'jobs/train.py'?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ([], []),
        (["--gpu", "--wheel-only"], ["--gpu", "--wheel-only"]),
        (["--check", "--trust-wheelhouse"], ["--trust-wheelhouse", "--check"]),
        (["--wheelhouse", "/w", "--sha256", "0a"], ["--wheelhouse", "/w", "--sha256", "0a"]),
    ],
)
def test_the_script_that_builds_horovod_gets_what_was_given(monkeypatch, arguments, given):
    run: list[list[str]] = []

    def take(command, **_):
        run.append(command)
        return subprocess.CompletedProcess(command, 3, stdout="")

    monkeypatch.setattr(build_horovod.subprocess, "run", take)
    assert main(["build-horovod", *arguments]) == 3
    assert run == [["bash", str(build_horovod.SCRIPT), "--python", sys.executable, *given]]
