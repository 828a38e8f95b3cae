"""The figures of the pages are those of the kept report, and there are no others.

``README.md`` and ``docs/performance.md``, which have tables, hold no figure beside them but of
versions. The other pages and ``CHANGELOG.md`` are full of settings, limits and sizes, which no
pattern tells from figures. There only the words are looked for that go with a measurement: a
comparison of speeds, a rate, "about" before a time or a size, a share of time or memory. So it does
not see a bare figure ("ends after 3 s", "1 GB in place of 5"), nor a claim in other words ("at
once", "little memory"), and it cannot know whether a comparison that links to a table agrees with
it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.suite import statistics

from docs_blocks import ROOT, prose

spec = importlib.util.spec_from_file_location("docs_figures", ROOT / "docs" / "figures.py")
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)

COMMAND = "`python jobs/benchmark.py all`"
MARK = re.compile(r"^<!-- (?:figures:|end of figures)", re.M)
ORIGIN = re.compile(r"^Measured \d{4}-\d\d-\d\d by `python jobs/benchmark\.py .+` \(part ", re.M)
PERFORMANCE = ROOT / "docs" / "performance.md"
WITHOUT_FIGURES = (ROOT / "README.md", PERFORMANCE)
# Only beside its tables does a comparison say which figures it is of.
WITHOUT_CLAIMS = [ROOT / "CHANGELOG.md", *(page for page in figures.pages() if page != PERFORMANCE)]
NO_FIGURE = re.compile(
    r"`[^`\n]*`"  # code, with its settings
    r"|\]\([^)\n]*\)"  # the target of a link
    r"|\b(?:Python|Spark) \d[\d.]*(?:(?:,| or| and) \d[\d.]*)*"  # versions
    r"|\bApache-2\.0"
)
FIGURE = re.compile(
    r"\d[.]\d|\d ?%|\d[\d,]* ?(?:s|ms|µs|seconds?|minutes?|[MK]i?B|times|rows|samples)\b|/s\b"
)
NUMBER = (
    r"(?:\d[\d.,]*|an?|half an?|two|three|four|five|six|seven|eight|nine|ten|twenty|thirty"
    r"|a (?:few|quarter of an?))"
)
TIME = r"(?:[nµm]?s|(?:nano|micro|milli)?seconds?|minutes?|hours?)"
SIZE = r"(?:bytes|[kKMGT]i?B)"
CLAIM = re.compile(
    r"\b(?:faster|slower|quicker)\b|\bas (?:fast|quick)(?:ly)?\b|\bslows \w+ down\b"
    r"|\btakes? longer\b|\btimes as (?:slow|long|much|many|large|good)\b"
    rf"|\b(?:about|around|some|roughly|nearly|almost) {NUMBER} (?:{TIME}|{SIZE})\b"
    rf"|\b(?:takes?|took) {NUMBER} {TIME}\b|\b(?:takes?|took|within) {TIME}\b"
    rf"|(?:\d|\bsome|\bmany) ?(?:{SIZE}|rows|samples|steps|images)?(?:/s| (?:a|per) second)\b"
    rf"|\d ?{SIZE} at (?!most|least)|\bnext to nothing\b"
    r"|\b(?:half|thirds?|quarter|fifth|tenth|fraction) (?:of the (?:\w+ )?(?:time|memory)|less)\b"
    r"|\bwithin \d[\d.e-]* ?%|\d ?% (?:of|less|more)\b|\d\.?\d*e-\d|\bon average\b"
)


def without_settings(text: str) -> str:
    """A page's text without its tables of figures, code, targets of links and versions."""
    return NO_FIGURE.sub("", figures.BLOCK.sub("", text))


def claims(text: str) -> list[str]:
    """Finds words that tell of a measurement, also across lines, with the words around them."""
    words = " ".join(without_settings(text).split())
    return [words[max(0, one.start() - 40) : one.end() + 40] for one in CLAIM.finditer(words)]


NO_GOALS: dict[str, Any] = {"warm_ups": 0, "missed": [], "undecided": []}


def pages_with_tables() -> list[Path]:
    return [page for page in figures.pages() if MARK.search(page.read_text())]


