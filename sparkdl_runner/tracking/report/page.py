"""The page of a run, while it trains and as its report: what MLflow's own page does not show."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from string import Template

from sparkdl_runner.tracking.report.run_summary import (
    ENDS,
    RATE,
    AttemptRow,
    Points,
    RunSummary,
    clock,
    number,
)
from sparkdl_runner.tracking.time_use import LABELS, PARTS

# Of more ranks, the slowest are shown.
MAX_RANKS = 32
MAX_ERROR_CHARACTERS = 20_000
_WIDTH, _HEIGHT, _VIEW = 280, 80, "-2 -2 284 84"


def write_page(summary: RunSummary, folder: Path) -> None:
    """Writes ``summary.html``, which needs no other file, into a folder; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.html").write_text(page_of(summary), encoding="utf-8")


def page_of(summary: RunSummary, script: str = "") -> str:
    """A whole page; a script, if there is one, keeps it up to date."""
    name, sections = html.escape(summary.name), sections_of(summary)
    return _PAGE.substitute(name=name, style=STYLE, sections=sections, script=script)


def sections_of(summary: RunSummary) -> str:
    """The page's content as HTML without scripts. Each part that may change is one element."""
    warnings = {
        "Ranks": summary.warning,
        "Slow": summary.slow_ranks,
        "Checkpoints": summary.checkpoint_warning,
        "Lost": summary.lost_entries,
    }
    figures = " · ".join(f"{name} {value}" for name, value in summary.values() + summary.pace())
    error = html.escape(summary.error[:MAX_ERROR_CHARACTERS])
    measured, lines = (html.escape("\n".join(one)) for one in (summary.preflight, summary.lines))
    curves = "".join(_curve(name, points) for name, points in summary.curves.items())
    when = f"{clock(summary.began_at)} to {clock(summary.ended_at)}"
    run = f", run {html.escape(summary.run_id)}" if summary.run_id else ""
    progress = f'<progress max="{summary.total_steps}" value="{summary.step}"></progress>'
    sections = [
        f"<h1>{html.escape(summary.name)}: {ENDS[summary.status].lower()}</h1>",
        f'<p class="quiet">{when}{run}</p>',
        progress if summary.status == "RUNNING" and summary.total_steps else "",
        f"<p>{html.escape(summary.sentence())}</p>",
        f"<p>{html.escape(figures)}</p>",
        *(
            f'<p class="warning">{about}: {html.escape(warning)}</p>'
            for about, warning in warnings.items()
            if warning
        ),
        f"<div><h2>What ended it</h2><pre>{error}</pre></div>" if error else "",
        f'<div class="curves">{curves}</div>' if curves else "",
        _table("Attempts", _ATTEMPT, map(_attempt_cells, summary.attempts), "attempts"),
        _times(summary),
        f"<div><h2>Preflight</h2><pre>{measured}</pre></div>" if measured else "",
        f"<div><h2>Newest lines</h2><pre>{lines}</pre></div>" if lines else "",
        f'<p class="quiet">{html.escape(summary.versions)}</p>',
    ]
    return "\n".join(filter(None, sections))


def _curve(name: str, points: Points) -> str:
    """A line from the first point to the last. A rate begins at 0: small changes look small."""
    at, values = [x for x, _ in points], [y for _, y in points]
    least, most = 0.0 if name == RATE else min(values), max(values)
    wide, high = (at[-1] - at[0]) or 1.0, (most - least) or 1.0
    path = " ".join(
        f"{_WIDTH * (x - at[0]) / wide:.1f},{_HEIGHT - _HEIGHT * (y - least) / high:.1f}"
        for x, y in points
    )
    return (
        f"<figure>{html.escape(name)} <b>{number(values[-1])}</b>"
        f'<svg viewBox="{_VIEW}"><polyline points="{path}"/></svg>'
        f"<small>{number(least)} to {number(most)}, step {at[0]:,} to {at[-1]:,}</small></figure>"
    )


def _attempt_cells(attempt: AttemptRow) -> list[str]:
    kept = "none" if attempt.checkpoint_step is None else f"step {attempt.checkpoint_step:,}"
    return [
        str(attempt.number),
        clock(attempt.began_at),
        f"{attempt.seconds:.0f} s",
        f"{attempt.step:,}",
        kept,
        html.escape(attempt.ended_by),
    ]


def _times(summary: RunSummary) -> str:
    """A row for each rank that made steps, with a bar of the parts of its step."""
    own = summary.own_seconds()
    if not own:
        return ""
    ranks, title = sorted(own), "Time of a step"
    if len(own) > MAX_RANKS:
        ranks = sorted(own, key=lambda rank: -own[rank])[:MAX_RANKS]
        title = f"Time of a step: the {MAX_RANKS} slowest of {len(own):,} ranks"
    steps = {rank: summary.totals[rank] for rank in own}
    longest = max(sum(map(counts.per_step, PARTS)) for counts in steps.values()) or 1.0
    rows = []
    for rank in ranks:
        parts = {part: steps[rank].per_step(part) for part in PARTS}
        bar = "".join(
            f'<i class="{part}" style="width:{seconds / longest:.2%}"></i>'
            for part, seconds in parts.items()
        )
        host = html.escape(summary.hosts.get(rank, ""))
        times = [f"{1000 * seconds:.3g} ms" for seconds in parts.values()]
        rows.append([str(rank), host, f"{steps[rank].steps:,}", *times, bar])
    return _table(title, _STEP, rows, "times", html.escape(summary.slowest_rank()))


def _table(
    title: str, head: Iterable[str], rows: Iterable[Iterable[str]], kind: str, above: str = ""
) -> str:
    """A table of cells that are HTML."""
    lines = ["".join(f"<th>{name}</th>" for name in head)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div><h2>{title}</h2><p>{above}</p><table class="{kind}">\n{body}\n</table></div>'


_ATTEMPT = ("attempt", "began", "took", "last step", "checkpoint", "ended by")
_STEP = ("rank", "host", "steps", *(f'<i class="{part}"></i> {LABELS[part]}' for part in PARTS), "")

# For its own elements alone: in a notebook it stands among others.
STYLE = """<style>
.sparkdl-run { font: 15px/1.5 system-ui, sans-serif; color: #23303a; background: #fff;
  margin: 0 auto; max-width: 62rem; padding: 1.5rem; overflow-wrap: anywhere;
  h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
  .warning { border-left: .3rem solid #e8a33d; padding-left: .6rem; }
  .quiet, th, small { color: #66737d; } progress { width: 20rem; accent-color: #3a7d7c; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #eceff1;
    vertical-align: top; font-weight: normal; white-space: nowrap; background: none; }
  .attempts td:last-child { white-space: normal; } .times td:last-child { width: 35%; }
  i { display: inline-block; height: .8rem; } th i { width: .8rem; }
  .data_wait { background: #e8a33d; } .compute { background: #3a7d7c; }
  .communication { background: #8e5ea2; } .checkpoint { background: #b0b7bf; }
  .curves { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin: 1.2rem 0; }
  figure { margin: 0; width: 17.5rem; } polyline { fill: none; stroke: #3a7d7c; stroke-width: 1.5; }
  svg { display: block; width: 100%; border-bottom: 1px solid #eceff1; }
  pre { background: #f5f7f8; color: inherit; padding: .8rem; white-space: pre-wrap; }
  @media (max-width: 60rem) { div { overflow-x: auto; } .times td:last-child { width: 15%; }
    th, td { white-space: normal; overflow-wrap: normal; } } }
.lost::before { content: "The driver does not answer: has the run ended?"; color: #c0392b; }
</style>"""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name</title>
$style
</head>
<body>
<main class="sparkdl-run">
$sections
</main>
$script</body>
</html>
""")
