"""Every part of the benchmarks beside its peers, by the short run that a person tries first.

How fast either is, and whether a goal is kept, is not for a busy machine's test to say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.parts import PARTS, goodput

JOB = Path(__file__).resolve().parents[2] / "jobs" / "benchmark.py"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.timeout(1800),  # The run of all parts counts as the first test's.
]


def run_benchmark(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # There are no peers that need an environment of their own.
    own = {"TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(JOB), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env={**os.environ, **own}, **pipes) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.terminate()  # It ends its parts, which are in sessions of their own.
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs all parts once; returns the folder that has their report."""
    folder = tmp_path_factory.mktemp("all")
    done = run_benchmark(folder, "all", "--quick")
    assert "Written to benchmark-all.json" in done.stdout, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "benchmark-all.json").read_text())
    return found


def cases_of(report: Mapping[str, Any], part: str) -> dict[str, Any]:
    """By name the cases of a part."""
    return {case["name"]: case for case in report["parts"][part]["cases"]}


def values_of(case: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """By figure and side what all turns gave."""
    return {
        name: {side: numbers["values"] for side, numbers in figure["sides"].items()}
        for name, figure in case["figures"].items()
    }


@pytest.mark.parametrize("job", sorted(JOB.parent.glob("*.py")), ids=lambda path: path.name)
def test_every_file_beside_it_is_a_job_and_has_help(job: Path) -> None:
    done = subprocess.run([sys.executable, str(job), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {job.name} ")


@pytest.mark.parametrize("repeat", ["0", "-1", "many"])
def test_launch_refuses_to_measure_nothing(tmp_path: Path, repeat: str) -> None:
    done = run_benchmark(tmp_path, "launch", "--repeat", repeat)
    assert done.returncode == 2
    assert f"{repeat!r} is not a whole number of at least 1" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", PARTS)
def test_each_side_of_a_part_gives_figures(report: Mapping[str, Any], part: str) -> None:
    found = report["parts"][part]
    assert "unavailable" not in found
    assert found["settings"]["quick"]
    assert found["cases"]
    # petastorm has no batch where there are fewer row groups than ranks. A peer's own launcher may
    # fail on a busy machine; then it says why.
    without = {"mixing": {"petastorm_batched"}, "launch": {"horovod.spark.run"}}.get(part, set())
    for case in found["cases"]:
        assert {"ranks", "slots"} & set(case["facts"])
        for side, reason in case["unavailable"].items():
            assert side in without or reason.endswith("run python jobs/benchmark.py peers"), reason
        sides = {side for values in values_of(case).values() for side in values}
        assert sides >= set(case["ours"])


def test_the_report_says_what_ran_where(folder: Path, report: Mapping[str, Any]) -> None:
    assert report["command"] == "python jobs/benchmark.py all --quick"
    assert set(report["versions"]) >= {"python", "pyspark", "torch"}
    assert len(report["configuration"]) == 64
    page = (folder / "benchmark-all.html").read_text()
    assert all(f"<th>{name}</th>" in page for name in ("HorovodRunner", "horovod.spark.run"))


def test_nothing_is_left_beside_the_report(folder: Path, report: Mapping[str, Any]) -> None:
    assert report
    ours = ("benchmark-*", "*-benchmark-*", "tmp*")
    left = {path.name for pattern in ours for path in folder.glob(pattern)}
    assert left == {"benchmark-all.json", "benchmark-all.html"}


def test_a_ratio_is_that_of_a_turn(report: Mapping[str, Any]) -> None:
    for case in cases_of(report, "launch").values():
        assert case["facts"]["ranks"] == 2
        (figure,) = case["figures"].values()
        assert set(figure["sides"]) | set(case["unavailable"]) >= {"horovod.spark.run"}
        for name in case["ours"]:
            for peer, ratio in figure["ratios"][name].items():
                (theirs,) = figure["sides"][peer]["values"]
                (mine,) = figure["sides"][name]["values"]
                assert ratio["median"] == pytest.approx(theirs / mine)


def test_faults_are_told_right_and_leave_nothing(report: Mapping[str, Any]) -> None:
    cases = cases_of(report, "faults")
    healthy = cases.popitem()[1]
    assert values_of(healthy)["right"] == {"torch": [1]}
    assert cases
    for name, case in cases.items():
        assert name.startswith("kill at ")
        values = values_of(case)
        assert values["right"] == {"torch": [1]}
        assert values["left"] == {"torch": [0]}
        assert 0 < values["fault to error"]["torch"][0] < 60


def test_goodput_of_a_training_that_was_killed(report: Mapping[str, Any]) -> None:
    (case,) = cases_of(report, "goodput").values()
    values, settings = values_of(case), report["parts"]["goodput"]["settings"]
    for side in case["ours"]:
        one = {name: of_sides[side][0] for name, of_sides in values.items()}
        assert 0 < one["goodput"] < 1
        assert 0 < one["kill to next step"] <= one["slowest of the kills"] < one["call to result"]
        computing = settings["steps"] * settings["step_seconds"]
        assert computing / one["call to result"] <= one["goodput"]


def test_goodput_counts_each_step_once(tmp_path: Path) -> None:
    first = [f"71 {step} {step} {step + 1}\n" for step in range(1, 8)]
    again = [f"72 {step} {step + 10} {step + 10.5}\n" for step in range(6, 11)]
    (tmp_path / "steps-0").write_text("".join([*first, *again, "72 11 21"]))
    assert goodput.figures_of(tmp_path, wall=30.0, struck_at=[8.5]) == {
        "goodput": (5 + 5 * 0.5) / 30,
        "call to result": 30.0,
        "steps made again": 2,
        "kill to next step": 7.5,
        "slowest of the kills": 7.5,
    }


def test_checkpoint_measures_the_wait_and_the_speed(report: Mapping[str, Any]) -> None:
    cases = cases_of(report, "checkpoint")
    waits, speed = values_of(cases["save"]), values_of(cases["training"])
    blocked, complete = waits["step loop blocked"], waits["save complete"]
    assert blocked.keys() >= {"asynchronous save", "synchronous save", "torch.save"}
    for side, seconds in blocked.items():
        pairs = zip(seconds, complete[side], strict=True)
        assert all(0 < one <= all_of_it for one, all_of_it in pairs)
    for rates in speed.values():
        assert [*rates] == ["a save every 4 s", "without"]


def test_train_runs_one_script_here_and_by_the_launchers_of_libraries(
    report: Mapping[str, Any],
) -> None:
    digits, table, trainer = cases_of(report, "train").values()
    assert set(digits["figures"]["loop"]["sides"]) == {"sparkdl-runner run", "horovodrun"}
    assert set(trainer["figures"]["loop"]["sides"]) == {"Trainer", "by hand"}
    assert digits["facts"]["batch"] == "64 of a rank, 128 of all"
    for side in digits["figures"]["accuracy"]["sides"].values():
        assert 0.5 < side["worst"] <= 1
    for case in (digits, table, trainer):
        values = values_of(case)
        for side in values["command"]:
            assert 0 < values["to the first step"][side][0] < values["command"][side][0]


def test_allreduce_measures_each_size_in_the_same_ranks(report: Mapping[str, Any]) -> None:
    cases = cases_of(report, "allreduce")
    peers = {"gloo": "torchrun", "horovod": "horovodrun"}
    assert [*cases] == [
        f"{name}, {size} KiB" for name in peers for size in ("1", "1,024", "65,536")
    ]
    for name, case in cases.items():
        sides = values_of(case)["bus bandwidth"]
        assert set(sides) == {"sparkdl-runner run", peers[name.split(",")[0]], "memcpy"}
        assert all(0 < one < 1000 for (one,) in sides.values())


def test_tracking_loses_no_metric(report: Mapping[str, Any]) -> None:
    cases = cases_of(report, "tracking")
    calls = values_of(cases["call with two metrics"])
    assert all(one > 0 for sides in calls.values() for (one,) in sides.values())
    wrong = "points lost or doubled"
    assert values_of(cases["training"])[wrong] == {"every step logged": [0]}
    assert values_of(cases["the server gone for 2 s"])[wrong] == {"ours": [0]}


def test_loader_measures_every_engine(report: Mapping[str, Any]) -> None:
    *tables, seeds = cases_of(report, "loader").values()
    assert set(seeds["figures"]["first batch"]["sides"]) == {"arrow", "petastorm_batched"}
    peers = {"petastorm_batched", "petastorm_unmixed", "naive"}
    for case in tables:
        assert not case["missed"]
        figure = case["figures"]["speed"]
        assert set(figure["sides"]) == {"arrow", "decode_only"} | peers
        assert all(one["values"][0] > 0 for one in figure["sides"].values())
        assert set(figure["ratios"]["arrow"]) == peers, "decoding alone is no peer"


def test_remote_reads_every_row_by_few_requests_beside_the_local_disk(
    report: Mapping[str, Any],
) -> None:
    (case,) = cases_of(report, "remote").values()
    found = values_of(case)
    assert set(found["first epoch"]) == {"remote", "remote, cached", "local"}
    assert [*found["every row"].values()] == [[1], [1], [1]]
    assert found["LISTs"] == {"remote": [0], "remote, cached": [0]}
    assert all(1 <= requests < 4 for (requests,) in found["GETs of a row group"].values())


def test_mixing_counts_the_labels_of_real_batches_beside_a_permutation(
    report: Mapping[str, Any],
) -> None:
    cases = cases_of(report, "mixing")
    groups = values_of(cases["64 row groups"])
    assert 9.5 < groups["labels in a batch"]["permutation"][0] <= 10
    assert groups["batches"]["arrow"] == groups["batches"]["permutation"] == [390]
    default = values_of(cases["as written by default"])
    assert default["labels in a batch"]["arrow"][0] < 5, "few row groups cannot be mixed"


def test_conversion_is_measured_once_and_again(report: Mapping[str, Any]) -> None:
    for case in cases_of(report, "convert").values():
        values = values_of(case)
        assert all(set(sides) >= {*case["ours"], "petastorm"} for sides in values.values())
        assert all(one > 0 for sides in values.values() for (one,) in sides.values())


def test_transform_is_measured_beside_a_loop_by_hand_and_mlflow(report: Mapping[str, Any]) -> None:
    (case,) = cases_of(report, "transform").values()
    for sides in values_of(case).values():
        assert len(sides) == 3
        assert all(one > 0 for (one,) in sides.values())


def test_a_peer_without_its_environment_says_how_to_make_it(report: Mapping[str, Any]) -> None:
    text = cases_of(report, "formats").popitem()[1]
    assert [*text["unavailable"]] == ["hugging_face"]
    assert text["unavailable"]["hugging_face"].endswith("run python jobs/benchmark.py peers")


def test_memory_is_within_its_budget(report: Mapping[str, Any]) -> None:
    for case in cases_of(report, "memory").values():
        (share,) = values_of(case)["of what it may take"]["64 MiB"]
        assert 0 < share <= 1


def test_memory_is_measured_beside_each_budget(tmp_path: Path) -> None:
    short = ["--tables", "two_ints", "--scale", "0.001", "--budgets", "0", "64"]
    done = run_benchmark(tmp_path, "memory", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = cases_of(json.loads((tmp_path / "figures.json").read_text()), "memory").values()
    assert case["ours"] == ["default", "64 MiB"]
    shares = values_of(case)["of the budget"]
    assert all(0 < share < 1.1 for side in case["ours"] for share in shares[side])


def test_memory_of_encoded_tables_is_measured_from_both_storages(tmp_path: Path) -> None:
    tables = ["--tables", "passages", "masks_ragged", "tokens_longest", "tokens_packed"]
    short = ["--scale", "0.001", "--budgets", "64", "--storage", "local", "s3"]
    done = run_benchmark(tmp_path, "memory", *tables, *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = cases_of(json.loads((tmp_path / "figures.json").read_text()), "memory")
    assert [name.split(":")[0] for name in cases] == [
        f"{table}, {storage}" for table in tables[1:] for storage in ("local", "s3")
    ]
    for case in cases.values():
        (share,) = values_of(case)["of what it may take"]["64 MiB"]
        assert 0 < share <= 1
