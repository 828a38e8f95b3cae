"""The progress bar: one line, with the rate of the steps themselves, also in a notebook."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from screen import Screen
from sparkdl_runner.rank.world import Peer, World, assign_ranks
from sparkdl_runner.tracking.report import progress_bar
from sparkdl_runner.tracking.report.progress_bar import ProgressBar, is_watched

WORLD: World = assign_ranks(
    [
        Peer(partition=0, host="a", host_key="a", address="127.0.0.1", interface="lo"),
        Peer(partition=1, host="a", host_key="a", address="127.0.0.1", interface="lo"),
    ],
    backend="torch",
)[0]


def report(step: int, *, steps: int, seconds: float, **latest: float) -> dict[str, Any]:
    return {
        "step": step,
        "total_steps": 200,
        "epoch": None,
        "steps": steps,
        "running_seconds": seconds,
        "latest": latest,
    }


@pytest.fixture(autouse=True)
def _stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes while a bar is drawn, which counts from its own clock."""
    monkeypatch.setattr("tqdm.std.time", lambda: 1000.0)
    monkeypatch.setattr(progress_bar, "time", types.SimpleNamespace(time=lambda: 1000.0))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Screen]:
    """Makes this process look like a notebook without widgets, and returns what it shows."""
    # Not here already: pytest sets the streams anew for the test itself.
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)

    def enter() -> Screen:
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        return screen

    return enter


def test_in_a_notebook_it_is_on_stdout_where_ranks_print(
    notebook: Callable[[], Screen], capsys: pytest.CaptureFixture[str]
) -> None:
    screen, bar = notebook(), ProgressBar()
    bar.progress(WORLD, report(50, steps=49, seconds=0.49, loss=0.5))
    bar.close()
    assert "50/200" in screen.getvalue()
    assert capsys.readouterr().err == ""


def test_the_rate_is_that_of_the_steps(notebook: Callable[[], Screen]) -> None:
    screen, bar = notebook(), ProgressBar()
    # The first report comes when the training has long been running; and after the last step,
    # time passes in which a model is saved.
    bar.progress(WORLD, report(101, steps=100, seconds=10.0, loss=0.5))
    assert "10.00 step/s" in screen.lines()[-1]
    bar.progress(WORLD, report(200, steps=199, seconds=19.9, loss=0.25))
    bar.close()
    assert "200/200 [00:19<00:00, 10.00 step/s, loss=0.25]" in screen.lines()[0]
    assert screen.lines()[1:] == [""], "one line, and the next output begins below it"


def test_what_has_not_changed_is_not_drawn_again(notebook: Callable[[], Screen]) -> None:
    screen, bar = notebook(), ProgressBar()
    bar.progress(WORLD, report(50, steps=49, seconds=0.49, loss=0.5))
    drawn = screen.getvalue()
    bar.progress(WORLD, report(50, steps=49, seconds=0.49, loss=0.5))
    assert screen.getvalue() == drawn
    bar.progress(WORLD, report(50, steps=49, seconds=0.5, loss=0.5, accuracy=0.9))
    assert "accuracy=0.9" in screen.lines()[-1]
    bar.close()


def test_of_trainings_side_by_side_one_is_shown_at_a_time(notebook: Callable[[], Screen]) -> None:
    screen, first, second = notebook(), ProgressBar(), ProgressBar()
    for step in (50, 200):
        first.progress(WORLD, report(step, steps=step, seconds=1.0))
        second.progress(WORLD, report(step - 1, steps=step, seconds=1.0))
    first.close()
    second.progress(WORLD, report(199, steps=199, seconds=2.0))
    second.close()
    assert [line[:9] for line in screen.lines()] == ["training:", "training:", ""]
    assert "200/200" in screen.lines()[0]
    assert "199/200" in screen.lines()[1]
    third = ProgressBar()
    third.close()  # It was never shown, and holds nothing back.
    third.progress(WORLD, report(1, steps=1, seconds=1.0))
    third.close()
    assert "1/200" in screen.lines()[2]


def test_after_a_restart_it_goes_on_at_the_checkpoint(notebook: Callable[[], Screen]) -> None:
    screen, bar = notebook(), ProgressBar()
    bar.progress(WORLD, report(50, steps=49, seconds=4.9))
    bar.progress(WORLD, report(45, steps=4, seconds=2.0))
    assert "45/200" in screen.lines()[-1]
    assert "2.00 step/s" in screen.lines()[-1]
    bar.close()


def test_on_a_terminal_it_is_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPython", "dbruntime"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.progress(WORLD, report(50, steps=49, seconds=0.49))
    bar.close()
    assert "50/200" in screen.lines()[0]


def test_it_is_for_terminals_and_notebooks(
    monkeypatch: pytest.MonkeyPatch, notebook: Callable[[], Screen]
) -> None:
    assert is_watched(), "a notebook"
    monkeypatch.delitem(sys.modules, "IPython")
    monkeypatch.delitem(sys.modules, "dbruntime", raising=False)
    # Spark 4 imports it, kernel or not.
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert not is_watched()
    monkeypatch.setattr(sys, "stderr", Screen())
    assert is_watched(), "a terminal"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not is_watched(), "without tqdm"
