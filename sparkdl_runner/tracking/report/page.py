"""The page of a run's report: what MLflow's own page does not show."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from string import Template

from sparkdl_runner.tracking.report.run_summary import ENDS, AttemptRow, RunSummary, clock
from sparkdl_runner.tracking.time_use import LABELS, PARTS

MAX_RANKS = 256
MAX_ERROR_CHARACTERS = 20_000


def write_page(summary: RunSummary, folder: Path) -> None:
    """Writes ``summary.html``, which needs no other file, into a folder; makes the folder."""
    ended_by = f"<pre>{html.escape(summary.error[:MAX_ERROR_CHARACTERS])}</pre>"
    warnings = {
        "Ranks": summary.warning,
        "Checkpoints": summary.checkpoint_warning,
        "Lost": summary.lost_entries,
    }
    figures = " · ".join(f"{name} {value}" for name, value in summary.values() + summary.pace())
    page = _PAGE.substitute(
        name=html.escape(summary.name),
        run_id=html.escape(summary.run_id),
        status=ENDS[summary.status].lower(),
        when=f"{clock(summary.began_at)} to {clock(summary.ended_at)}",
        sentence=html.escape(summary.sentence()),
        figures=html.escape(figures),
        warnings="\n".join(
            f'<p class="warning">{about}: {html.escape(warning)}</p>'
            for about, warning in warnings.items()
            if warning
        ),
        error=f"<h2>What ended it</h2>{ended_by}" if summary.error else "",
        attempts="\n".join(_row(_attempt_cells(attempt)) for attempt in summary.attempts),
        times=_times(summary),
        versions=html.escape(summary.versions),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.html").write_text(page, encoding="utf-8")


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
    steps = {rank: counts for rank, counts in summary.totals.items() if counts.steps}
    if not steps:
        return ""
    ranks = sorted(steps)[:MAX_RANKS]
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
        rows.append(_row([str(rank), host, f"{steps[rank].steps:,}", *times, bar]))
    head = "".join(f'<th><i class="{part}"></i> {LABELS[part]}</th>' for part in PARTS)
    more = f"<p>{len(steps) - MAX_RANKS} more ranks</p>" if len(steps) > MAX_RANKS else ""
    return (
        f"<h2>Time of a step</h2>\n<p>{html.escape(summary.slowest_rank())}</p>\n"
        f'<table class="times">\n<tr><th>rank</th><th>host</th><th>steps</th>{head}<th></th></tr>\n'
        + "\n".join(rows)
        + f"\n</table>{more}"
    )


def _row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #23303a; margin: 0 auto; max-width: 60rem;
         padding: 1.5rem; }
  h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
  .warning { border-left: .3rem solid #e8a33d; padding-left: .6rem; }
  .quiet, th { color: #66737d; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #eceff1;
           vertical-align: top; font-weight: normal; white-space: nowrap; }
  .attempts td:last-child { white-space: normal; overflow-wrap: anywhere; }
  .times td:last-child { width: 40%; }
  i { display: inline-block; height: .8rem; } th i { width: .8rem; }
  .data_wait { background: #e8a33d; } .compute { background: #3a7d7c; }
  .communication { background: #8e5ea2; } .checkpoint { background: #b0b7bf; }
  pre { background: #f5f7f8; padding: .8rem; overflow: auto; border-radius: .4rem; }
</style>
</head>
<body>
<h1>$name: $status</h1>
<p class="quiet">$when, run $run_id</p>
<p>$sentence</p>
<p>$figures</p>
$warnings
$error
<h2>Attempts</h2>
<table class="attempts">
<tr><th>attempt</th><th>began</th><th>took</th><th>last step</th><th>checkpoint</th>
<th>ended by</th></tr>
$attempts
</table>
$times
<p class="quiet">$versions</p>
</body>
</html>
""")
