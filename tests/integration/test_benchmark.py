"""The launch benchmark as a person runs it; how fast the launchers are is not for a test to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.parts import goodput

JOB = Path(__file__).resolve().parents[2] / "jobs" / "benchmark.py"
# One of ours and one peer: the others are called in the same way.
OURS, PEERS = {"HorovodRunner"}, {"horovod.spark.run"}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
]


def run_benchmark(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(JOB), *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("job", sorted(JOB.parent.glob("*.py")), ids=lambda path: path.name)
def test_every_file_beside_it_is_a_job_and_has_help(job: Path) -> None:
    done = subprocess.run([sys.executable, str(job), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {job.name} ")


def sides_of(report: dict[str, Any], part: str, case: int, figure: str) -> dict[str, list[float]]:
    """The numbers of each side for one figure, of each turn."""
    sides = report["parts"][part]["cases"][case]["figures"][figure]["sides"]
    return {side: one["values"] for side, one in sides.items()}


def test_launch_measures_ours_beside_a_peer(tmp_path: Path) -> None:
    """Whether a goal is kept is not for a busy machine's test to say."""
    short = ["--launchers", *OURS, *PEERS, "--repeat", "1", "--first-calls", "1"]
    done = run_benchmark(tmp_path, "launch", *short)
    assert "Written to benchmark-launch.json" in done.stdout, done.stdout + done.stderr
    report = json.loads((tmp_path / "benchmark-launch.json").read_text())
    assert report["parts"]["launch"]["settings"]["repeat"] == 1
    assert set(report["versions"]) >= {"python", "pyspark", "torch"}
    assert len(report["configuration"]) == 64
    for case in cases_of(tmp_path, "launch").values():
        assert case["facts"]["ranks"] == 2
        sides = values_of(case)["call to result"]
        # A peer may not work with the newest of everything; then it says why.
        assert set(sides) | set(case["unavailable"]) == OURS | PEERS
        assert all(len(sides[name]) == 1 for name in OURS)
        ratios = case["figures"]["call to result"]["ratios"]
        for peer in PEERS & set(sides):
            for name in OURS:
                expected = sides[peer][0] / sides[name][0]
                assert ratios[name][peer]["median"] == pytest.approx(expected)
    page = (tmp_path / "benchmark-launch.html").read_text()
    assert all(page.count(f"<th>{name}</th>") >= 1 for name in OURS)


@pytest.mark.parametrize("repeat", ["0", "-1", "many"])
def test_launch_refuses_to_measure_nothing(tmp_path: Path, repeat: str) -> None:
    done = run_benchmark(tmp_path, "launch", "--repeat", repeat)
    assert done.returncode == 2
    assert f"{repeat!r} is not a whole number of at least 1" in done.stderr
    assert not list(tmp_path.iterdir())


def test_faults_are_told_right_and_leave_nothing(tmp_path: Path) -> None:
    arguments = ["--backends", "torch", "--only", "start", "--random", "0"]
    done = run_benchmark(tmp_path, "faults", *arguments, "--output", "faults.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "faults.json").read_text())
    *struck, healthy = report["parts"]["faults"]["cases"]
    assert [one["name"] for one in struck] == ["raise at start", "kill at start", "exit at start"]
    for case, _ in enumerate(struck):
        assert sides_of(report, "faults", case, "right") == {"torch": [1]}
        assert sides_of(report, "faults", case, "left") == {"torch": [0]}
        assert 0 < sides_of(report, "faults", case, "fault to error")["torch"][0] < 60
    assert healthy["figures"]["right"]["sides"]["torch"]["values"] == [1]


def test_goodput_of_a_training_that_was_killed_once(tmp_path: Path) -> None:
    short = ["--kills", "1", "--steps", "20", "--step-seconds", "0.05", "--every", "5"]
    done = run_benchmark(tmp_path, "goodput", *short, "--launchers", "DistributedRunner")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "benchmark-goodput.json").read_text())
    (case,) = report["parts"]["goodput"]["cases"]
    found = {name: one["sides"]["DistributedRunner"] for name, one in case["figures"].items()}
    one = {name: side["values"][0] for name, side in found.items()}
    assert 20 * 0.05 / one["call to result"] <= one["goodput"] < 1
    assert one["kill to next step"] == one["slowest of the kills"] > 0


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


def cases_of(folder: Path, part: str) -> dict[str, Any]:
    """By name the cases of a part, in the report that its command has written."""
    report = json.loads((folder / f"benchmark-{part}.json").read_text())
    return {case["name"]: case for case in report["parts"][part]["cases"]}


