"""The command itself: what its commands need, and what they say of themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparkdl_runner.cli import main


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
    assert "init_process_group() (torch, the default), or hvd.init()" in told
    assert "let train run it: sparkdl-runner train --function" in told
