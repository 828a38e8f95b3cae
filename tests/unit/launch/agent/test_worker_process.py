"""A worker's process, where it cannot be started."""

from __future__ import annotations

import subprocess

import pytest

from open_files import no_file_left_open
from sparkdl_runner.launch.agent.worker_process import WorkerProcess


def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with no_file_left_open(), pytest.raises(OSError, match="allocate"):
        WorkerProcess(backend="torch", environment={}, shutdown_grace_seconds=1.0)