def side(*values: float, noise: bool = False) -> dict[str, Any]:
    middle = sorted(values)[len(values) // 2]
    return {"median": middle, "worst": max(values), "cold": None, "is_noise": noise}


@pytest.fixture
def report() -> dict[str, Any]:
    """Two cases: one of six turns in which a peer failed, and one of a single side and turn."""
    ratio = {"median": 5.0249, "worst": 3.2, "interval": [4.8, 5.309], "pairs": 6}
    seconds = {
        "unit": "s",
        "sides": {
            "HorovodRunner": side(1.4, 1.4216, 2.0),
            "horovod.spark.run": side(7.1, noise=True),
        },
        "ratios": {"HorovodRunner": {"horovod.spark.run": ratio}},
    }
    rows = {"unit": "", "sides": {"ours": side(5_037_412.0)}, "ratios": {}}
    called = {
        "name": "calls",
        "ours": ["HorovodRunner"],
        "turns": 6,
        **NO_GOALS,
        "figures": {"call to result": seconds},
        "unavailable": {"Ray": "No module named 'ray' | x"},
    }
    read = {
        "name": "one, read",
        "ours": ["ours"],
        "turns": 1,
        **NO_GOALS,
        "figures": {"rows": rows, "left": rows},
        "unavailable": {},
    }
    return {
        "date": "2026-11-30",
        "command": "python jobs/benchmark.py all",
        "machine": {"cores": 2},
        "parts": {"launch": {"cases": [called, read]}},
    }


def made(mark: str, report: dict[str, Any]) -> list[str]:
    text = f"before\n\n<!-- figures: {mark} -->\nold\n<!-- end of figures -->\n\nafter\n"
    lines = figures.filled(text, report).splitlines()
    assert lines[:3] == ["before", "", f"<!-- figures: {mark} -->"]
    assert lines[-3:] == ["<!-- end of figures -->", "", "after"]
    return lines[3:-3]


def test_a_table_has_each_side_and_where_it_is_from(report):
    assert made("launch / calls", report) == [
        "|  | call to result (s) | worst | times as good as |",
        "| --- | --- | --- | --- |",
        "| **HorovodRunner** | 1.42 | 2 | 5.02 (4.8 to 5.31), worst 3.2: horovod.spark.run |",
        "| horovod.spark.run | 7.1 (noise) | 7.1 |  |",
        "| Ray | no figure: No module named 'ray' \\| x |  |  |",
        "",
        f"Measured 2026-11-30 by {COMMAND} (part launch, calls), 6 turns, on 2 cores.",
    ]


def test_the_first_measurement_stands_beside_warm_ones(report):
    case = report["parts"]["launch"]["cases"][0]
    case["warm_ups"] = 1
    case["figures"]["call to result"]["sides"]["HorovodRunner"]["cold"] = 9.871
    head, _, ours, peer, *_, origin = made("launch / calls", report)
    assert head == "|  | call to result (s) | worst | cold | times as good as |"
    assert ours.startswith("| **HorovodRunner** | 1.42 | 2 | 9.87 | 5.02 ")
    assert peer == "| horovod.spark.run | 7.1 (noise) | 7.1 |  |  |"
    assert "6 turns after a warm-up, on 2 cores" in origin


def test_few_turns_are_no_interval(report):
    assert figures.LEAST_PAIRS == statistics.LEAST_PAIRS
    case = report["parts"]["launch"]["cases"][0]
    case["figures"]["call to result"]["ratios"]["HorovodRunner"]["horovod.spark.run"]["pairs"] = 5
    assert "5.02 (4.8 to 5.31 in 5 turns), worst 3.2: h" in made("launch / calls", report)[2]


def test_goals_of_the_figures_in_a_table_stand_below_it(report):
    called, read = report["parts"]["launch"]["cases"]
    slow = "calls: call to result of HorovodRunner was 5 times as good as that of x"
    called["missed"] = [slow, "calls: memory of HorovodRunner was 3 at worst"]
    read["undecided"] = ["one, read: rows of ours had no peer beside it"]
    *_, told = made("launch", report)
    assert f"on 2 cores. A goal was missed: {slow}. The turns do not decide on one goal: " in told
    assert made("launch / *read / left", report)[-1].endswith("on 2 cores.")


def test_several_cases_share_a_table(report):
    _, _, *rows, _, origin = made("launch", report)
    assert [row.split(" | ")[0] for row in rows] == [
        "| **calls: HorovodRunner**",
        "| calls: horovod.spark.run",
        "| calls: Ray",
        "| **one, read**",
    ]
    assert "(part launch), 1 to 6 turns" in origin


def test_a_part_that_was_not_done_says_why(report):
    report["parts"]["launch"]["unavailable"] = f"TimeoutError: {'long ' * 50}"
    *_, origin = made("launch / calls", report)
    assert "on 2 cores. The part was not done: TimeoutError: long " in origin
    assert origin.endswith("long [...].")
    report["parts"]["launch"]["unavailable"] = "interrupted before"
    (said,) = made("launch / not yet", report)
    assert said == f"Not measured by {COMMAND}: interrupted before."


def test_a_part_of_another_run_names_that(report):
    command = "python jobs/benchmark.py launch --keep docs/benchmarks.json"
    origin = {"date": "2026-12-01", "command": command, "machine": {"cores": 4}}
    report["parts"]["launch"]["from"] = origin
    *_, told = made("launch / calls", report)
    expected = f"Measured 2026-12-01 by `{command}` (part launch, calls), 6 turns, on 4 cores."
    assert told == expected
    report["parts"]["launch"]["unavailable"] = "interrupted before"
    (said,) = made("launch / not yet", report)
    assert said == f"Not measured by `{command}`: interrupted before."


def test_one_turn_has_no_worst_and_figures_may_be_chosen(report):
    head, _, row, *_ = made("launch / *read / left; rows", report)
    assert head == "|  | left | rows |"
    assert row == "| **one, read** | 5,040,000 | 5,040,000 |"
    rows = made("launch / * / call to result / Ray; Horovod*", report)[2:-2]
    assert [row.split(" | ")[0] for row in rows] == ["| Ray", "| **HorovodRunner**"]
    assert "horovod.spark.run" not in rows[1]


@pytest.mark.parametrize(
    ("mark", "lacks"),
    [("train", "'*'"), ("launch / first", "'first'"), ("launch / calls / memory", "'memory'")],
)
def test_a_mark_for_what_the_report_lacks_is_refused(report, mark, lacks):
    with pytest.raises(ValueError, match=re.escape(f"nothing for {lacks} of the mark '{mark}'")):
        made(mark, report)


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.27249, "0.272"), (33, "33"), (99.96, "100"), (999.9, "1,000"), (260_123, "260,000")],
)
def test_three_digits_count(value, told):
    assert figures.number(value) == told


