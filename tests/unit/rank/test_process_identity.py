"""Another user's process that /proc hides (hidepid) lives, as far as anybody can tell."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from sparkdl_runner.rank.process_identity import ProcessIdentity, this_process


@pytest.fixture
def other() -> ProcessIdentity:
    return dataclasses.replace(this_process(), pid=os.getpid(), started_ticks=1)


def refuse(*_: object) -> None:
    raise PermissionError


def nothing(*_: object) -> bytes:
    raise FileNotFoundError


def test_what_proc_refuses_to_tell_is_not_gone(
    other: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert other.is_gone()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert not other.is_gone()


def test_what_proc_hides_is_gone_only_if_the_kernel_says_so(
    other: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_bytes", nothing)
    monkeypatch.setattr(os, "kill", refuse)
    assert not other.is_gone()
    monkeypatch.undo()
    assert dataclasses.replace(other, pid=1 << 22).is_gone()
    assert dataclasses.replace(other, pid=1 << 80).is_gone()
