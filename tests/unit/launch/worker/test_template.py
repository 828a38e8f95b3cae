"""A template forks workers as long as what it has imported is what an import would find."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparkdl_runner.base import processes
from sparkdl_runner.launch.worker import lifeline, template
from sparkdl_runner.launch.worker.template import _imported


def test_a_file_that_was_written_again_or_found_elsewhere_changes_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sparkdl_spare_example"
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "second" / f"{name}.py"
    file.write_text("number = 1\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    importlib.import_module(name)
    try:
        before = _imported()
        assert before == _imported()
        files, origins = before
        assert origins[name] == str(file)
        assert str(file) in files
        (tmp_path / "first" / f"{name}.py").write_text("number = 2\n")
        assert _imported()[1][name] == str(tmp_path / "first" / f"{name}.py")
        (tmp_path / "first" / f"{name}.py").unlink()
        assert _imported() == before
        file.write_text("number = 10\n")
        assert _imported() != before
    finally:
        del sys.modules[name]


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether ``check`` holds in a process that was forked from this one."""
    pid = os.fork()
    if pid == 0:
        holds = False
        try:
            holds = check()
        finally:
            os._exit(not holds)
    return os.waitpid(pid, 0)[1] == 0


def test_what_is_forked_has_random_numbers_of_its_own() -> None:
    numbers = np.random.get_state()[1].tolist()
    python = random.getstate()

    def is_seeded_anew() -> bool:
        template._renew_randomness()
        return np.random.get_state()[1].tolist() != numbers and random.getstate() != python

    assert in_a_fork(is_seeded_anew)
    assert np.random.get_state()[1].tolist() == numbers


def test_torch_draws_other_numbers_in_what_is_forked_where_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a new process, its generator begins with a number that differs each time.
    seeded: list[str] = []
    generator = SimpleNamespace(seed=lambda: seeded.append("torch"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=generator))
    monkeypatch.delitem(sys.modules, "numpy.random")
    key = multiprocessing.current_process().authkey
    try:
        template._renew_randomness()
        assert multiprocessing.current_process().authkey != key
    finally:
        multiprocessing.current_process().authkey = key
    assert seeded == ["torch"]


def test_the_kernel_shows_another_family_of_what_was_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This process was started without a family: another variable of its first environment stands
    # for it.
    first = processes.environment(os.getpid())
    name, old = next(
        (name, value)
        for name, _, value in (entry.decode().partition("=") for entry in first)
        if len(value) > 1 and entry_is_unique(first, name, value)
    )
    monkeypatch.setattr(lifeline, "FAMILY", name)
    new = uuid.uuid4().hex * len(old)
    new = new[: len(old)]

    def is_renamed() -> bool:
        lifeline.rename_family(old, new)
        expected = [
            f"{name}={new}".encode() if entry == f"{name}={old}".encode() else entry
            for entry in first
        ]
        return processes.environment(os.getpid()) == expected

    assert in_a_fork(is_renamed)
    assert processes.environment(os.getpid()) == first
    with pytest.raises(OSError, match="has no"):
        lifeline.rename_family("another" + old, new)
    with pytest.raises(OSError, match="has no"):
        lifeline.rename_family(old, new + "longer")


def entry_is_unique(entries: list[bytes], name: str, value: str) -> bool:
    return b"\0".join(entries).count(f"{name}={value}".encode()) == 1
