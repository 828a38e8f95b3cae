"""A worker's process, where it cannot be started."""

from __future__ import annotations

import os
import subprocess

import pytest

from sparkdl_runner.agent.child_process import ChildProcess


def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="allocate"):
        ChildProcess(backend="torch", environment={})
    assert set(os.listdir("/proc/self/fd")) == before
