"""A figure of rank 0: a picture in a notebook; elsewhere, a line that says where it is."""

from __future__ import annotations

import base64
import sys
import types
from typing import Any

import pytest

from sparkdl_runner.launch.driver import figures
from sparkdl_runner.launch.driver.figures import ShownFigures
from sparkdl_runner.launch.wire.messages import Figure
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
    attempt=1,
)[0]
PNG = b"\x89PNG\r\n\x1a\n and more"


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPython", "dbruntime"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_in_a_notebook_it_is_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[dict[str, Any]] = []
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setattr(figures, "show_in_cell", shown.append)
    assert ShownFigures(are_kept=False).show(WORLD, Figure(3, PNG)) == "figures/rank-0-3.png"
    picture = base64.b64encode(PNG).decode()
    assert shown == [{"image/png": picture, "text/plain": "figure 3 of rank 0"}]
    assert capsys.readouterr().out == ""


def test_elsewhere_a_line_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert ShownFigures(are_kept=True).show(WORLD, Figure(3, PNG)) == "figures/rank-0-3.png"
    assert capsys.readouterr().out == (
        "sparkdl_runner: figure 3 of rank 0 goes to the MLflow run's artifacts: "
        "figures/attempt-1/rank-0-3.png.\n"
    )


def test_without_a_run_it_is_said_once_that_it_is_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = ShownFigures(are_kept=False)
    for count in (1, 2):
        shown.show(WORLD, Figure(count, PNG))
    assert capsys.readouterr().out.count("is shown nowhere") == 1


@pytest.mark.parametrize(
    "figure",
    [
        Figure(1, b"<html>"),
        Figure(1, PNG + bytes(figures.MAX_FIGURE_BYTES)),
        Figure(0, PNG),
        Figure(figures.MAX_FIGURES + 1, PNG),
    ],
)
def test_what_is_no_figure_of_a_rank_is_ignored(
    figure: Figure, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ShownFigures(are_kept=True).show(WORLD, figure) is None
    assert capsys.readouterr().out == ""
