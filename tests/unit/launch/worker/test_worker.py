"""How a worker begins and ends."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from sparkdl_runner.launch.worker import __main__ as worker


def test_modules_are_imported_early_up_to_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        if name == "broken":
            raise RuntimeError("no libcuda")

    with monkeypatch.context() as patch:
        patch.setattr(worker.importlib, "import_module", load)
        patch.setattr(worker.gc, "freeze", lambda: None)
        worker._import_early(["torch", "broken", "built on it"])
    assert asked == ["torch", "broken"]


@pytest.mark.parametrize(
    ("code", "order"),
    [
        (0, ["threads", "at exit", "stay", "release 7", "exit 0"]),
        (1, ["threads", "at exit", "release 7", "exit 1"]),
    ],
)
def test_a_worker_stays_for_the_others_only_where_its_function_returned(
    monkeypatch: pytest.MonkeyPatch, code: int, order: list[str]
) -> None:
    done: list[str] = []

    def note(what: str) -> Callable[..., None]:
        return lambda *values: done.append(" ".join([what, *map(str, values)]))

    with monkeypatch.context() as patch:
        patch.setattr(worker.threading, "_shutdown", note("threads"))
        patch.setattr(worker.atexit, "_run_exitfuncs", note("at exit"))
        patch.setattr(worker.lifeline, "release", note("release"))
        patch.setattr(os, "_exit", note("exit"))
        worker._exit(code, 7, note("stay"))
    assert done == order
