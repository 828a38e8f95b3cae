"""The pictures of a run: curves over steps, and where each rank's time went."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.time_use import CHECKPOINT, COMMUNICATION, COMPUTE, DATA, LABELS

Curve = Sequence[tuple[int, float]]
"""Points ``(step, value)``, by step."""

_COLORS = {DATA: "#e8a33d", COMPUTE: "#3a7d7c", COMMUNICATION: "#8e5ea2", CHECKPOINT: "#b0b7bf"}
_LINES = ("#3a7d7c", "#8e5ea2", "#e8a33d", "#c0504d", "#4f81bd", "#7f7f7f")
# A screen has no more columns to show them in.
MAX_POINTS = 1500
MAX_BARS = 64


def curves(title: str, by_name: Mapping[str, Curve], restarts: Sequence[int] = ()) -> Any:
    """Draws metrics over steps, and a dotted line where ranks were started again.

    Returns:
        A matplotlib ``Figure``.
    """
    figure, axes = _figure(title)
    for color, (name, points) in zip(_LINES * len(by_name), by_name.items(), strict=False):
        shown = thinned(points)
        steps, values = [step for step, _ in shown], [value for _, value in shown]
        axes.plot(steps, values, color=color, linewidth=1.6, label=name)
        if len(shown) == 1:
            axes.plot(steps, values, "o", color=color)
    for step in restarts:
        axes.axvline(step, color="#c0504d", linestyle=":", linewidth=1.2)
    axes.set_xlabel("step")
    if len(by_name) > 1:
        axes.legend(frameon=False)
    return figure


def breakdown(totals: Mapping[int, Counts]) -> Any:
    """Draws where each rank's time went, one bar a rank.

    Returns:
        A matplotlib ``Figure``.
    """
    figure, axes = _figure("Where the time went")
    ranks = sorted(totals)[:MAX_BARS]
    left = [0.0] * len(ranks)
    for part, label in LABELS.items():
        seconds = [totals[rank].seconds[part] for rank in ranks]
        axes.barh(range(len(ranks)), seconds, left=left, color=_COLORS[part], label=label)
        left = [before + more for before, more in zip(left, seconds, strict=True)]
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=9)
    return figure


def thinned(points: Curve) -> Curve:
    """At most ``MAX_POINTS`` of the points, evenly chosen, the last one always."""
    if len(points) <= MAX_POINTS:
        return points
    stride = -(-len(points) // MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def as_svg(figure: Any) -> str:
    """The figure as an SVG element, to stand in a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _figure(title: str) -> tuple[Any, Any]:
    # Not by pyplot, which keeps figures in the notebook's own state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="both", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes
