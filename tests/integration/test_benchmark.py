"""The launch benchmark as a person runs it; how fast the launchers are is not for a test to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

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


def test_scale_runs_simulated_ranks_to_the_failure_of_one(tmp_path: Path) -> None:
    few = ["--ranks", "256", "512", "--processes", "1", "--seconds", "0.1", "--repeat", "1"]
    done = run_benchmark(tmp_path, "scale", *few)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "benchmark-scale.json").read_text())
    assert report["names_the_cause"]
    # Ranks that failed alike are told in one line, whatever their number.
    assert max(one["error_characters"] for one in report["results"].values()) < 1500
    assert set(report["exponents"]) == set(report["results"]["512"])
    assert (tmp_path / "benchmark-scale.png").stat().st_size > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_faults_over_two_hosts_are_told_rightly_and_leave_nothing(tmp_path: Path) -> None:
    # This seed draws the death of a rank alone.
    one = ["--only", "none", "--mixed", "1", "--seed", "1", "--backends", "horovod"]
    done = run_benchmark(tmp_path, "faults", *one)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads((tmp_path / "benchmark-faults.json").read_text())["results"]
    assert result["fault"] == "kill"
    assert result["is_correct"], result
    assert result["left"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_benchmark_that_is_asked_to_end_takes_its_hosts_along(tmp_path: Path) -> None:
    command = [sys.executable, str(JOB), "faults", "--only", "none", "--mixed", "1"]
    benchmark = subprocess.Popen([*command, "--backends", "horovod"], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 300
        while not (hosts := hosts_of(benchmark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert hosts
        benchmark.terminate()
        assert benchmark.wait(300) == 143
    finally:
        benchmark.kill()
    assert hosts_of(benchmark) == set()


def hosts_of(benchmark: subprocess.Popen[bytes]) -> set[str]:
    """The network namespaces that a benchmark of faults has made."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    name = f"sdf{benchmark.pid % 200 + 20}h"
    return {line.split()[0] for line in listed.stdout.splitlines() if line.startswith(name)}


def test_launch_measures_ours_beside_a_peer(tmp_path: Path) -> None:
    short = ["--launchers", *OURS, *PEERS, "--repeat", "1", "--output", "figures.json"]
    done = run_benchmark(tmp_path, "launch", *short)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["benchmark"] == "launch"
    assert report["ranks"] == 2
    assert report["settings"]["repeat"] == 1
    assert set(report["versions"]) >= {"python", "pyspark", "torch"}
    for table in (report["first_call"], report["warm_call"]):
        assert set(table) == OURS | PEERS
        peers_median = [table[name]["median"] for name in PEERS if "median" in table[name]]
        assert peers_median, table
        for name in OURS:
            assert len(table[name]["seconds"]) == 1
            assert table[name]["min"] <= table[name]["median"] <= table[name]["max"]
            expected = min(peers_median) / table[name]["median"]
            assert table[name]["times_faster"] == pytest.approx(expected)
        for name in PEERS:
            # A peer may not work with the newest of everything; then it says why.
            assert "seconds" in table[name] or table[name]["unavailable"]
    for name in OURS | PEERS:
        assert sum(line.startswith(name) for line in done.stdout.splitlines()) == 2


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
    assert {one["fault"] for one in report["results"]} == {
        "raise at start",
        "kill at start",
        "exit at start",
    }
    assert all(one["is_correct"] for one in report["results"])


def test_goodput_of_a_training_that_was_killed_once(tmp_path: Path) -> None:
    short = ["--kills", "1", "--steps", "20", "--step-seconds", "0.05", "--every", "5"]
    done = run_benchmark(tmp_path, "goodput", *short, "--launchers", "DistributedRunner")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "benchmark-goodput.json").read_text())
    one = report["results"]["DistributedRunner"]
    assert (one["steps"], one["kills"], len(one["again_seconds"])) == (20, 1, 1)
    assert 20 * 0.05 / one["wall_seconds"] <= one["goodput"] < 1


def test_goodput_counts_each_step_once(tmp_path: Path) -> None:
    first = [f"71 {step} {step} {step + 1}\n" for step in range(1, 8)]
    again = [f"72 {step} {step + 10} {step + 10.5}\n" for step in range(6, 11)]
    (tmp_path / "steps-0").write_text("".join([*first, *again, "72 11 21"]))
    assert goodput.figures_of(tmp_path, wall=30.0, struck_at=[8.5]) == {
        "goodput": (5 + 5 * 0.5) / 30,
        "wall_seconds": 30.0,
        "steps": 10,
        "steps_lost": 2,
        "kills": 1,
        "again_seconds": [7.5],
        "median_again_seconds": 7.5,
    }


