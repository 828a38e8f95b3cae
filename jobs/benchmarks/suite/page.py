"""A report as a web page that needs no other file: a bar for each side, its spread drawn on it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from string import Template
from typing import Any

from benchmarks.suite.compare import comparison
from benchmarks.suite.report import missed, undecided
from benchmarks.suite.text import number


def page(report: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> str:
    """The whole page.

    Args:
        report: What is shown.
        old: An earlier report, with which ratios are compared.
    """
    return _PAGE.substitute(body="\n".join(_body(report, old)))


def _body(report: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[str]:
    where = {**report["machine"], **report["versions"]}
    yield f"<h1>{html.escape(report['command'])}</h1>"
    yield f"<p>{report['date']}, configuration {report['configuration'][:12]}</p>"
    yield f"<p class=facts>{_facts(where)}</p>"
    goals = {"Goals that were missed": missed, "Goals on which the turns do not decide": undecided}
    for title, sentences in goals.items():
        if told := sentences(report):
            yield f"<h2>{title}</h2><ul>"
            yield from (f"<li>{html.escape(one)}</li>" for one in told)
            yield "</ul>"
    if old:
        table = html.escape(comparison(old, report))
        yield f"<h2>Beside {old['date']}</h2><pre>{table}</pre>"
    for name, part in report["parts"].items():
        facts = {}
        if origin := part.get("from"):
            facts = {"command": origin["command"], "date": origin["date"], **origin["machine"]}
            facts |= {"commit": origin["versions"].get("commit")}
        yield f"<h2>{html.escape(name)}</h2><p class=facts>{_facts(part['settings'] | facts)}</p>"
        if "unavailable" in part:
            yield f"<p>No more figures: {html.escape(part['unavailable'])}</p>"
        for case in part["cases"]:
            yield from _case(case)


def _case(case: Mapping[str, Any]) -> Iterator[str]:
    turns = {"turns": case["turns"], "warm-ups": case["warm_ups"]}
    yield f"<h3>{html.escape(case['name'])}</h3><p class=facts>{_facts(case['facts'] | turns)}</p>"
    for name, figure in case["figures"].items():
        if not figure["sides"]:
            continue
        greatest = max(max(one["values"]) for one in figure["sides"].values()) or 1
        yield f"<table><caption>{html.escape(name)} ({figure['better']} is better)</caption>"
        for side, numbers in figure["sides"].items():
            yield _row(side, numbers, figure, case["ours"], greatest)
        yield "</table>"
    for side, reason in case["unavailable"].items():
        yield f"<p>{html.escape(side)}: unavailable: {html.escape(reason)}</p>"


def _row(
    side: str, numbers: Mapping[str, Any], figure: Mapping[str, Any], ours: Any, greatest: float
) -> str:
    low, high = (end(numbers["values"]) / greatest * 100 for end in (min, max))
    unit, kind = html.escape(figure["unit"]), "ours" if side in ours else "peer"
    told = f"{number(numbers['median'])} {unit}, worst {number(numbers['worst'])}"
    if numbers["cold"] is not None:
        told += f", cold {number(numbers['cold'])}"
    if numbers["is_noise"]:
        told += f" <b>noise: spread {numbers['spread']:.0%}</b>"
    for peer, ratio in figure["ratios"].get(side, {}).items():
        ends = " to ".join(f"{one:.2f}" for one in ratio["interval"])
        told += f"<br>{ratio['median']:.2f} times as good as {html.escape(peer)} ({ends})"
    return (
        f"<tr><th>{html.escape(side)}</th><td class=plot>"
        f"<div class={kind} style='width:{numbers['median'] / greatest * 100:.1f}%'></div>"
        f"<div class=spread style='left:{low:.1f}%;width:{max(high - low, 0.4):.1f}%'></div>"
        f"</td><td>{told}</td></tr>"
    )


def _facts(facts: Mapping[str, Any]) -> str:
    return html.escape(" · ".join(f"{name}: {value}" for name, value in facts.items()))


_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>Benchmarks</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
.facts { color: #666; font-size: 13px }
table { border-collapse: collapse; width: 100%; margin: .6em 0 }
caption { text-align: left; font-weight: 600 }
th { text-align: left; font-weight: normal; width: 24% }
td { padding: 2px 8px; font-size: 13px }
.plot { position: relative; width: 36%; border-left: 1px solid #999 }
.plot div { position: absolute; top: 4px; height: 14px; left: 0 }
.ours { background: #2a7ab8 } .peer { background: #bbb }
.plot .spread { top: 10px; height: 2px; background: #222 }
</style>
$body
</html>
""")
