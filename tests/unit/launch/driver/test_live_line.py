"""The line that rank 0 has not ended: on a terminal, in a notebook, and nowhere else."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest

from screen import Screen
from sparkdl_runner.launch.driver import live_line
from sparkdl_runner.launch.driver.live_line import LiveLine
from sparkdl_runner.launch.wire.rank_lines import write_lines
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD, OTHER = assign_ranks(
    [
        Peer(partition=rank, host="h", host_key="k", address="127.0.0.1", interface="lo")
        for rank in range(2)
    ],
    backend="torch",
).values()


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPython", "dbruntime", "pyspark"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_on_a_terminal_it_is_drawn_over_and_lines_come_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    live = LiveLine()
    live.show(WORLD, "10%")
    assert screen.lines() == ["[rank 0] 10%"]
    live.show(WORLD, "20%")
    assert screen.lines() == ["[rank 0] 20%"]
    write_lines(screen, OTHER, ["told"])
    assert screen.lines() == ["[rank 1] told", "[rank 0] 20%"]
    live.show(WORLD, "")
    write_lines(screen, WORLD, ["100%"])
    assert screen.lines() == ["[rank 1] told", "[rank 0] 100%", ""]
    live.show(WORLD, "\x1b[2Jx" + "y" * 500)
    assert len(screen.lines()[-1]) < 80, "it is not wrapped"
    live.erase()
    assert screen.lines() == ["[rank 1] told", "[rank 0] 100%", ""]
    assert "\x1b[2J" not in screen.getvalue()


def test_a_closed_standard_output_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    live = LiveLine()
    live.show(WORLD, "10%")
    live.erase()


def test_a_file_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    live = LiveLine()
    live.show(WORLD, "10%")
    live.erase()
    assert stream.getvalue() == ""


def test_a_terminal_that_is_gone_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    live = LiveLine()
    live.show(WORLD, "10%")
    screen.close()
    live.show(WORLD, "20%")
    live.erase()


def test_in_a_notebook_it_has_an_output_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            assert raw
            told.append(content)

    def show_in_cell(content: dict[str, str], *, display_id: bool) -> Handle:
        assert display_id
        told.append(content)
        return Handle()

    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setattr(live_line, "show_in_cell", show_in_cell)
    live = LiveLine()
    for text in ("10%", "20%", ""):
        live.show(WORLD, text)
    assert [one["text/plain"] for one in told] == ["[rank 0] 10%", "[rank 0] 20%", ""]
