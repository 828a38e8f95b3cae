"""How the benchmarks' suite measures, sums up, judges and shows, with numbers that are known."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import benchmark
import pytest
from benchmarks.parts import launch
from benchmarks.ranks.processes import module_environment
from benchmarks.servers.object_store import ObjectStore
from benchmarks.suite import report
from benchmarks.suite.case import Case, Figure, Measure
from benchmarks.suite.compare import comparison
from benchmarks.suite.mlflow_run import log
from benchmarks.suite.options import Option, add_options, complete
from benchmarks.suite.page import page
from benchmarks.suite.report import case_report, missed, part_report, suite_report, undecided
from benchmarks.suite.statistics import interval, spread
from benchmarks.suite.text import text
from benchmarks.suite.turns import run

SECONDS = Figure(unit="s", better="less")
RATE = Figure(unit="rows/s", better="more")


def giving(*values: float, figure: str = "time") -> Measure:
    """Measures the values, one after another; an end of them is an error."""
    left = iter(values)

    def measure() -> dict[str, float]:
        for value in left:
            return {figure: value}
        raise ValueError("no more values\nand a second line")

    return measure


def case_of(ours: Measure, peer: Measure | None = None, **options: Any) -> Case:
    options = {"name": "case", "figures": {"time": SECONDS}, **options}
    return Case(ours={"ours": ours}, peers={"peer": peer} if peer else {}, **options)


def found_in(case: Case) -> dict[str, Any]:
    return case_report(case, run(case))


def report_of(*cases: Case) -> dict[str, Any]:
    part = part_report({"repeat": 3}, [found_in(case) for case in cases])
    command, libraries = "python jobs/benchmark.py part", {"python": "3.11"}
    return suite_report(command, "2026-11-30", libraries, {"part": part})


@pytest.mark.parametrize(
    ("count", "ends"),
    [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14))],
)
def test_the_interval_of_a_median_is_that_of_the_tables_of_statistics(count, ends):
    values = random.Random(count).sample(range(count), count)
    assert interval(values) == ends


def test_the_spread_is_that_between_quartiles():
    assert spread([8, 9, 10, 11, 12]) == pytest.approx(0.2)
    assert spread([7]) == spread([0, 0, 0]) == spread([5, 5, 5]) == 0


@pytest.mark.parametrize(("figure", "worst"), [(SECONDS, 12), (RATE, 8)])
def test_median_worst_and_noise_are_those_of_all_turns(figure, worst):
    case = case_of(
        giving(10, 8, 12, 9, 11), giving(10, 10, 10, 9, 11), turns=5, figures={"time": figure}
    )
    sides = found_in(case)["figures"]["time"]["sides"]
    assert (sides["ours"]["median"], sides["ours"]["worst"]) == (10, worst)
    assert sides["ours"]["is_noise"]
    assert not sides["peer"]["is_noise"]
    told = text(report_of(case_of(giving(10, 8, 12, 9, 11), giving(*5 * [10]), turns=5)))
    assert [line.rstrip().split()[2:4] for line in told.splitlines()[1:]] == [
        ["10", "~"],
        ["10", "10"],
    ]


def test_the_first_warm_up_is_the_cold_figure_and_no_other_number_of_warm_ups_counts():
    case = case_of(giving(50, 20, 1, 2), giving(60, 30, 3, 4), turns=2, warm_ups=2)
    sides = found_in(case)["figures"]["time"]["sides"]
    assert [(one["cold"], one["values"]) for one in sides.values()] == [(50, [1, 2]), (60, [3, 4])]


def test_each_side_is_first_in_some_turn():
    order: list[str] = []

    def side(name: str) -> Measure:
        return lambda: order.append(name) or {"time": 1.0}  # type: ignore[func-returns-value]

    run(case_of(side("ours"), side("peer"), turns=3))
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]


def test_ratios_are_of_one_turn_each():
    # The medians are equal, and in each turn but one ours is the better one by far.
    figure = found_in(case_of(giving(1, 2, 8), giving(2, 8, 1), turns=3))["figures"]["time"]
    ratio = figure["ratios"]["ours"]["peer"]
    assert (ratio["median"], ratio["worst"], ratio["pairs"]) == (2, 0.125, 3)


@pytest.mark.parametrize("failing", ["ours", "peer"])
def test_a_side_that_fails_in_a_later_turn_has_no_figure_and_others_have_all(failing, capsys):
    values = {"ours": giving(1, 1, 1), "peer": giving(2, 2, 2), failing: giving(3)}
    case = found_in(case_of(values["ours"], values["peer"], turns=3))
    figure, other = case["figures"]["time"], {"ours": "peer", "peer": "ours"}[failing]
    assert case["unavailable"] == {failing: "ValueError: no more values"}
    assert list(figure["sides"]) == [other]
    assert len(figure["sides"][other]["values"]) == 3
    assert figure["ratios"] == {}
    # Only a failure of ours is a failure of the benchmark.
    sentence = "case: ours gave no figure: ValueError: no more values"
    assert case["missed"] == ([sentence] if failing == "ours" else [])
    assert capsys.readouterr().out.count("no more values") == 1, "it was asked again"


@pytest.mark.parametrize(
    ("figure", "sentences"),
    [
        (Figure(unit="s", better="less", bound=3), []),
        (
            Figure(unit="s", better="less", bound=2),
            ["case: time of ours was 3 s at worst, and should be at most 2"],
        ),
        (Figure(unit="rows/s", better="more", bound=1), []),
        (
            Figure(unit="rows/s", better="more", bound=2),
            ["case: time of ours was 1 rows/s at worst, and should be at least 2"],
        ),
        (Figure(unit="s", better="less", least_ratios={"ours": 2}), []),
        (
            Figure(unit="s", better="less", least_ratios={"ours": 2.5}),
            ["case: time of ours was 2.000 times as good as that of peer, and should be 2.5 times"],
        ),
        (Figure(unit="s", better="less", least_worst_ratios={"ours": 2}), []),
        (
            Figure(unit="", better="less", bound=2),
            ["case: time of ours was 3 at worst, and should be at most 2"],
        ),
    ],
)
def test_a_goal_that_was_missed_is_told_in_a_sentence(figure, sentences):
    ours, theirs = giving(*[1, 3] * 3), giving(*[2, 6] * 3)
    report = report_of(case_of(ours, theirs, turns=6, figures={"time": figure}))
    assert missed(report) == [f"part: {one}" for one in sentences]
    assert [line for line in text(report).splitlines() if line.startswith("Missed")] == [
        f"Missed: part: {one}" for one in sentences
    ]


@pytest.mark.parametrize(
    "theirs",
    [
        [3.8, 3.9],
        [3.7, 3.8, 3.9, 3.8, 4.2, 4.3, 4.4],
        pytest.param([4.1, 4.2], id="good, of few turns"),
        pytest.param([3.6, 3.7, 4.1, 4.2, 4.3, 4.4, 4.5], id="good, and noise"),
    ],
)
def test_few_or_noisy_turns_do_not_decide_on_a_ratio(theirs):
    goal = Figure(unit="s", better="less", least_ratios={"ours": 4})
    ours, turns = giving(*[1.0] * len(theirs)), len(theirs)
    report = report_of(case_of(ours, giving(*theirs), turns=turns, figures={"time": goal}))
    assert missed(report) == []
    (told,) = undecided(report)
    assert "and should be 4 times; too few turns or too much noise" in told
    assert told in text(report)


def test_a_goal_beside_no_peer_is_not_decided():
    goal = Figure(unit="s", better="less", least_ratios={"ours": 4})
    report = report_of(case_of(giving(1), giving(), figures={"time": goal}))
    assert undecided(report) == ["part: case: time of ours had no peer beside it"]
    assert missed(report) == []


def test_ours_that_gave_no_number_is_no_success():
    report = report_of(case_of(dict, figures={"time": Figure(unit="s", better="less", bound=1)}))
    assert missed(report) == ["part: case: ours gave no figure: no number"]


def test_nothing_has_no_ratio():
    report = report_of(case_of(giving(0, 2), giving(0, 4), turns=2))
    (case,) = report["parts"]["part"]["cases"]
    ratio = case["figures"]["time"]["ratios"]["ours"]["peer"]
    assert (ratio["median"], ratio["pairs"]) == (2, 1)


@pytest.mark.parametrize(
    ("now", "turns", "verdict"),
    [
        ([30, 31, 32], 6, "better"),
        ([3, 4, 5], 6, "worse"),
        ([19, 22, 40], 6, ""),
        ([30, 31, 32], 3, ""),
    ],
)
def test_reports_are_compared_by_ratios_alone(now, turns, verdict):
    def report(theirs: list[float]) -> dict[str, Any]:
        alone = case_of(giving(77), name="alone")
        times, theirs = giving(*[10] * 6), theirs * (turns // 3)
        return report_of(case_of(times, giving(*theirs), turns=turns), alone)

    old, new = report([19, 20, 21]), report(now)
    head, *rows = comparison(old, new).splitlines()
    assert "2026-11-30" in head
    (row,) = rows
    assert row.startswith("part: case: time: ours / peer")
    times = f"{now[1] / 10:.2f}"
    assert row.split("peer")[1].split() == ["2.00", times, f"{now[1] / 20:.2f}", *verdict.split()]
    other = report_of(case_of(giving(1), giving(1), name="another"))
    other["parts"]["part"]["settings"] = {"repeat": 4}
    assert comparison(old, other).splitlines() == [
        "2 ratios are in one of the reports alone.",
        "The report of 2026-11-30 has no ratio that this one has.",
        "part was measured with other settings.",
    ]


def test_the_other_parts_of_a_kept_report_stay_and_say_where_they_are_from():
    first = report_of(case_of(giving(5)))
    old = {
        **first,
        "date": "2026-11-28",
        "parts": {**first["parts"], "other": first["parts"]["part"]},
    }
    again = part_report({"repeat": 3}, [found_in(case_of(giving(7)))])
    new = suite_report("python jobs/benchmark.py part", "2026-11-29", {}, {"part": again}, old)
    assert list(new["parts"]) == ["part", "other"]
    assert new["parts"]["part"] == again
    origin = {name: old[name] for name in ("command", "date", "machine", "versions")}
    assert new["parts"]["other"] == {**old["parts"]["other"], "from": origin}
    newest = suite_report("later", "2026-11-30", {}, {"more": again}, new)
    assert newest["parts"]["other"]["from"]["date"] == "2026-11-28"
    assert newest["parts"]["part"]["from"]["date"] == "2026-11-29"
    assert newest["configuration"] != new["configuration"]
    assert "date: 2026-11-28" in page(newest)
    interrupted = {**part_report({}, []), "unavailable": "interrupted before"}
    same = suite_report("later", "2026-11-30", {}, {"part": interrupted, "next": interrupted}, new)
    assert same["parts"]["part"]["cases"] == again["cases"]
    assert same["parts"]["next"] == interrupted


def test_the_page_shows_every_side_and_escapes_what_it_is_given():
    hostile = "<script>alert('x')</script>"
    case = Case(
        name=hostile,
        figures={"time": SECONDS},
        ours={"ours & more": giving(9, 1, 2)},
        peers={"<b>peer</b>": giving(9, 4, 8), "broken": giving()},
        turns=2,
        warm_ups=1,
        facts={"ranks": 1, "note": hostile},
    )
    report = report_of(case)
    shown = page(report, report)
    assert "<script" not in shown
    assert "<b>peer" not in shown
    assert shown.count("&lt;script&gt;") == 3, "name, fact, comparison"
    assert "<th>ours &amp; more</th>" in shown
    assert "<th>&lt;b&gt;peer&lt;/b&gt;</th>" in shown
    assert "broken: unavailable: ValueError: no more values" in shown
    assert "1.5 s, worst 2, cold 9" in shown
    assert "4.00 times as good as &lt;b&gt;peer&lt;/b&gt; (4.00 to 4.00)" in shown


def test_the_mlflow_run_has_medians_worst_numbers_and_ratios(tmp_path, monkeypatch, new_store):
    import mlflow

    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")  # mlflow.set_experiment sets it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new_store(tmp_path))
    file = tmp_path / "report.json"
    file.write_text("{}")
    case = case_of(giving(1, 3, 2), giving(2, 6, 4), turns=3, name="first: call")
    report = report_of(case)
    log(report, "benchmarks", [file])
    (one,) = mlflow.search_runs(experiment_names=["benchmarks"], output_format="list")
    assert one.data.metrics == {
        "part/first_ call/time/ours": 2,
        "part/first_ call/time/ours at worst": 3,
        "part/first_ call/time/peer": 4,
        "part/first_ call/time/peer at worst": 6,
        "part/first_ call/time/ours of peer": 2,
    }
    assert one.info.status == "FINISHED"
    assert one.data.params["command"] == "python jobs/benchmark.py part"
    assert one.data.tags["configuration"] == report["configuration"]
    artifacts = mlflow.MlflowClient().list_artifacts(one.info.run_id)
    assert [artifact.path for artifact in artifacts] == ["report.json"]


def test_no_scaling_efficiency_is_quoted_where_ranks_share_cores(monkeypatch):
    def facts(cores: int) -> Mapping[str, Any]:
        monkeypatch.setattr(report, "machine", lambda: {"physical_cores": cores})
        return part_report({}, [found_in(case_of(giving(1), facts={"ranks": 2}))])["cases"][0][
            "facts"
        ]

    assert facts(2) == {"ranks": 2}
    assert facts(1)["scaling_efficiency"] == "not quoted: 2 ranks share 1 physical cores"


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ([], (5, ["a", "b"], (), 0.5, False)),
        (["--quick"], (1, ["a"], (), 0.5, False)),
        (["--quick", "--repeat", "3", "--only", "0", "2"], (3, ["a"], [0, 2], 0.5, False)),
        (["--kinds", "b", "--seconds", "2", "--bare"], (5, ["b"], (), 2.0, True)),
    ],
)
def test_options_that_nobody_gave_are_the_default_or_that_of_a_quick_run(given, values):
    options = (
        Option("repeat", 5, quick=1, help="turns"),
        Option("kinds", ["a", "b"], quick=["a"], choices=["a", "b"]),
        Option("only", (), type=int),
        Option("seconds", 0.5),
        Option("bare", False),
    )
    parser = argparse.ArgumentParser()
    add_options(parser, options)
    arguments = parser.parse_args(given)
    complete(arguments, options)
    found = vars(arguments)
    assert tuple(found[one.name] for one in options) == values
    assert "turns (default: 5)" in parser.format_help()
    assert "of a; b (default: all)" in parser.format_help()


def test_first_calls_by_default_are_of_few_launchers_and_otherwise_of_those_chosen():
    """The first case is made before there is a session."""

    def sides(*given: str) -> list[str]:
        parser = argparse.ArgumentParser()
        add_options(parser, launch.OPTIONS)
        arguments = parser.parse_args(given)
        complete(arguments, launch.OPTIONS)
        return list(next(launch.cases(arguments)).sides)

    assert sides() == ["HorovodRunner", "horovod.spark.run", "TorchDistributor"]
    chosen = "DistributedRunner(torch)"
    assert sides("--launchers", chosen, f"{chosen}, spares") == [chosen]


def test_a_module_in_another_folder_finds_what_a_relative_path_names(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", "", "tests"]))
    of_jobs, *others = module_environment()["PYTHONPATH"].split(os.pathsep)
    assert Path(of_jobs, "benchmark.py").exists()
    assert others == [os.getcwd(), os.path.join(os.getcwd(), "tests")]


def test_a_store_answers_anew_below_a_url_or_everywhere():
    keys = [("GET", f"/tables/{one}?", "") for one in ("a/0.parquet", "b/0.parquet")]
    store = ObjectStore(delay_seconds=0, _remembered=dict.fromkeys(keys))
    store.forget("s3://tables/a")
    assert list(store._remembered) == keys[1:]
    store.forget()
    assert not store._remembered


PARTS = """
import sys, types

