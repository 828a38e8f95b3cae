"""The report of a run: its plots, and a page to look at."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from sparkdl_runner.tracking.report import plots
from sparkdl_runner.tracking.report.performance import SYSTEM_PREFIX, Counts, samples_per_second
from sparkdl_runner.tracking.report.plots import Curve
from sparkdl_runner.tracking.time_use import LABELS, PARTS

THROUGHPUT = "samples_per_second"
# Of other metrics there may be hundreds.
MAX_CURVES = 6
MAX_SHOWN = 24
MAX_ERROR_CHARACTERS = 20_000
# NaN is not smaller; and infinity comes back from a database as its largest number.
LARGEST_SHOWN = 1e300


@dataclass(kw_only=True)
class Attempt:
    """One submission of the gang."""

    number: int
    began_at: float
    ended_at: float = 0.0
    step: int = 0
    """The last step that was heard of."""
    error: str = ""

    @property
    def ended_by(self) -> str:
        """What ended it, in one line."""
        return self.error.partition("\n")[0] if self.error else "all ranks returned"

    def text(self) -> str:
        """All that is known of it."""
        began, ended = _clock(self.began_at), _clock(self.ended_at)
        what = self.error or "All ranks returned."
        return f"Attempt {self.number}: {began} to {ended}, last step {self.step}.\n\n{what}\n"


@dataclass(kw_only=True)
class Story:
    """What the report tells."""

    name: str
    run_id: str
    began_at: float
    ended_at: float
    attempts: Sequence[Attempt]
    totals: Mapping[int, Counts]
    """By rank."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    """The last value of each."""
    histories: Mapping[str, Curve] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def of(
        cls,
        *,
        client: Any,
        run: Any,
        attempts: Sequence[Attempt],
        totals: Mapping[int, Counts],
        error: str,
    ) -> Story:
        """Reads the rest from MLflow, which also knows what an earlier driver told.

        Args:
            client: An ``MlflowClient``.
            run: The ``mlflow.entities.Run``.
            attempts: This driver's.
            totals: By rank.
            error: What ended the training; empty if it went well.
        """
        metrics = dict(run.data.metrics)
        names = [name for name in metrics if not name.startswith(SYSTEM_PREFIX)]
        losses = [name for name in names if "loss" in name.lower()]
        others = [name for name in names if name not in losses and name != THROUGHPUT]
        wanted = [*losses[:MAX_CURVES], *others[:MAX_CURVES]]
        wanted += [THROUGHPUT] * (THROUGHPUT in metrics)
        histories = {}
        for name in wanted:
            points = client.get_metric_history(run.info.run_id, name)
            curve = sorted((point.step, point.value) for point in points)
            histories[name] = [pair for pair in curve if abs(pair[1]) < LARGEST_SHOWN]
        return cls(
            name=run.info.run_name or run.info.run_id,
            run_id=run.info.run_id,
            began_at=run.info.start_time / 1000,
            ended_at=time.time(),
            attempts=attempts,
            totals={rank: one for rank, one in totals.items() if one.steps},
            params=dict(run.data.params),
            metrics={name: metrics[name] for name in [*names, *_shown_last(metrics)][:MAX_SHOWN]},
            histories={name: curve for name, curve in histories.items() if curve},
            error=error,
        )

    def write(self, folder: Path) -> None:
        """Writes ``summary.html`` and the plots as PNG."""
        folder.mkdir(parents=True, exist_ok=True)
        figures = self._figures()
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=120)
            # Where everything goes is known now; to find out takes as long as to draw.
            figure.set_layout_engine("none")
        pictures = "\n".join(f"<figure>{plots.as_svg(one)}</figure>" for one in figures.values())
        (folder / "summary.html").write_text(self._page(pictures), encoding="utf-8")

    def _figures(self) -> dict[str, Any]:
        restarts = [attempt.step for attempt in self.attempts[:-1]]
        losses = {name: one for name, one in self.histories.items() if "loss" in name.lower()}
        others = {
            name: one
            for name, one in self.histories.items()
            if name not in losses and name != THROUGHPUT
        }
        figures = {}
        if losses:
            figures["loss"] = plots.curves("Loss", losses, restarts)
        if others:
            figures["metrics"] = plots.curves("Metrics", others, restarts)
        if THROUGHPUT in self.histories:
            only = {THROUGHPUT: self.histories[THROUGHPUT]}
            figures["throughput"] = plots.curves("Samples per second, all ranks", only, restarts)
        if self.totals:
            figures["breakdown"] = plots.breakdown(self.totals)
        return figures

    def _page(self, pictures: str) -> str:
        status = "failed" if self.error else "finished"
        return _PAGE.substitute(
            name=html.escape(self.name),
            status=status,
            when=html.escape(f"{_clock(self.began_at)} to {_clock(self.ended_at)}"),
            sentence=html.escape(self.sentence()),
            cards="\n".join(_card(label, value) for label, value in self.headline()),
            pictures=pictures,
            attempts="\n".join(self._attempt_row(attempt) for attempt in self.attempts),
            metrics=_rows({name: _number(value) for name, value in self.metrics.items()}),
            params=_rows(self.params),
            error=(
                f"<h2>What ended it</h2><pre>{html.escape(self.error[:MAX_ERROR_CHARACTERS])}</pre>"
                if self.error
                else ""
            ),
            run_id=html.escape(self.run_id),
        )

    def sentence(self) -> str:
        """What a person would say of the run."""
        count = len(self.attempts)
        ranks = self.params.get("world_size", self.params.get("num_proc", "?"))
        hosts = self.params.get("num_hosts", "?")
        tried = "" if count == 1 else f", in {count} attempts"
        told = f"{ranks} ranks on {hosts} host{'s' * (hosts != '1')}{tried}."
        whole = sum(sum(one.seconds.values()) for one in self.totals.values())
        if whole > 0:
            seconds = {
                part: sum(one.seconds[part] for one in self.totals.values()) for part in PARTS
            }
            shares = [f"{LABELS[part]} {seconds[part] / whole:.0%}" for part in PARTS]
            told += f" Of their time: {', '.join(shares)}."
        return told

    def headline(self) -> list[tuple[str, str]]:
        """The few that matter most: what they are of, and their values."""
        seconds = self.ended_at - self.began_at
        cards = [("time", f"{seconds / 60:.1f} min" if seconds > 120 else f"{seconds:.0f} s")]
        if step := max((one.step for one in self.attempts), default=0):
            cards.append(("last step", f"{step:,}"))
        if rate := samples_per_second(self.totals.values()):
            cards.append(("samples/s", f"{rate:,.0f}"))
        for name, value in self.metrics.items():
            if len(cards) < 6 and name != THROUGHPUT and not name.startswith(SYSTEM_PREFIX):
                cards.append((name, _number(value)))
        return cards

    def _attempt_row(self, attempt: Attempt) -> str:
        seconds = max(0.0, attempt.ended_at - attempt.began_at)
        cells = (
            str(attempt.number),
            _clock(attempt.began_at),
            f"{seconds:.0f} s",
            f"{attempt.step:,}",
            attempt.ended_by,
        )
        kind = "bad" if attempt.error else "good"
        return (
            f'<tr class="{kind}">' + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>"
        )


def _shown_last(metrics: Mapping[str, float]) -> list[str]:
    return sorted(name for name in metrics if name.startswith(f"{SYSTEM_PREFIX}step_seconds/"))


def _rows(values: Mapping[str, str]) -> str:
    return "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in sorted(values.items())
    )


def _card(label: str, value: str) -> str:
    return f"<div><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #23303a; margin: 0 auto; max-width: 60rem;
         padding: 1.5rem; }
  h1 { margin: 0 0 .2rem; font-size: 1.6rem; }
  h1 small { font-size: .8rem; border-radius: 1rem; padding: .2rem .7rem; color: #fff;
             vertical-align: middle; margin-left: .6rem; background: #3a7d7c; }
  h1 small.failed { background: #c0504d; }
  h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
  .quiet { color: #66737d; }
  .cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .8rem;
           margin: 1.2rem 0; }
  .cards div { border: 1px solid #dfe4e8; border-radius: .5rem; padding: .7rem .9rem; }
  .cards b { display: block; font-size: 1.35rem; overflow-wrap: anywhere; }
  .cards span { color: #66737d; overflow-wrap: anywhere; }
  figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #eceff1;
           vertical-align: top; overflow-wrap: anywhere; font-weight: normal; }
  .attempts th, .attempts td:not(:last-child) { white-space: nowrap; }
  th { color: #66737d; } tr.bad td:last-child { color: #c0504d; }
  pre { background: #f5f7f8; padding: .8rem; overflow: auto; border-radius: .4rem; }
  summary { cursor: pointer; font-weight: 600; margin-top: 1.5rem; }
</style>
</head>
<body>
<h1>$name<small class="$status">$status</small></h1>
<p class="quiet">$when</p>
<p>$sentence</p>
<div class="cards">
$cards
</div>
$error
$pictures
<h2>Attempts</h2>
<table class="attempts">
<tr><th>attempt</th><th>began</th><th>took</th><th>last step</th><th>ended by</th></tr>
$attempts
</table>
<details open><summary>Metrics, last values</summary><table>
$metrics
</table></details>
<details><summary>Parameters</summary><table>
$params
</table></details>
<p class="quiet">run $run_id</p>
</body>
</html>
""")