def test_many_runs_and_much_output_are_measured(tmp_path: Path) -> None:
    short = ["--backends", "torch", "--runs", "1", "--rounds", "1", "--seconds", "1"]
    done = run_benchmark(tmp_path, "endurance", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["growth"]["threads"][0] == report["growth"]["threads"][1]
    assert report["output"]["lines"] > 0


def test_checkpoint_measures_the_wait_and_the_speed(tmp_path: Path) -> None:
    """How much either is, is not for a busy machine's test to say."""
    small = ["--megabytes", "8", "--repeat", "2", "--training-megabytes", "4"]
    short = ["--seconds", "1", "--every-seconds", "0.5"]
    done = run_benchmark(tmp_path, "checkpoint", *small, *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    blocked, training = report["blocked"], report["training"]
    assert [len(blocked["seconds"][kind]) for kind in ("asynchronous", "synchronous")] == [2, 2]
    expected = blocked["asynchronous_median"] / blocked["synchronous_median"]
    assert blocked["share"] == pytest.approx(expected)
    assert training["saves"] == 2
    assert training["ratio"] > 0
    assert "asynchronous save blocks the step loop" in done.stdout
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
    few = ["--libraries", "gloo", "--kibibytes", "1", "256", "--turns", "1", "--most-turns", "1"]
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
    short = ["--steps", "400", "--calls", "500", "--outage-seconds", "1", "--beside-seconds", "8"]
    done = run_benchmark(tmp_path, "tracking", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    for part in ("speed", "outage"):
        assert report[part]["arrived"] == report[part]["said"] > 0
    assert all(micros > 0 for micros in report["calls"].values())


def test_loader_measures_every_engine(tmp_path: Path) -> None:
    # Of arrays one engine: the others read them as they read scalars.
    short = ["--rows", "20000", "--rounds", "1", "--row-loader-rows", "2000", "--ranks", "1"]
    engines = ["arrow", "arrow_matrix", "petastorm_batched", "petastorm_row", "naive"]
    for table, options in (("scalar", []), ("array", ["--engines", "arrow"])):
        output = ["--output", f"{table}.json"]
        done = run_benchmark(tmp_path, "loader", "--tables", table, *short, *options, *output)
        assert done.returncode == 0, done.stdout + done.stderr
        results = json.loads((tmp_path / f"{table}.json").read_text())["results"]
        read = {one["engine"] for one in results if "skipped" not in one}
        assert {*engines} <= read if not options else read == {"arrow"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sweep-only", "3"],
        ["--array-seeds", "1", "--array-rows", "4000"],
        ["--small-files", "2", "4"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_loader_looks_for_the_worst_case(tmp_path: Path, arguments: list[str]) -> None:
    """Whether a bound is kept is not for a busy machine's test to say."""
    done = run_benchmark(
        tmp_path, "loader", *arguments, "--rounds", "1", "--output", "figures.json"
    )
    assert "Written to figures.json" in done.stdout, done.stdout + done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    for one in report["results"]:
        engines = [one[name] for name in ("ours", "naive", "petastorm") if name in one]
        steps = [one[name] for name in ("describing", "first batch") if name in one]
        assert not any("skipped" in engine for engine in engines), one
        assert all("median" in step for step in steps), one
        assert engines or steps
    assert not list(tmp_path.glob("tmp*"))


def test_mixing_counts_the_labels_of_real_batches_beside_a_permutation(tmp_path: Path) -> None:
    short = ["--rows", "40000", "--row-groups", "64", "--without-spark", "--without-petastorm"]
    done = run_benchmark(tmp_path, "mixing", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        (one["table"], one["loader"]): one
        for one in json.loads((tmp_path / "figures.json").read_text())["results"]
    }
    permutation = found["64 row groups", "permutation"]
    assert 9.5 < permutation["labels"] <= 10
    assert found["64 row groups", "arrow"]["steps"] == permutation["steps"] == 78
    assert found["as written by default", "arrow"]["labels"] < 5, "few row groups cannot be mixed"


def test_memory_is_measured_beside_each_budget(tmp_path: Path) -> None:
    short = ["--tables", "two_ints", "--scale", "0.001", "--budgets", "0", "64"]
    done = run_benchmark(tmp_path, "memory", *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "figures.json").read_text())["results"]
    assert [one["budget_mib"] for one in results] == [0, 64]
    assert all(0 < one["share"] < 1.1 for one in results)


def test_memory_of_encoded_tables_is_measured_from_both_storages(tmp_path: Path) -> None:
    tables = ["--tables", "passages", "masks_ragged", "tokens_longest", "tokens_packed"]
    short = ["--scale", "0.001", "--budgets", "64", "--storage", "local", "s3"]
    done = run_benchmark(tmp_path, "memory", *tables, *short, "--output", "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "figures.json").read_text())["results"]
    assert [one["storage"] for one in results] == ["local", "s3"] * 4
    assert all(one["is_within"] for one in results)