sys.path[:0] = {path!r}
import benchmark
from benchmarks.suite import machine
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option

machine._gpus = lambda: []  # This imports torch.

def part(number):
    def cases(arguments):
        if number is None:
            raise OSError("no disk")
        yield Case(name="case", figures={{"n": Figure(unit="", better="more", bound=1)}},
                   ours={{"ours": lambda: {{"n": number / arguments.by}}}})
    names = dict(HELP="", OPTIONS=[Option("by", 1, quick=2)], cases=cases)
    return types.SimpleNamespace(**names)

benchmark.PARTS.clear()
benchmark.PARTS.update(broken=part(None), good=part(3), low=part(1))
benchmark.__file__ = __file__
sys.exit(benchmark.main())
"""


def test_all_reports_the_other_parts_where_one_ends_with_an_error(tmp_path):
    script = tmp_path / "parts.py"
    script.write_text(PARTS.format(path=[str(Path(benchmark.__file__).parent), *sys.path]))
    done = subprocess.run(
        [sys.executable, script, "all", "--quick"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "OSError: no disk" in done.stderr
    report = json.loads((tmp_path / "benchmark-all.json").read_text())
    assert list(report["parts"]) == ["broken", "good", "low"]
    assert report["parts"]["broken"]["unavailable"] == "OSError: no disk"
    found = {
        name: report["parts"][name]["cases"][0]["figures"]["n"]["sides"]["ours"]["values"]
        for name in ("good", "low")
    }
    assert found == {"good": [1.5], "low": [0.5]}
    assert missed(report) == [
        "broken gave no more figures: OSError: no disk",
        "low: case: n of ours was 0.5 at worst, and should be at least 1",
    ]
    assert "No more figures: OSError: no disk" in (tmp_path / "benchmark-all.html").read_text()
