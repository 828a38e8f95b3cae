"""Campaigns that ``make`` runs with many ranks, runs or trainings, here with few."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "jobs")))

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def run_campaign(folder: Path, name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": PLACES,
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(folder),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_simulated_ranks_run_to_the_failure_of_one(tmp_path: Path) -> None:
    few = ["--ranks", "512", "--processes", "1", "--seconds", "0.1"]
    figures = json.loads(run_campaign(tmp_path, "simulated_ranks", *few))
    assert figures["cause named"] == 1
    # Ranks that failed alike are told in one line, whatever their number.
    assert figures["error (characters)"] < 1500
    assert figures["all joined (s)"] > 0


def test_many_runs_and_much_output_are_measured(tmp_path: Path) -> None:
    short = ["--backends", "torch", "--runs", "1", "--rounds", "1", "--seconds", "1"]
    said = run_campaign(tmp_path, "endurance", *short)
    assert "'threads': 0" in said
    dropped, printed, silent = re.search(
        r"5000 lines/s: .*'lines not shown': (\d+), 'of': (\d+).*0 lines/s: (.*)", said, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert 0 <= int(dropped) < int(printed)
    assert "'of': 0" in silent


def test_no_rank_of_a_short_healthy_training_is_named(tmp_path: Path) -> None:
    """Whether one of a long training is, is not for a busy machine's test to say."""
    few = ["--healthy", "1", "--slowed", "0", "--steps", "20"]
    assert "1 trainings, 0 of them wrong" in run_campaign(tmp_path, "slow_rank", *few)
    assert not list(tmp_path.glob("slow-rank-*"))


def test_a_named_training_whose_driver_is_killed_is_judged(tmp_path: Path) -> None:
    said = run_campaign(tmp_path, "killed_drivers", "--kills", "1", "--steps", "20")
    assert "1 trainings, 0 of them wrong" in said
    assert not list(tmp_path.glob("killed-drivers-*"))