@pytest.mark.parametrize("page", pages_with_tables(), ids=lambda page: page.name)
def test_pages_say_what_the_kept_report_says(page):
    text = page.read_text()
    assert figures.filled(text, json.loads(figures.REPORT.read_text())) == text, "run: make docs"
    blocks = [found[0] for found in figures.BLOCK.finditer(text)]
    assert 2 * len(blocks) == len(MARK.findall(text))
    assert all(ORIGIN.search(block) for block in blocks)


@pytest.mark.parametrize("page", WITHOUT_FIGURES, ids=lambda page: page.name)
def test_no_figure_stands_beside_the_tables(page):
    assert page in pages_with_tables()
    text = without_settings(prose(page))
    assert [line for line in text.splitlines() if FIGURE.search(line)] == []


@pytest.mark.parametrize("page", WITHOUT_CLAIMS, ids=lambda page: page.name)
def test_no_page_claims_what_its_tables_do_not_say(page):
    assert claims(prose(page)) == []


@pytest.mark.parametrize(
    "figure",
    ["0.1 s after", "at 5 %", "26 times", "2,000 rows", "in 12 ms", "3 GB/s", "2.5 faster"],
)
def test_such_a_figure_is_seen(figure):
    assert FIGURE.search(NO_FIGURE.sub("", f"Takes `1.5` on Spark 3.5 or 4: {figure}."))
    assert not FIGURE.search(NO_FIGURE.sub("", "Takes `1.5` on Spark 3.5 or 4 and 2 ranks."))


@pytest.mark.parametrize(
    "claim",
    [
        "It needs about 300 bytes for each pair of ranks",
        "80 MB at 512 ranks",
        "measure their hosts in about\n  two seconds",
        "HDFS is slower than a local disk",
        "the epoch that fills the cache takes longer",
        "the same, some MB a second",
        "several times as fast, and near it",
        "on average within 1 of 255",
        "some 40 seconds",
        "that costs next to nothing a step",
        "and it takes half of the processor time",
        "takes about a fifth less processor time",
        "in about two thirds of the time",
        "in a fraction of the time that it took",
        "the plan takes seconds on a laptop",
        "within 10 % of the plan",
        "losses within 1e-6",
        "and neither slows it down",
        "It takes microseconds",
        "a call takes about 1.4 seconds",
        "and a training goes on about a minute after",
        "Reading is as fast for every seed",
        "the loader was never slower than petastorm's",
        "HDFS takes half a second to close one",
        "reads 2,000 rows/s",
    ],
)
def test_such_a_claim_is_seen(claim):
    assert len(claims(f"First, {claim}.")) == 1


@pytest.mark.parametrize(
    "setting",
    [
        "It waits for 30 seconds by default, and ten minutes at most.",
        "Every ten seconds, or twice a second; the agents of a run look once a second.",
        "The limit is 512 MiB, or a quarter of a rank's memory if that is less.",
        "An image of 224 by 224 is 150 KB, and a parameter takes 4 bytes.",
        "A restart waits for 5 seconds, then for half an hour; see [`takes 2 s`](about 2 s).",
    ],
)
def test_a_setting_is_no_claim(setting):
    assert claims(setting) == []
