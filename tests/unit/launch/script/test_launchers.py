"""Commands and calls that would start ranks inside of a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.launch.script.launchers import launcher_in

ROOT = str(Path(__file__).parents[4])


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["torchrun", "--nproc-per-node", "2", "train.py"], "torchrun"),
        (["/opt/bin/torchrun", "train.py"], "torchrun"),
        ("torchrun train.py", "torchrun"),
        ([sys.executable, "-u", "-m", "torch.distributed.run"], "python -m torch.distributed.run"),
        (["python3", "-m", "torch.distributed.launch"], "python -m torch.distributed.launch"),
        (["python", "/opt/bin/torchrun", "train.py"], "torchrun"),
        (["sh", "-c", "OMP_NUM_THREADS=1 exec torchrun train.py"], "torchrun"),
        (["sh", "-c", "nohup torchrun train.py"], "torchrun"),
        ([b"horovodrun", b"-np", b"2"], "horovodrun"),
        (["accelerate", "launch", "train.py"], "accelerate launch"),
        (["accelerate", "env"], ""),
        (["python", "-m", "pip", "install", "torchrun"], ""),
        (["python", "torchrun_results.py"], ""),
        (["python", "-c", "print('torchrun')"], ""),
        (["git", "log", "torchrun"], ""),
        (["sh", "-c", "echo torchrun"], ""),
        (["sh", "-c", "echo 'not closed"], ""),
        (["sh", "-c"], ""),
        ([], ""),
        ("", ""),
        ("ls", ""),
        (["ls", None], ""),
    ],
)
def test_a_command_that_starts_ranks_is_known_by_its_program(command, found):
    assert launcher_in(command) == found


STARTS = {
    "import subprocess; subprocess.run(['torchrun', 'x.py'])": "torchrun",
    "import subprocess; subprocess.Popen('torchrun x.py', shell=True)": "torchrun",
    "import os; os.system('torchrun x.py')": "torchrun",
    "import os; os.execvp('horovodrun', ['horovodrun', '-np', '2'])": "horovodrun",
    "import os; os.posix_spawnp('torchrun', ['torchrun'], {})": "torchrun",
    "import library; library.start()": "start()",
}


@pytest.mark.parametrize("code", STARTS)
def test_a_launcher_raises_before_it_has_started_anything(tmp_path, code):
    (tmp_path / "library.py").write_text("def start():\n    print('started')\n")
    (tmp_path / "torchrun").write_text("#!/bin/sh\necho started\n")
    (tmp_path / "torchrun").chmod(0o755)
    script = (
        "from sparkdl_runner.launch.script import launchers\n"
        "launchers._FUNCTIONS = [('library', 'start', 'start()', 'call it')]\n"
        "launchers.refuse_launchers('train.py')\n"
        "import subprocess\nsubprocess.run(['true'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + code],
        env={**os.environ, "PYTHONPATH": ROOT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        | {"RANK": "1", "WORLD_SIZE": "2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(
        "sparkdl_runner.errors.RunnerError: "
        f"train.py starts ranks of its own by {STARTS[code]}, "
        "and it runs in a rank already (1 of 2): "
    )
