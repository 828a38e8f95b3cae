"""A worker's process, where it cannot be started."""

from __future__ import annotations

import os
import subprocess

import pytest

from sparkdl_runner.launch.agent.worker_process import WorkerProcess


def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="allocate"):
        WorkerProcess(backend="torch", environment={}, shutdown_grace_seconds=1.0)
    assert set(os.listdir("/proc/self/fd")) == before
