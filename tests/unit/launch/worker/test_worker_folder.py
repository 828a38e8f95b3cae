"""The folder that a worker makes for itself goes with it, however it, or its agent, ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

from sparkdl_runner.launch.agent.worker_process import WorkerProcess
from sparkdl_runner.launch.worker import lifeline

# In place of a worker: makes its folder, and stays until it is killed.
WORKER = """
import os, sys, time
from sparkdl_runner.launch.worker import lifeline
lifeline.die_with_agent(int(sys.argv[1]), os.getppid())
os.mkdir(os.environ[lifeline.FOLDER])
open(os.path.join(os.environ[lifeline.FOLDER], "train.py"), "w").close()
print("made", flush=True)
time.sleep(600)
"""


def is_gone(folder: Path) -> bool:
    deadline = time.monotonic() + 120
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()


def test_the_guard_removes_it_when_the_agent_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    theirs, ours = os.pipe()
    root = str(Path(__file__).parents[3])
    own = {lifeline.FAMILY: uuid.uuid4().hex, lifeline.FOLDER: str(folder), "PYTHONPATH": root}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(theirs)],
        env={**os.environ, **own},
        pass_fds=[theirs],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as worker:
        os.close(theirs)
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"made\n"
        assert (folder / "train.py").exists()
        os.close(ours)
        assert is_gone(folder)


def test_the_agent_removes_it_with_the_worker(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    worker = WorkerProcess(backend="horovod", environment=environment, shutdown_grace_seconds=1)
    folder = Path(worker._folder)
    try:
        folder.mkdir()
        (folder / "train.py").touch()
    finally:
        worker.end()
    assert not folder.exists()
    worker.end()