def values_of(case: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """By figure and side what all turns gave."""
    return {
        name: {side: numbers["values"] for side, numbers in figure["sides"].items()}
        for name, figure in case["figures"].items()
    }


def test_checkpoint_measures_the_wait_and_the_speed(tmp_path: Path) -> None:
    """How much either is, is not for a busy machine's test to say."""
    small = ["--megabytes", "8", "--repeat", "2", "--training-megabytes", "4"]
    done = run_benchmark(tmp_path, "checkpoint", *small, "--seconds", "1", "--every-seconds", "0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = cases_of(tmp_path, "checkpoint")
    waits, speed = values_of(cases["save"]), values_of(cases["training"])
    blocked, complete = waits["step loop blocked"], waits["save complete"]
    assert blocked.keys() >= {"asynchronous save", "synchronous save", "torch.save"}
    for side, seconds in blocked.items():
        assert len(seconds) == 2
        assert all(
            0 < one <= all_of_it for one, all_of_it in zip(seconds, complete[side], strict=True)
        )
    assert cases["save"]["unavailable"] == {}
    for rates in speed.values():
        assert [len(rates[side]) for side in ("a save every 0.5 s", "without")] == [2, 2]
    assert not list(tmp_path.glob("checkpoint-benchmark-*"))


def test_train_runs_one_script_here_and_by_the_launchers_of_libraries(tmp_path: Path) -> None:
    """How fast either is, is not for a busy machine's test to say."""
    short = ["--other-turns", "1", "--steps", "60"]
    done = run_benchmark(
        tmp_path, "train", "--cases", "digits-horovod", "trainer", *short, "--output", "f.json"
    )
    assert "Written to f.json" in done.stdout, done.stdout + done.stderr
    digits, trainer = json.loads((tmp_path / "f.json").read_text())["parts"]["train"]["cases"]
    assert set(digits["figures"]["loop"]["sides"]) == {"sparkdl-runner run", "horovodrun"}
    assert set(trainer["figures"]["loop"]["sides"]) == {"Trainer", "by hand"}
    assert digits["facts"]["batch"] == "64 of a rank, 128 of all"
    for side in digits["figures"]["accuracy"]["sides"].values():
        assert 0.5 < side["worst"] <= 1
    for side in trainer["figures"]["to the first step"]["sides"]:
        first, command = (
            trainer["figures"][name]["sides"][side]["median"]
            for name in ("to the first step", "command")
        )
        assert 0 < first < command
    assert not list(tmp_path.glob("train-benchmark-*"))


def test_allreduce_measures_each_size_in_the_same_ranks(tmp_path: Path) -> None:
    few = ["--libraries", "gloo", "--kibibytes", "1", "256", "--turns", "1"]
    done = run_benchmark(tmp_path, "allreduce", *few, "--output", "f.json")
    assert "Written to f.json" in done.stdout, done.stdout + done.stderr
    cases = json.loads((tmp_path / "f.json").read_text())["parts"]["allreduce"]["cases"]
    assert [one["name"] for one in cases] == ["gloo, 1 KiB", "gloo, 256 KiB"]
    for one in cases:
        sides = one["figures"]["bus bandwidth"]["sides"]
        assert set(sides) == {"sparkdl-runner run", "torchrun"}
        assert all(0 < side["median"] < 1000 for side in sides.values())
        assert one["facts"]["memcpy (GB/s)"] > 0


def test_tracking_loses_no_metric(tmp_path: Path) -> None:
    short = ["--repeat", "1", "--stretch", "50", "--calls", "100"]
    done = run_benchmark(
        tmp_path, "tracking", *short, "--outage-seconds", "1", "--beside-seconds", "4"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = cases_of(tmp_path, "tracking")
    calls = cases["call with two metrics"]
    assert calls["unavailable"] == {}
    assert all(one > 0 for sides in values_of(calls).values() for (one,) in sides.values())
    wrong = "points lost or doubled"
    assert values_of(cases["training"])[wrong] == {"every step logged": [0]}
    assert values_of(cases["the server gone for 1 s"])[wrong] == {"ours": [0]}


def test_loader_measures_every_engine(tmp_path: Path) -> None:
    small = ["--rows", "20000", "--repeat", "1", "--ranks", "1", "--tables", "scalar"]
    done = run_benchmark(tmp_path, "loader", *small, "--seeds", "1")
    assert "Written to benchmark-loader.json" in done.stdout, done.stdout + done.stderr
    case, seeds = cases_of(tmp_path, "loader").values()
    assert set(seeds["figures"]["first batch"]["sides"]) == {"arrow", "petastorm_batched"}
    assert not case["missed"]
    sides = case["figures"]["speed"]["sides"]
    peers = {"petastorm_batched", "naive"}
    assert set(sides) == {"arrow", "decode_only"} | peers, case["unavailable"]
    assert all(one["values"][0] > 0 for one in sides.values())
    assert set(case["figures"]["speed"]["ratios"]["arrow"]) == peers, "decoding alone is no peer"


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        ("loader-sweep", ["--only", "3"]),
        ("small-files", ["--files", "2", "--repeat", "1"]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_loader_looks_for_the_worst_case(tmp_path: Path, part: str, arguments: list[str]) -> None:
    """Whether a goal is kept is not for a busy machine's test to say."""
    done = run_benchmark(tmp_path, part, *arguments)
    assert f"Written to benchmark-{part}.json" in done.stdout, done.stdout + done.stderr
    (case,) = cases_of(tmp_path, part).values()
    assert not case["unavailable"]
    assert set(case["ours"]) <= set(next(iter(case["figures"].values()))["sides"])
    assert not list(tmp_path.glob("tmp*"))


def test_remote_reads_every_row_by_few_requests_beside_the_local_disk(tmp_path: Path) -> None:
    short = ["--tables", "int", "--rows", "4000", "--ranks", "1", "--turns", "1"]
    done = run_benchmark(tmp_path, "remote", *short)
    assert done.returncode == 0, done.stdout + done.stderr
    found = values_of(cases_of(tmp_path, "remote")["int"])
    assert set(found["first epoch"]) == {"remote", "remote, cached", "local"}
    assert [*found["every row"].values()] == [[1], [1], [1]]
    assert found["LISTs"] == {"remote": [0], "remote, cached": [0]}
    assert all(1 <= requests < 4 for (requests,) in found["GETs of a row group"].values())
    assert not list(tmp_path.glob("benchmark-remote-*"))


def test_mixing_counts_the_labels_of_real_batches_beside_a_permutation(tmp_path: Path) -> None:
    short = ["--rows", "40000", "--row-groups", "64", "--seeds", "1"]
    done = run_benchmark(tmp_path, "mixing", *short)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = cases_of(tmp_path, "mixing")
    groups = values_of(cases["64 row groups"])
    assert 9.5 < groups["labels in a batch"]["permutation"][0] <= 10
    assert groups["batches"]["arrow"] == groups["batches"]["permutation"] == [78]
    default = values_of(cases["as written by default"])
    assert default["labels in a batch"]["arrow"][0] < 5, "few row groups cannot be mixed"


def test_memory_is_measured_beside_each_budget(tmp_path: Path) -> None:
    short = ["--tables", "two_ints", "--scale", "0.001", "--budgets", "0", "64"]
    done = run_benchmark(tmp_path, "memory", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((tmp_path / "figures.json").read_text())["parts"]["memory"]["cases"]
    assert case["ours"] == ["default", "64 MiB"]
    sides = case["figures"]["of the budget"]["sides"]
    assert all(0 < value < 1.1 for side in case["ours"] for value in sides[side]["values"])


def test_memory_of_encoded_tables_is_measured_from_both_storages(tmp_path: Path) -> None:
    tables = ["--tables", "passages", "masks_ragged", "tokens_longest", "tokens_packed"]
    short = ["--scale", "0.001", "--budgets", "64", "--storage", "local", "s3"]
    done = run_benchmark(tmp_path, "memory", *tables, *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((tmp_path / "figures.json").read_text())["parts"]["memory"]["cases"]
    assert [one["name"].split(":")[0] for one in cases] == [
        f"{table}, {storage}" for table in tables[1:] for storage in ("local", "s3")
    ]
    for case in cases:
        (share,) = case["figures"]["of what it may take"]["sides"]["64 MiB"]["values"]
        assert 0 < share <= 1


def test_a_peer_without_its_environment_says_how_to_make_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    short = ["--cases", "text", "--texts", "20000", "--turns", "1", "--loaders", "ours", "litdata"]
    done = run_benchmark(tmp_path, "formats", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (case,) = json.loads((tmp_path / "figures.json").read_text())["parts"]["formats"]["cases"]
    assert all(figure["sides"]["ours"]["values"][0] > 0 for figure in case["figures"].values())
    assert case["unavailable"]["litdata"].endswith("run python jobs/benchmark.py peers")
