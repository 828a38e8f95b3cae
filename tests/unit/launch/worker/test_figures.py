"""Rank 0 sends the figures that it shows, and no picture is larger than a frame."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing

from sparkdl_runner.launch.wire.messages import Figure
from sparkdl_runner.launch.worker import figures


class Line:
    def __init__(self) -> None:
        self.sent: list[Figure] = []

    def send(self, message: Figure) -> None:
        self.sent.append(message)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    line = Line()
    monkeypatch.setattr(figures, "_line", line)
    monkeypatch.setattr(figures, "_worker_pid", os.getpid())
    monkeypatch.setattr(figures, "_count", 0)
    return line


def noise(inches: float) -> Drawing:
    """A figure that no compression makes smaller."""
    figure = Drawing(figsize=(inches, inches), dpi=200)
    pixels = np.random.default_rng(0).random((800, 800, 3))
    figure.add_axes((0, 0, 1, 1)).imshow(pixels, interpolation="nearest")
    return figure


def test_a_figure_is_sent_as_a_picture(line: Line) -> None:
    for _ in range(2):
        figures.send(noise(1))
    assert [one.count for one in line.sent] == [1, 2]
    assert all(one.png.startswith(b"\x89PNG\r\n\x1a\n") for one in line.sent)


def test_a_large_one_has_a_lower_resolution(line: Line) -> None:
    figures.send(noise(4))
    (sent,) = line.sent
    assert figures.MAX_FIGURE_BYTES / 8 < len(sent.png) <= figures.MAX_FIGURE_BYTES


def test_one_that_is_too_large_at_any_resolution_is_named(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "MAX_FIGURE_BYTES", 100)
    figures.send(noise(1))
    assert line.sent == []
    assert "larger than 100 bytes at any resolution" in capsys.readouterr().out


def test_after_the_last_one_it_is_said_once_that_more_are_left_out(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "MAX_FIGURES", 2)
    for _ in range(4):
        figures.send(noise(0.1))
    assert len(line.sent) == 2
    assert capsys.readouterr().out.count("has shown 2 figures; later ones are left out") == 1


def test_a_child_process_and_other_ranks_send_none(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_worker_pid", os.getpid() + 1)
    figures.send(noise(0.1))
    monkeypatch.setattr(figures, "_line", None)
    figures.send(noise(0.1))
    assert line.sent == []


@pytest.mark.parametrize(
    ("variable", "left"),
    [
        (None, None),
        ("module://matplotlib_inline.backend_inline", None),  # Set by a kernel.
        ("svg", "svg"),
    ],
)
def test_a_backend_that_a_person_chose_stays(
    variable: str | None, left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", variable or "")
    if variable is None:
        monkeypatch.delenv("MPLBACKEND")
    asked: list[tuple[str, Any]] = []
    monkeypatch.setattr(figures, "when_imported", lambda *what: asked.append(what))
    figures.show_on_driver(Line(), rank=1)  # type: ignore[arg-type]
    assert os.environ.get("MPLBACKEND") == left

    ((module, change),) = asked
    assert module == "matplotlib"
    own = matplotlib.rcsetup._auto_backend_sentinel if left is None else left
    imported = SimpleNamespace(rcParams={"backend": own})
    change(imported)
    assert imported.rcParams["backend"] == (left or figures.BACKEND)
